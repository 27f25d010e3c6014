"""Tensor parallelism without stages: modules whose parameters are divided among the ranks of a tensor group.

kinds, experts           how modules are divided; parameter_usage: which parameters can be
pairs, sequences         between which nothing is gathered (pair_foresight: for plans); parts along the tokens
sharded_tensor           the tensor that code is given there, by op_rules and view_rules, up to losses by loss_parallel
part_shards              parts sharded over replicas
joint_steps              the frame of a step, shared with context/; batch_rotation: whose batch runs
reference                compares with the undivided model
"""
