"""Jobs on machines that one can ssh to: one `train` a machine, which goes on when the connection is lost.

    wishes      what the job's `ssh` says
    connection  this machine's ssh: command lines, one connection a host, its errors in words
    agent       the one file that runs there, alone: looks at the machine, starts, follows and ends `train`
    machine     one that has been reached: its agent, what it has
    survey      whether all machines can run the job, and how they reach each other
    checkup     the same for `trainshed doctor --cluster`
    channel_store  channels that went there before
    shipping    files there, results home
    follower    a process here for each host: passes on what `train` prints there, over any number of connections
    backend     all of it, as the runner knows places

Nothing has to run on the machines but sshd, and nothing has to be installed there but Python with psutil and PyYAML (or a
container engine): trainshed itself is sent along where it is missing.
"""
