"""The five tasks with submitit 1.5. Not run here: it takes a Slurm cluster."""

import submitit
from training import train

# task: a script with data, waited for; where is its model?
executor = submitit.AutoExecutor(folder="logs")
executor.update_parameters(timeout_min=60, slurm_partition="gpu")
job = executor.submit(
    submitit.helpers.CommandFunction(["python", "train.py"]), "--lr", "0.1", "--train", "data"
)
print(job.result())
# The script itself chooses where its model is.

# task: a function on two ranks
executor.update_parameters(nodes=1, tasks_per_node=2)
# The function calls submitit.helpers.TorchDistributedEnvironment().export() for RANK and MASTER_ADDR.
two = executor.submit(train, 0.1)
two.results()

# task: the history of its metrics as a table
# Not served: metrics are lines of the log.
print(two.stdout())

# task: search a hyperparameter, and take the best run
executor.update_parameters(tasks_per_node=1, slurm_array_parallelism=2)
values = [0.01, 0.1, 0.2, 0.4]
jobs = executor.map_array(train, values)
# The function has to return its loss.
losses = [one.result() for one in jobs]
print(values[losses.index(min(losses))])

# task: why did it fail? go on with its checkpoints
failed = executor.submit(train, "high")
print(failed.exception(), failed.stderr())


class Resumable:
    def __call__(self, lr):
        return train(lr)

    def checkpoint(self, lr):
        return submitit.helpers.DelayedSubmission(Resumable(), lr)


executor.submit(Resumable(), 0.1)
