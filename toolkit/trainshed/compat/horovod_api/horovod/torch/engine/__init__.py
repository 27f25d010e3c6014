"""How ranks agree on operations and run them; nothing here knows Horovod's API.

place         which rank this is, by the launcher's variables
wire          messages between a rank and the coordinator
agreement     who has announced which operation: what is ready, what does not match, who is waited for; pure
coordinator   the thread of rank 0 that hears all ranks, and tells all of them the same order
collectives   runs agreed operations on process groups of torch.distributed
handle        one operation, from its submission to its result
worker        this rank's side: submits, receives, runs
"""
