"""The commands of this wing, a module each, named as the command."""

# Command -> (arguments, what it does), as in `trainshed.cli.commands`.
COMMANDS = {
    "plan": ("SCRIPT", "profile a model and write its pipeline plan"),
    "verify": ("JOB.yaml|SCRIPT", "whether N ranks train as one process does"),
}
