"""The folder that stands for `sagemaker-training` (and `sagemaker-containers`, its older name) on a script's path.

Scripts and images import these packages to learn about their job and to start the user's script. Under trainshed the job is
read and the code is in place already, so little is left to do. The launcher puts this folder at the end of PYTHONPATH, and
only where the real packages are absent. Facts: `sagemaker-training` 5.1.4; `tests/clients` compares with it.
"""
