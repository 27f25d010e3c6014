"""Jobs on a Ray cluster: one actor a host of the job, which runs `train` on the node where Ray places it.

    wishes      what the job says of Ray (`ray:`), read
    demand      what each host asks of the cluster, whether that can ever fit: pure
    hosts       the backend: to the runner, hosts on Ray are like any others
    driver      a process of its own, the only one that imports ray: placement, files there and back, lines, ends
    shipping    what goes to the nodes, packed into a stream
    mirror      what comes home from the nodes, while the job runs and when it is over
    node        the actor. It knows Python's own library alone, and travels to the nodes by itself
    keeper      beside `train` on the node: passes signals on, and ends it where the actor or its node is lost

Ray ends a process that loses its cluster without asking it; the runner must not be that process.
"""
