"""Random faults at random moments of random jobs, each judged by rules: `python tests/faults/play`.

schedule    what happens to which job, drawn from a seed
ground      the hosts: network namespaces, mounts, process namespaces; what is done to them
rank        the training that the hosts run: no torch, checkpoints, a model, marks of its phases
case        one schedule played to its end, inside namespaces of its own; run_case: one of `trainshed run`
rules       what must hold of every end
tally       what all cases came to; plays one that ended wrong again
__main__    the program: as many cases as there is time for, several at once
"""
