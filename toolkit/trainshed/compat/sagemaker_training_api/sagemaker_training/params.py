"""Names of hyperparameters and variables (values as in `sagemaker-training` 5.1.4)."""

from __future__ import annotations

SAGEMAKER_PREFIX = "sagemaker_"
CURRENT_HOST_ENV = "CURRENT_HOST"
USER_PROGRAM_PARAM = "sagemaker_program"
USER_PROGRAM_ENV = USER_PROGRAM_PARAM.upper()
S3_OUTPUT_LOCATION_PARAM = "sagemaker_s3_output"
S3_OUTPUT_LOCATION_ENV = S3_OUTPUT_LOCATION_PARAM.upper()
S3_ENDPOINT_URL = "S3_ENDPOINT_URL"
TRAINING_JOB_ENV = "TRAINING_JOB_NAME"
SUBMIT_DIR_PARAM = "sagemaker_submit_directory"
SUBMIT_DIR_ENV = SUBMIT_DIR_PARAM.upper()
ENABLE_METRICS_PARAM = "sagemaker_enable_cloudwatch_metrics"
LOG_LEVEL_PARAM = "sagemaker_container_log_level"
LOG_LEVEL_ENV = LOG_LEVEL_PARAM.upper()
JOB_NAME_PARAM = "sagemaker_job_name"
JOB_NAME_ENV = JOB_NAME_PARAM.upper()
TUNING_METRIC_PARAM = "_tuning_objective_metric"
DEFAULT_MODULE_NAME_PARAM = "default_user_module_name"
MPI_ENABLED = "sagemaker_mpi_enabled"
PARAMETER_SERVER_ENABLED = "sagemaker_parameter_server_enabled"
MULTI_WORKER_MIRRORED_STRATEGY_ENABLED = "sagemaker_multi_worker_mirrored_strategy_enabled"
PYTORCH_XLA_MULTI_WORKER_ENABLED = "sagemaker_pytorch_xla_multi_worker_enabled"
REGION_NAME_PARAM = "sagemaker_region"
REGION_NAME_ENV = REGION_NAME_PARAM.upper()
FRAMEWORK_TRAINING_MODULE_ENV = "SAGEMAKER_TRAINING_MODULE"
SAGEMAKER_HYPERPARAMETERS = (
    USER_PROGRAM_PARAM,
    SUBMIT_DIR_PARAM,
    ENABLE_METRICS_PARAM,
    REGION_NAME_PARAM,
    LOG_LEVEL_PARAM,
    JOB_NAME_PARAM,
    DEFAULT_MODULE_NAME_PARAM,
    TUNING_METRIC_PARAM,
    S3_OUTPUT_LOCATION_PARAM,
)
MPI_PROCESSES_PER_HOST = "sagemaker_mpi_num_of_processes_per_host"
MPI_NUM_PROCESSES = "sagemaker_mpi_num_processes"
MPI_CUSTOM_OPTIONS = "sagemaker_mpi_custom_mpi_options"
SAGEMAKER_NETWORK_INTERFACE_NAME = "sagemaker_network_interface_name"
SMDATAPARALLEL_CUSTOM_MPI_OPTIONS = "sagemaker_distributed_dataparallel_custom_mpi_options"
SM_HP_MP_PARAMETERS = "SM_HP_MP_PARAMETERS"
DISTRIBUTION_INSTANCE_GROUPS = "sagemaker_distribution_instance_groups"
