"""Acts on runs: starts, watches, repeats, stops, resumes, removes them, and recovers what a killed runner left.

execution        one run from its job to its end (attempts, watch); parent, resolve_models: which models it goes on from
operations       stop, remove; recover: what a killed runner left
model_folder     the files of a run's model
"""
