#: A rank is one process of a distributed training. This example trains with PyTorch's DistributedDataParallel. CHECKOUT is
#: the folder with trainshed's sources; `pip install 'trainshed[torch]'` brings PyTorch.
cp -r "$CHECKOUT/examples/ddp/." .
cat job.yaml
#: The line `distribution: {kind: torchrun, processes_per_host: 2}` asks for two ranks on each host. Each gets RANK,
#: WORLD_SIZE and the address at which they meet. See what would be started, then start it:
trainshed run job.yaml --dry-run
trainshed run job.yaml --hp epochs=12
#: Do two ranks train as one does? `verify` runs both ways and compares losses and weights:
trainshed verify train.py -n 2 --hp epochs=1
