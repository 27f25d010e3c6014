"""Sequences that ranks divide among them inside of a model's blocks.

region                 the blocks; rules, equivalence_check: how they are divided, and whether that is right
op_handlers, attention what a block calls; crossing: exchanges; slices
parted_steps           with modules that are divided among ranks; stage_blocks: blocks of stages
find_blocks            which modules are blocks, for plans
"""
