"""The five tasks with trainshed. Run by a test."""

import trainshed
from training import train

# task: a script with data, waited for; where is its model?
done = trainshed.run("train.py", hyperparameters={"lr": 0.1}, channels={"train": "data"})
print(done.model)

# task: a function on two ranks
two = trainshed.run(
    train, hyperparameters={"lr": 0.1}, distribution={"kind": "torchrun", "processes_per_host": 2}
)

# task: the history of its metrics as a table
print(done.history())

# task: search a hyperparameter, and take the best run
tuning = trainshed.tune(
    job=train,
    search={"lr": {"low": 0.01, "high": 0.4}},
    objective="minimize loss",
    strategy="random",
    max_jobs=4,
)
print(tuning.best, tuning.best.metrics)

# task: why did it fail? go on with its checkpoints
try:
    trainshed.run("train.py", hyperparameters={"lr": "high"}, channels={"train": "data"})
except trainshed.JobFailed as failed:
    print(failed)
stopped = trainshed.run(
    "train.py", hyperparameters={"lr": 0.1, "steps": 100000}, channels={"train": "data"}, wait=False
).stop()
stopped.resume(wait=False).stop()
