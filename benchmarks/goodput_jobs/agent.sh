#!/bin/sh
# One host of torchrun: its elastic agent, which starts all ranks again after a failure.
exec "$BENCH_PYTHON" -m torch.distributed.run --nnodes "$BENCH_HOSTS" --nproc-per-node 1 --max-restarts 1000 \
    --rdzv-backend c10d --rdzv-endpoint "127.0.0.1:$BENCH_PORT" --rdzv-id bench peer.py
