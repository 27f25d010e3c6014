"""Hangs: are the ranks still moving, where is each of them, and who is it that all the others wait for?

    processes   what /proc says of a rank: CPU time, bytes read and written, its processes
    stacks      the Python stacks of a rank's processes, asked for by a signal (`hook/` answers)
    activity    what a stack means: in which collective, in the data loader, at which line of the user's
    judge       who holds up whom, in one sentence
    watch       when to look; all hosts' parts put together; stop or go on

`docs/hangs.md` says what counts as movement, and why.
"""
