"""The five tasks with ray.train and ray.tune 2. Not run here. A script has to become a function first."""

import subprocess

from ray import tune
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from training import train

STORAGE = "/shared/results"


# task: a script with data, waited for; where is its model?
def script(config):
    subprocess.run(["python", "train.py", "--lr", str(config["lr"])], check=True)


trainer = TorchTrainer(
    script,
    train_loop_config={"lr": 0.1},
    scaling_config=ScalingConfig(num_workers=1),
    run_config=RunConfig(name="one", storage_path=STORAGE),
)
result = trainer.fit()
print(result.path)

# task: a function on two ranks
two = TorchTrainer(
    lambda config: train(**config),
    train_loop_config={"lr": 0.1},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(name="two", storage_path=STORAGE),
).fit()

# task: the history of its metrics as a table
# Metrics that the function reports by ray.train.report; printed ones are not read.
print(two.metrics_dataframe)

# task: search a hyperparameter, and take the best run
tuner = tune.Tuner(
    lambda config: train(**config),
    param_space={"lr": tune.uniform(0.01, 0.4)},
    tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=4),
    run_config=tune.RunConfig(name="search", storage_path=STORAGE),
)
best = tuner.fit().get_best_result()
print(best.path, best.metrics)

# task: why did it fail? go on with its checkpoints
trainer = TorchTrainer(
    lambda config: train(**config),
    train_loop_config={"lr": "high"},
    scaling_config=ScalingConfig(num_workers=1),
    run_config=RunConfig(
        name="again", storage_path=STORAGE, failure_config=FailureConfig(max_failures=3)
    ),
)
try:
    result = trainer.fit()
except Exception as error:
    print(error)
# A run of the same name and storage goes on with ray.train.get_checkpoint().
result = trainer.fit()
