"""What stands in our images where SDK v3's drivers, which replace `train`, call `mpirun`, `torchrun` and
`/usr/sbin/sshd`.

The drivers come with the job and are not ours to change; these programs put right what they get wrong and hand over
to the real one. images/install puts them in their places; a wheel installed elsewhere changes nobody's commands.
"""
