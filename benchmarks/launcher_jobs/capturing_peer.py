"""Makes `sagemaker-training` read the script's output itself, as its framework containers do.

Its plain `train` lets the script inherit the streams; the framework containers (and MPI) ask for `capture_error`.
Named to it by SAGEMAKER_TRAINING_MODULE=capturing_peer:main.
"""

from sagemaker_training import entry_point, environment


def main():
    env = environment.Environment()
    entry_point.run(env.module_dir, env.user_entry_point, env.to_cmd_args(), env.to_env_vars(), capture_error=True)
