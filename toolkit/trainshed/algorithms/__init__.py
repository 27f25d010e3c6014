"""Programs that declare themselves: `<program>.algorithm.yaml` beside a program says what it takes and what it prints.

From it come the program's command line and `--help`, the check of a job before anything is fetched or installed, the tables
of documentation, `trainshed describe`, and the request that registers it with SageMaker. Each module knows those before it:
values (one hyperparameter), declaration (reads the file), checking (a job against it), about (for people), request, shelf
(where they are).
"""

ENDING = ".algorithm.yaml"
