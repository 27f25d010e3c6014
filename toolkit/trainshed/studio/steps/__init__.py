"""Pipelines of steps (`trainshed steps`): jobs, conditions and registrations that depend on each other.

    steps_file        from pipeline.yaml to a checked `PipelineDefinition` (steps_plan); links are the `${...}` in it
    expression        the language of conditions
    inputs            what a step depends on: one hash, by which it is known whether it was done already
    steps_folder      what the folder keeps: files that survive any kill
    step_runs         a step as an ordinary run
    conductor         the policy of the loop (studio/batches)
    running, drawing  the commands; how it stands: text, SVG, JSON

The files in the folder are the truth; a conductor that is killed is started again and finds its runs by their locks.
"""
