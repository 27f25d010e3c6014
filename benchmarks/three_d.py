"""Eight ranks, one model: what each way to spread it costs in time, memory and bytes, and whether its losses are right.

    python benchmarks/three_d.py [--models gpt2 mixtral] [--ways ...] [--ranks 8] [--steps 6] [--out FILE]

Every way trains the same model on the same batches from the same seed; dropout is off, for ranks of plain torch draw
other numbers than one process. Compared with set-ups by hand in plain torch (DDP, FSDP2), and DeepSpeed's ZeRO where it
is installed.

* step: median seconds of a step, and its ratio to DDP by hand in this run. All ranks share the cores of this machine.
* memory: the most that one rank has of memory of its own (`Anonymous` of /proc/PID/smaps_rollup, looked at ten times a
  second), less what it had before the model was built.
* sent: bytes a rank sends in a step, all ranks' mean: what went over the loopback of a network namespace that has nothing
  else in it (Linux, as root; "-" elsewhere).
* EP: tensor parallelism of the experts alone, for the Mixtral-like model. TP divides its experts in the same way.
* predicted: the step of the plan, for ways with stages: for stages that have a core each, which is not so here where there
  are more ranks than cores.
* loss: the largest difference of a step's loss from one process, relative.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

TOOLKIT = Path(__file__).resolve().parents[1] / "toolkit"
ROWS, TOKENS, WORDS, WARM = 8, 32, 512, 2
TIMEOUT_S = 900

# Way -> settings of `pipe.init` by the number of ranks; None for a set-up by hand.
WAYS: dict[str, dict[str, Any] | None] = {
    "DDP by hand": None,
    "FSDP2 by hand": None,
    "DeepSpeed ZeRO-3": None,
    "DP": {"partitions": 1},
    "DP, optimizer sharded": {"partitions": 1, "shard_optimizer_state": True},
    "FSDP": {"partitions": 1, "sharded_data_parallel_degree": 8},
    "HSDP 4 x 2": {"partitions": 1, "sharded_data_parallel_degree": 4},
    "PP 8": {"partitions": 8},
    "PP 4 x DP 2": {"partitions": 4},
    "PP 2 x DP 4": {"partitions": 2},
    "PP 4 x FSDP 2": {"partitions": 4, "sharded_data_parallel_degree": 2},
    "PP 2 x FSDP 4": {"partitions": 2, "sharded_data_parallel_degree": 4},
    "TP 2 x DP 4": {"partitions": 1, "tensor_parallel_degree": 2},
    "TP 4 x DP 2": {"partitions": 1, "tensor_parallel_degree": 4},
    "EP 2 x DP 4": {"partitions": 1, "tensor_parallel_degree": 2},
    "EP 4 x DP 2": {"partitions": 1, "tensor_parallel_degree": 4},
    "PP 4 x TP 2": {"partitions": 4, "tensor_parallel_degree": 2},
    "PP 2 x TP 2 x DP 2": {"partitions": 2, "tensor_parallel_degree": 2},
    "PP 2 x TP 2 x FSDP 2": {"partitions": 2, "tensor_parallel_degree": 2, "sharded_data_parallel_degree": 2},
    "TP 2 x FSDP 4": {"partitions": 1, "tensor_parallel_degree": 2, "sharded_data_parallel_degree": 4},
}


def build(name: str) -> Any:
    """A model of transformers from its configuration, the same on all ranks."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    if name == "gpt2":
        config = GPT2Config(
            vocab_size=WORDS, n_positions=TOKENS, n_embd=256, n_layer=8, n_head=8,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
        )  # fmt: skip
        return GPT2LMHeadModel(config).train()
    config = MixtralConfig(
        vocab_size=WORDS, max_position_embeddings=TOKENS, hidden_size=192, intermediate_size=384, num_hidden_layers=8,
        num_attention_heads=8, num_key_value_heads=4, num_local_experts=4, use_cache=False,
    )  # fmt: skip
    return MixtralForCausalLM(config).train()


def batch(step: int, rows: int) -> Any:
    """(rows, TOKENS) words."""
    import torch

    return torch.randint(0, WORDS, (rows, TOKENS), generator=torch.Generator().manual_seed(100 + step))


def rank_process(way: str, model_name: str, steps: int) -> None:
    """One rank, or the one process; rank 0 prints JSON lines."""
    import torch

    torch.set_num_threads(1)
    world = int(os.environ["WORLD_SIZE"])
    print(json.dumps({"ready": os.getpid()}), flush=True)
    step, facts = _one_process(model_name) if world == 1 else _SETUPS.get(way, _ours)(way, model_name)
    seconds, losses, sent = [], [], []
    for number in range(steps + WARM):
        before, began = _loopback(), time.perf_counter()
        losses.append(step(number))
        seconds.append(time.perf_counter() - began)
        sent.append(_loopback() - before)
    if int(os.environ["RANK"]) == 0:
        found = {"seconds": seconds[WARM:], "losses": losses, "sent": sent[WARM:], **facts()}
        print(json.dumps(found), flush=True)


def _optimizer(parameters: Any) -> Any:
    import torch

    return torch.optim.AdamW(parameters, lr=1e-3)


def _one_process(model_name: str) -> Any:
    model = build(model_name)
    optimizer = _optimizer(model.parameters())

    def step(number: int) -> float:
        optimizer.zero_grad()
        x = batch(number, ROWS)
        losses = [model(input_ids=row, labels=row).loss / ROWS for row in x.split(1)]
        sum(losses).backward()  # type: ignore[union-attr]
        optimizer.step()
        return float(sum(losses))

    return step, dict


def _by_hand(way: str, model_name: str) -> Any:
    """DDP or FSDP2: each rank has its rows."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = build(model_name)
    if way == "FSDP2 by hand":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in _layers(model):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        model = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=model_name == "mixtral")
    optimizer = _optimizer(model.parameters())

    def step(number: int) -> float:
        optimizer.zero_grad()
        row = batch(number, ROWS).chunk(dist.get_world_size())[dist.get_rank()]
        loss = model(input_ids=row, labels=row).loss
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        return float(mean) / dist.get_world_size()

    return step, dict


def _layers(model: Any) -> Any:
    return model.transformer.h if hasattr(model, "transformer") else model.model.layers


def _deepspeed(_way: str, model_name: str) -> Any:
    import deepspeed
    import torch.distributed as dist

    deepspeed.init_distributed("gloo")
    model = build(model_name)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=_optimizer(model.parameters()),
        config={"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}},
    )

    def step(number: int) -> float:
        row = batch(number, ROWS).chunk(dist.get_world_size())[dist.get_rank()]
        loss = engine(input_ids=row, labels=row).loss
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        return float(mean) / dist.get_world_size()

    return step, dict


def _ours(way: str, model_name: str) -> Any:
    import torch.distributed as dist

    import trainshed.parallel as pipe

    settings: dict[str, Any] = dict(WAYS[way] or {})
    tensor = settings.get("tensor_parallel_degree", 1)
    world = int(os.environ["WORLD_SIZE"])
    groups = world // settings["partitions"] // tensor
    rows = ROWS // groups
    settings["microbatches"] = rows
    settings["prescaled_batch"] = tensor > 1
    grid = pipe.init(settings)
    module = build(model_name)
    if way.startswith("EP"):  # the experts alone are divided; TP divides them as well
        for layer in _layers(module):
            pipe.set_tensor_parallelism(layer.mlp.experts, True)
    model = pipe.PipelineModel(module)
    optimizer = pipe.PipelineOptimizer(_optimizer(model.parameters()))

    @pipe.step
    def train(model: Any, row: Any) -> Any:
        loss = model(input_ids=row, labels=row).loss
        model.backward(loss)
        return loss

    def step(number: int) -> float:
        optimizer.zero_grad()
        part = pipe.rdp_rank() if tensor > 1 else pipe.dp_rank()
        loss = train(model, batch(number, ROWS).chunk(groups)[part]).reduce_mean()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, group=grid.control_group)
        return float(mean) / world

    def facts() -> dict[str, Any]:
        plan = model.plan
        return {"predicted": plan.predicted["step_ms"] / 1e3} if plan is not None and settings["partitions"] > 1 else {}

    return step, facts


_SETUPS = {"DDP by hand": _by_hand, "FSDP2 by hand": _by_hand, "DeepSpeed ZeRO-3": _deepspeed}


def _loopback() -> int:
    """Bytes that have gone over the loopback of this network namespace."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            return int(counts.split()[0])
    return 0


def anonymous(pid: int) -> int:
    """Bytes of memory of its own that a process has; 0 where it is gone."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Anonymous:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def play(way: str, model_name: str, ranks: int, steps: int) -> dict[str, Any]:
    """What the ranks found, or {"failed": why}."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    isolated = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"] if _can_isolate() else []
    command = [*isolated, sys.executable, __file__, "--job", way, model_name, str(ranks), str(steps), str(port)]
    processes = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = processes.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        processes.kill()
        return {"failed": f"no end within {TIMEOUT_S} s"}
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    found = next((line for line in lines if "seconds" in line), None)
    if processes.returncode or found is None:
        return {"failed": next((line for line in reversed(err.splitlines()) if "Error" in line), "failed")[:160]}
    return {**found, **next(line for line in lines if "peak" in line), "isolated": bool(isolated)}


def job(way: str, model_name: str, ranks: int, steps: int, port: int) -> int:
    """Starts the ranks, looks at their memory, passes on what rank 0 prints."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TOOLKIT), os.environ.get("PYTHONPATH", "")]),
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)},
        **{"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"},
    }
    started = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank", way, model_name, str(steps)],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    first = {process.pid: _ready(process) for process in started}
    peaks = dict(first)
    while any(process.poll() is None for process in started):
        for pid in peaks:
            peaks[pid] = max(peaks[pid], anonymous(pid))
        if any(process.poll() for process in started):  # one has failed: the others wait for it
            time.sleep(5)
            for process in started:
                process.kill()
        time.sleep(0.1)
    print(started[0].stdout.read() if started[0].stdout else "", end="")
    print(json.dumps({"peak": max(peaks[pid] - first[pid] for pid in peaks)}), flush=True)
    return next((process.returncode for process in started if process.returncode), 0)


def _ready(process: subprocess.Popen[str]) -> int:
    """Bytes that a rank has before its model is built."""
    assert process.stdout is not None
    process.stdout.readline()
    return anonymous(process.pid)


def _can_isolate() -> bool:
    if not shutil.which("unshare") or not shutil.which("ip"):
        return False
    tried = subprocess.run(["unshare", "-n", "ip", "link", "set", "lo", "up"], capture_output=True, check=False)
    return tried.returncode == 0


def table(model_name: str, ranks: int, steps: int, ways: list[str]) -> list[str]:
    """One model's rows, as Markdown."""
    alone = play("one process", model_name, 1, steps)
    if "failed" in alone:
        raise SystemExit(f"one process: {alone['failed']}")
    lines = [
        f"{model_name}, {ranks} ranks, {ROWS} rows of {TOKENS} words a step",
        "",
        "| way | step, s | against DDP by hand | memory, MiB | sent by a rank, MiB | predicted step, s | loss |",
        "|---|--:|--:|--:|--:|--:|--:|",
        f"| one process | {median(alone['seconds']):.3f} | | {alone['peak'] / 2**20:.0f} | | | |",
    ]
    base = 0.0
    for way in ways:
        if way.startswith("EP") and model_name != "mixtral":
            continue
        found = play(way, model_name, ranks, steps)
        if "failed" in found:
            lines.append(f"| {way} | {found['failed']} | | | | | |")
        else:
            seconds = median(found["seconds"])
            base = base or (seconds if way == "DDP by hand" else 0.0)
            off = max(abs(a - b) / abs(b) for a, b in zip(found["losses"], alone["losses"], strict=True))
            sent = f"{median(found['sent']) / ranks / 2**20:.2f}" if found["isolated"] else "-"
            ratio = f"{seconds / base:.2f}" if base else ""
            predicted = f"{found['predicted']:.3f}" if "predicted" in found else ""
            lines.append(
                f"| {way} | {seconds:.3f} | {ratio} | {found['peak'] / 2**20:.0f} | {sent} | {predicted} | {off:.0e} |"
            )
        print(lines[-1], flush=True)
    return lines


def main() -> int:
    """0, whatever is found: this measures."""
    if sys.argv[1:2] == ["--rank"]:
        rank_process(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return 0
    if sys.argv[1:2] == ["--job"]:
        way, model_name, ranks, steps, port = sys.argv[2:]
        return job(way, model_name, int(ranks), int(steps), int(port))
    parser = argparse.ArgumentParser(description="Ways to spread a model over ranks.")
    parser.add_argument("--models", nargs="+", default=["gpt2", "mixtral"], choices=["gpt2", "mixtral"])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--out", help="the tables as Markdown")
    options = parser.parse_args()
    found = ["\n".join(table(name, options.ranks, options.steps, options.ways)) for name in options.models]
    text = "\n\n".join(found) + "\n"
    print(f"\n{text}")
    if options.out:
        Path(options.out).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
