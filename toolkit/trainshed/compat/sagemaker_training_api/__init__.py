"""Replacements for `sagemaker-training` and `sagemaker-containers`, its older name, for scripts that import them.

Scripts and images use these packages to read their job and to start the user's script. Under trainshed the job has been
read and the code is in place, so little is left to do. The launcher adds this folder at the end of PYTHONPATH if the real
packages are not installed. Behaviour: `sagemaker-training` 5.1.4; `tests/clients` compares with it.
"""
