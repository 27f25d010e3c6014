"""Models whose parameters get their values when it is known which rank holds them.

    with pipe.delayed_initialization():
        model = Model(config)          # takes next to no memory
    model = pipe.PipelineModel(model)  # the first step gives each rank the values of its own stages

arena is memory that is taken from the machine only where something is written; tape notes what the script does to tensors in
it, and does that again for those that are wanted; waiting holds a model's parameters until then.

    arena      addresses without memory; shapes: a forward for its shapes; schemas: what operations write, draw, return
    tape       what was done to tensors, and does it again for those that a rank holds
"""
