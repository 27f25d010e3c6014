"""The five tasks with sagemaker 3 (sagemaker.train.ModelTrainer). Not run here: it takes an account."""

from sagemaker.core.remote_function import remote
from sagemaker.train.configs import (
    CheckpointConfig,
    Compute,
    InputData,
    SourceCode,
    StoppingCondition,
)
from sagemaker.train.distributed import Torchrun
from sagemaker.train.model_trainer import ModelTrainer
from training import train

IMAGE, ROLE, BUCKET = (
    "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.7",
    "arn:aws:iam::1:role/training",
    "s3://bucket",
)

# task: a script with data, waited for; where is its model?
trainer = ModelTrainer(
    training_image=IMAGE,
    role=ROLE,
    source_code=SourceCode(source_dir=".", entry_script="train.py"),
    compute=Compute(instance_type="ml.m5.large", instance_count=1),
    hyperparameters={"lr": 0.1},
)
trainer.train(
    input_data_config=[InputData(channel_name="train", data_source=f"{BUCKET}/data")], wait=True
)
print(trainer._latest_training_job.model_artifacts.s3_model_artifacts)

# task: a function on two ranks
two = remote(
    train,
    instance_type="ml.g5.12xlarge",
    instance_count=1,
    image_uri=IMAGE,
    role=ROLE,
    use_torchrun=True,
    nproc_per_node=2,
)
two(lr=0.1)

# task: the history of its metrics as a table
# Not served: a job has the last values (final_metric_data_list); the history is in CloudWatch or MLflow.
print(trainer._latest_training_job.final_metric_data_list)

# task: search a hyperparameter, and take the best run
from sagemaker.core.parameter import ContinuousParameter
from sagemaker.train.tuner import HyperparameterTuner

tuner = HyperparameterTuner(
    model_trainer=trainer,
    objective_metric_name="loss",
    objective_type="Minimize",
    metric_definitions=[{"Name": "loss", "Regex": "loss=([0-9.]+)"}],
    hyperparameter_ranges={"lr": ContinuousParameter(0.01, 0.4)},
    max_jobs=4,
)
tuner.tune(inputs=[InputData(channel_name="train", data_source=f"{BUCKET}/data")], wait=True)
print(tuner.best_training_job())

# task: why did it fail? go on with its checkpoints
trainer = ModelTrainer(
    training_image=IMAGE,
    role=ROLE,
    source_code=SourceCode(source_dir=".", entry_script="train.py"),
    compute=Compute(
        instance_type="ml.m5.large", instance_count=1, enable_managed_spot_training=True
    ),
    checkpoint_config=CheckpointConfig(s3_uri=f"{BUCKET}/checkpoints"),
    stopping_condition=StoppingCondition(
        max_runtime_in_seconds=3600, max_wait_time_in_seconds=7200
    ),
    hyperparameters={"lr": "high"},
)
try:
    trainer.train(
        input_data_config=[InputData(channel_name="train", data_source=f"{BUCKET}/data")], wait=True
    )
except Exception:
    print(trainer._latest_training_job.failure_reason)
