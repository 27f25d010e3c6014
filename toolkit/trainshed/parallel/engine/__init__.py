"""Runs a plan on torch.distributed.pipelining's schedules.

holding                what this rank holds, also in parts (exchange; stage_shards, shard_mesh: over replicas;
                       block_shards: without stages, block by block)
object_collectives     how ranks exchange objects, so that those at different places see it
forward_patch          what is called in the place of a module's forward
checking, gradients    what ranks must agree on; gradients over replicas
verify/, tensor/, context/   the check against the undivided model; modules, and sequences, divided among ranks
"""
