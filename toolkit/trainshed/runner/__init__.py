"""Outside the container: places a job on hosts (processes here, or containers), watches it, brings home what it made.

    job file, flags --schema.read()--> Job --layout.place()--> Run --backend.start()--> hosts
    hosts --watch.watch()--> Ending --verdict.judge()--> Verdict --collect, status, card--> files, exit status

Standard dataclasses are fine here: unlike `train`, the runner starts once for a person and not on every node.
"""
