"""The commands of the studio, a module each, named as the command."""

# Command -> (arguments, what it does), as in `trainshed.cli.commands`.
COMMANDS = {
    "tune": ("TUNE.yaml", "search a job's hyperparameters"),
    "steps": ("run PIPELINE.yaml", "run jobs that depend on each other"),
    "models": ("ls|add|get ...", "keep versions of models, with stages and cards"),
    "ls": ("", "search all runs, past and present"),
    "tag": ("RUN +TAG|-TAG", "give tags to runs, or take them away"),
    "note": ("RUN [TEXT]", "add a note to a run"),
    "show": ("[RUN]", "show everything about a run"),
    "diff": ("RUN RUN", "show what differs between two runs"),
    "watch": ("[RUN]", "show curves, machine and log of a run"),
    "lineage": ("[RUN]", "show where a run comes from, and what came of it"),
    "rerun": ("[RUN]", "make a run again: its code, data, packages"),
    "ui": ("", "serve a web page over the runs"),
    "report": ("[RUN]", "write a run's report, one page"),
    "goodput": ("--mtbf TIME", "compute what interruptions will cost"),
    "compare": ("RUN RUN ...", "compare throughput, loss, time and cost of runs"),
}
