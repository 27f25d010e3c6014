"""Acts on runs: starts, watches, repeats, stops, resumes, removes them, and recovers what a killed runner left.

execution        one run from its job to its end (attempts, watch); parent, resolve_models: which models it goes on from
child_runs       runs that outlive the program that started them: trials, steps
operations       stop, remove; recover: what a killed runner left
"""
