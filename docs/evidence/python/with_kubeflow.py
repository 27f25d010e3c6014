"""The five tasks with Kubeflow's SDK (kubeflow 0.2, Trainer v2). Not run here: it takes a cluster with its controllers."""

from kubeflow.optimizer import Objective, OptimizerClient, Search, TrainJobTemplate, TrialConfig
from kubeflow.trainer import CustomTrainer, CustomTrainerContainer, TrainerClient
from training import train

client = TrainerClient()
runtime = client.get_runtime("torch-distributed")

# task: a script with data, waited for; where is its model?
# The script and its data are in the image, or on a volume of the runtime; it chooses where its model is.
name = client.train(
    runtime=runtime, trainer=CustomTrainerContainer(image="registry/train:1", num_nodes=1)
)
client.wait_for_job_status(name)

# task: a function on two ranks
two = client.train(
    runtime=runtime, trainer=CustomTrainer(func=train, func_args={"lr": 0.1}, num_nodes=2)
)
client.wait_for_job_status(two)

# task: the history of its metrics as a table
# Not served: metrics are lines of the log.
for line in client.get_job_logs(two):
    print(line)

# task: search a hyperparameter, and take the best run
optimizer = OptimizerClient()
search = optimizer.optimize(
    trial_template=TrainJobTemplate(trainer=CustomTrainer(func=train), runtime=runtime),
    search_space={"lr": Search.uniform(0.01, 0.4)},
    objectives=[Objective(metric="loss", direction="minimize")],
    trial_config=TrialConfig(num_trials=4),
)
optimizer.wait_for_job_status(search)
print(optimizer.get_best_results(search))

# task: why did it fail? go on with its checkpoints
bad = client.train(runtime=runtime, trainer=CustomTrainer(func=train, func_args={"lr": "high"}))
try:
    client.wait_for_job_status(bad)
except RuntimeError as error:
    print(error)
for step in client.get_job(bad).steps:
    print(step.name, step.status)
# Not served: a job that was deleted is created anew; the function itself looks for its checkpoint on a volume.
