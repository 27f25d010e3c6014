"""Eight ranks, one model: what each way to spread it costs in time, memory and bytes, and whether its losses are right.

    python benchmarks/three_d.py [--models gpt2 mixtral] [--ways ...] [--ranks 8] [--steps 6] [--at-once] [--out FILE]

Every way trains the same model on the same batches from the same seed; dropout is off, for ranks of plain torch draw
other numbers than one process. Compared with set-ups by hand in plain torch (DDP, FSDP2), and DeepSpeed's ZeRO where it
is installed.

* step: median seconds of a step with the optimizer's, and its ratio to DDP by hand in this run. All ranks share the cores of
  this machine.
* memory: the most that one rank has at any time after the first two steps, and in all, with the first step, in which ours
  build and verify the whole model: the kernel's high-water mark of memory of its own (Linux), less what the process had when
  it had loaded its libraries, before the model was built. The C library keeps much of what is freed, in pieces below 32 MiB
  as here; with `--at-once` it gives memory back at once. Steps take longer then: read no times from that.
* beside: what a rank has between steps, less its tensors (below the table).
* rank correlation: whether what is predicted to be faster is faster (Spearman's, 1 for the same order; below the table).
* sent: bytes a rank sends in a step, all ranks' mean: what went over the loopback of a network namespace that has nothing
  else in it (Linux, as root; "-" elsewhere).
* predicted: by one plan, which knows the time of the model's modules in one process alone, and what ranks find that measure
  what they have, as in `degrees: auto`: how much slower they are together, and how fast they sum. Then measured / predicted.
  "-" where nothing is predicted: set-ups by hand.
* EP: tensor parallelism of the experts alone, for the Mixtral-like model. TP divides its experts in the same way.
* loss: the largest difference of a step's loss from one process, relative.
* load: of the machine when a way begins: what else it does.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import gc
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

from _spread_plans import considered, entry_of, measuring_process

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
    """One rank, or the one process; all print JSON lines."""
    import torch
    from transformers import GPT2LMHeadModel, MixtralForCausalLM  # noqa: F401

    torch.set_num_threads(1)
    world = int(os.environ["WORLD_SIZE"])
    if world > 1 and way not in _SETUPS:
        from trainshed.parallel import PipelineModel  # noqa: F401
    first = _memory()["RssAnon"]
    if way == MEASURE:
        measuring_process()
        return
    step, facts = _one_process(model_name) if world == 1 else _SETUPS.get(way, _ours)(way, model_name)
    seconds, losses, sent, most = [], [], [], 0
    for number in range(steps + WARM):
        if number == WARM:
            most = _most() - first
            _forget_most()
        before, began = _loopback(), time.perf_counter()
        losses.append(step(number))
        seconds.append(time.perf_counter() - began)
        sent.append(_loopback() - before)
    later = _most() - first
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with torch._C.DisableTorchFunctionSubclass():  # what stands for another rank's parameter refuses to be looked at
        beside = _memory()["RssAnon"] - first - _tensors()
    print(json.dumps({"later": later, "most": max(most, later), "beside": beside}), flush=True)
    if int(os.environ["RANK"]) == 0:
        found = {"seconds": seconds[WARM:], "losses": losses, "sent": sent[WARM:], **facts()}
        print(json.dumps(found), flush=True)


def planning_process(way: str, model_name: str) -> None:
    """Comes to a first step, whose plan is wanted: the experts alone are divided where the way is EP."""
    import torch

    import trainshed.parallel as pipe

    torch.set_num_threads(1)
    pipe.init()
    _, train = _step_of(way, build(model_name))
    train(batch(0, ROWS))


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
    model, train = _step_of(way, build(model_name))
    optimizer = pipe.PipelineOptimizer(_optimizer(model.parameters()))

    def step(number: int) -> float:
        optimizer.zero_grad()
        part = pipe.rdp_rank() if tensor > 1 else pipe.dp_rank()
        loss = train(batch(number, ROWS).chunk(groups)[part]).reduce_mean()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, group=grid.control_group)
        return float(mean) / world

    return step, dict


def _step_of(way: str, module: Any) -> tuple[Any, Any]:
    """The model, of which EP divides the experts alone and TP all; and forward and backward of some rows."""
    import trainshed.parallel as pipe

    for layer in _layers(module) if way.startswith("EP") else ():
        pipe.set_tensor_parallelism(layer.mlp.experts, True)
    model = pipe.PipelineModel(module)

    @pipe.step
    def train(model: Any, row: Any) -> Any:
        loss = model(input_ids=row, labels=row).loss
        model.backward(loss)
        return loss

    return model, functools.partial(train, model)


MEASURE = "measure"
_SETUPS = {"DDP by hand": _by_hand, "FSDP2 by hand": _by_hand, "DeepSpeed ZeRO-3": _deepspeed}


def _loopback() -> int:
    """Bytes that have gone over the loopback of this network namespace."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            return int(counts.split()[0])
    return 0


def _memory() -> dict[str, int]:
    """Bytes of this process by kind, as /proc/PID/status says them."""
    found = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if rest.endswith(" kB"):
            found[name] = int(rest.split()[0]) * 1024
    return found


def _tensors() -> int:
    """Bytes of all tensors that there are."""
    import torch

    storages = {}
    for one in gc.get_objects():
        if isinstance(one, torch.Tensor) and not one.is_meta:
            for tensor in (one, one.grad if one.is_leaf else None):
                own = getattr(tensor, "_local_tensor", tensor)
                if own is not None:
                    storages[own.untyped_storage()._cdata] = own.untyped_storage().nbytes()
    return sum(storages.values())


def _most() -> int:
    """The most bytes of its own that this process has had."""
    now = _memory()
    return now["VmHWM"] - now["RssFile"] - now["RssShmem"]


def _forget_most() -> None:
    """From now on the most is that of what comes; freed memory that the C library keeps goes back first."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # proc_pid_clear_refs(5)


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
    named = () if way == MEASURE else ("later", "most", "beside")
    most = {name: max(line[name] for line in lines if name in line) for name in named}
    return {**found, **most, "isolated": bool(isolated)}


def job(way: str, model_name: str, ranks: int, steps: int, port: int) -> int:
    """Starts the ranks, passes on what they print."""
    environment = {
        **_environment(),
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)},
        "GLOO_SOCKET_IFNAME": "lo",
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
    while any(process.poll() is None for process in started):
        if any(process.poll() for process in started):  # one has failed: the others wait for it
            time.sleep(5)
            for process in started:
                process.kill()
        time.sleep(0.1)
    for process in started:
        print(process.stdout.read() if process.stdout else "", end="", flush=True)
    return next((process.returncode for process in started if process.returncode), 0)


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TOOLKIT), os.environ.get("PYTHONPATH", "")]),
        **{"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"},
    }


def _can_isolate() -> bool:
    if not shutil.which("unshare") or not shutil.which("ip"):
        return False
    tried = subprocess.run(["unshare", "-n", "ip", "link", "set", "lo", "up"], capture_output=True, check=False)
    return tried.returncode == 0


def table(model_name: str, ranks: int, steps: int, ways: list[str]) -> list[str]:
    """One model's rows, as Markdown."""
    ways = [way for way in ways if not way.startswith("EP") or model_name == "mixtral"]
    alone = _played("one process", model_name, 1, steps)
    how = json.loads(_played(MEASURE, model_name, ranks, 0)["how"])
    planned = {
        kind: considered(__file__, ["--plan", kind, model_name], how, _environment())
        for kind in ("TP", "EP")
        if kind == "TP" or any(way.startswith(kind) for way in ways)
    }
    cores = len(os.sched_getaffinity(0))
    speeds = f"{how['gbits']:.2f} Gbit/s, {how['latency'] * 1e6:.0f} us a message"
    lines = [
        f"{model_name}, {ranks} ranks on {cores} cores, {ROWS} rows of {TOKENS} words a step; together they are "
        f"{how['crowd']:.2f} times slower and sum at {speeds}",
        "",
        "| way | step, s | to DDP by hand | predicted | measured / predicted | memory after the first steps, MiB |"
        " predicted | measured / predicted | memory at most, MiB |"
        " sent, MiB | predicted | measured / predicted | loss | load |",
        "|---|" + "--:|" * 13,
        f"| one process | {median(alone['seconds']):.3f} | | | | {_mib(alone['later'])} | | | {_mib(alone['most'])} |"
        + " |" * 5,
    ]
    base, beside, steps_of = 0.0, [], list[tuple[float, float]]()
    for way in ways:
        load = os.getloadavg()[0]
        found = play(way, model_name, ranks, steps)
        if "failed" in found:
            lines.append(f"| {way} | {found['failed']} |" + " |" * 12)
        else:
            seconds = median(found["seconds"])
            base = base or (seconds if way == "DDP by hand" else 0.0)
            off = max(abs(a - b) / abs(b) for a, b in zip(found["losses"], alone["losses"], strict=True))
            settings = WAYS[way]
            beside += [found["beside"]] if settings is not None else []
            entry = {} if settings is None else entry_of(settings, ROWS, ranks, planned["EP" if way[:2] == "EP" else "TP"])
            sent = median(found["sent"]) / ranks / 2**20
            later = found["later"] / 2**20
            steps_of += [(seconds, entry["step_ms"])] if entry else []
            cells = [
                *(f"{seconds:.3f}", f"{seconds / base:.2f}" if base else ""),
                *_against(seconds, entry.get("step_ms", 0.0) / 1e3, 3),
                *(f"{later:.0f}", *_against(later, _process_mib(entry), 0), _mib(found["most"])),
                *((f"{sent:.2f}", *_against(sent, entry.get("sent_mib", 0.0), 2)) if found["isolated"] else ("-", "-", "-")),
                *(f"{off:.0e}", f"{load:.1f}"),
            ]
            lines.append(f"| {way} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    if beside:
        lines += ["", f"Rank correlation of steps, measured and predicted: {_rank_correlation(steps_of):.2f}."]
        lines += [f"Beside tensors the fullest rank of a way has {_mib(min(beside))} to {_mib(max(beside))} MiB."]
    return lines


def _rank_correlation(pairs: list[tuple[float, float]]) -> float:
    """Spearman's, of pairs of different numbers; 1.0 for fewer than two."""
    places = [{value: place for place, value in enumerate(sorted(column))} for column in zip(*pairs, strict=True)]
    off = sum((places[0][measured] - places[1][predicted]) ** 2 for measured, predicted in pairs)
    return 1 - 6 * off / max(1, len(pairs) * (len(pairs) ** 2 - 1))


def _process_mib(entry: dict[str, Any]) -> float:
    """What is predicted of a process after its first step: its tensors, and what it has beside them."""
    return float(entry.get("later_mib", 0.0) + entry.get("process_mib", 0.0))


def _played(way: str, model_name: str, ranks: int, steps: int) -> dict[str, Any]:
    found = play(way, model_name, ranks, steps)
    if "failed" in found:
        raise SystemExit(f"{way}: {found['failed']}")
    return found


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f}"


def _against(measured: float, predicted: float, digits: int) -> tuple[str, str]:
    """What was predicted, and what was measured over that; "-" where nothing was."""
    return (f"{predicted:.{digits}f}", f"{measured / predicted:.2f}") if predicted else ("-", "-")


def main() -> int:
    """0, whatever is found: this measures."""
    if sys.argv[1:2] == ["--plan"]:
        planning_process(*sys.argv[2:])
        return 0
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
    parser.add_argument(
        "--at-once", action="store_true", help="freed memory goes back at once: for memory, and not for times"
    )
    parser.add_argument("--out", help="the tables as Markdown")
    options = parser.parse_args()
    if options.at_once:
        os.environ["MALLOC_MMAP_THRESHOLD_"] = str(2**16)  # mallopt(3)
    found = ["\n".join(table(name, options.ranks, options.steps, options.ways)) for name in options.models]
    text = "\n\n".join(found) + "\n"
    print(f"\n{text}")
    if options.out:
        Path(options.out).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
