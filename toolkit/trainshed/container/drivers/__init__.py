"""Programs of our images in place of the `mpirun`, `torchrun` and `/usr/sbin/sshd` that SDK v3's drivers call.

The drivers replace `train`, come with the job and cannot be changed; these programs correct their errors and execute the
real ones. images/install installs them; a wheel installed in another image replaces no commands.
"""
