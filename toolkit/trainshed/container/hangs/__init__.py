"""Hangs: whether the ranks make progress, where each of them is, and which rank all the others wait for.

    hang_watch    when to look at the ranks of this host; loaded by every job, the rest only by one that may hang
    movement      what the kernel says of a rank: CPU time, bytes read and written, its processes
    stacks        the Python stacks of a rank's processes, asked for by a signal (`hook/` answers)
    activity      what a stack means: which collective, the data loader, which line of the user's code
    sample        one look at all ranks of this host
    contribution  this host's part of a report, with what torch's flight recorder has written
    gathering     host 0: the parts of all hosts
    stragglers    which ranks hold up which, in one sentence
    hang_report   the report: file, console lines, the job's failure

`docs/hangs.md` says what counts as movement, and why.
"""
