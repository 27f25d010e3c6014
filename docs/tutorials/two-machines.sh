#: A job of two hosts runs on one machine first: each host is a process group with files and a name of its own, algo-1 and
#: algo-2. What works so works on two machines.
cp -r "$CHECKOUT/examples/ddp/." .
trainshed run job.yaml --instances 2 --hp epochs=12
#: There were four ranks, two on each host. Each host has its log:
trainshed logs --host algo-2 --last 3
#: The same job goes to two machines by ssh, to Slurm, or to Kubernetes, without a change of the script or the job file:
#:
#:     trainshed run job.yaml --instances 2 --on ssh --hosts ada@one,ada@two
#:     trainshed run job.yaml --instances 2 --on slurm --sbatch partition=gpu
#:     trainshed run job.yaml --instances 2 --on kubernetes --image IMAGE
#:
#: [The places](../places.md) have a page each. A job in containers says `--image IMAGE`. Look at what a run has left:
ls runs/*
