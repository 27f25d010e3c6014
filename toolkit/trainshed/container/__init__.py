"""Inside the container, around the user's program: the six steps of `train`.

training        the six steps; main is the command in front of it, toolkit/train what lies on PATH
planning        the compiler's part, then the launcher's
attempts        attempts until success, interruption or the last failure (restarts; shared_restarts with the other hosts)
late            watchers that are loaded when they have something to do
metrics_watch   hands what the ranks print to the process that searches it (metrics.searching)
rules_watch     starts the process that calls the job's rules, and does what they ask for
slow_ranks      names a rank that holds up the others, while it does
argument_hook   in the script's process: names hyperparameters that its argparse did not take
parent_death    ends what `train` has started when `train` itself is killed
"""
