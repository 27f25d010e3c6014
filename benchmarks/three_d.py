"""Eight ranks, one model: what each way to spread it costs in time, memory and bytes, and whether its losses are right.

    python benchmarks/three_d.py [--models gpt2 mixtral] [--ways ...] [--ranks 8] [--steps 6] [--out FILE] [--workdir DIR]

Every way trains the same model on the same batches from the same seed; dropout is off, for ranks of plain torch draw
other numbers than one process. Compared with set-ups by hand in plain torch (DDP, FSDP2), and DeepSpeed's ZeRO where it
can be installed (into an environment of its own in --workdir).

* step: median seconds of a step with its optimizer's, and its ratio to DDP by hand in this run. All ranks share the cores
  of this machine.
* predicted: by a plan that times the model in one process and knows what `means.measure` finds: how much slower ranks are
  that share the cores, and how fast they sum. It is for this machine, with all its ranks on it. "-" where nothing plans:
  set-ups by hand, context parallelism.
* memory: the most that one rank has of memory of its own (`Anonymous` of /proc/PID/smaps_rollup, looked at twenty times a
  second) in the steps that are timed, less what it had before the model was built; and at any time, with the first step,
  which builds and verifies the whole model.
* sent: bytes a rank sends in a step, all ranks' mean: what went over the loopback of a network namespace that has nothing
  else in it (Linux, as root; "-" elsewhere).
* EP: tensor parallelism of the experts alone, for the Mixtral-like model. TP divides its experts in the same way.
* loss: the largest difference of a step's loss from one process, relative.
* load: of the machine when a row begins: what else it does.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from _measure import BenchError
from _venvs import Venvs

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
    "CP 2 x DP 4": {"partitions": 1, "context_parallel_degree": 2},
}
# Freed memory goes back to the system, as the docs advise: else what a rank has is what it has had.
RETURNS = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
DEEPSPEED = ("--no-deps", "deepspeed", "hjson", "msgpack", "ninja", "py-cpuinfo", "einops", "pydantic", "pydantic-core",
             "annotated-types", "typing-inspection", "tqdm", "packaging")  # fmt: skip


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
        if number == WARM:
            Path(os.environ["STEADY"], str(os.getpid())).touch()
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
    groups = world // settings["partitions"] // tensor // settings.get("context_parallel_degree", 1)
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

    return step, dict


def planning_process(way: str, model_name: str) -> None:
    """Ends with a plan, as a script that `trainshed plan` runs: the experts alone are divided where the way is EP."""
    import torch

    import trainshed.parallel as pipe

    torch.set_num_threads(1)
    pipe.init()
    module = build(model_name)
    if way.startswith("EP"):
        for layer in _layers(module):
            pipe.set_tensor_parallelism(layer.mlp.experts, True)
    model = pipe.PipelineModel(module)

    @pipe.step
    def train(model: Any, row: Any) -> Any:
        loss = model(input_ids=row, labels=row).loss
        model.backward(loss)
        return loss

    train(model, batch(0, ROWS))


def measuring_process() -> None:
    """One of the ranks that find out what they have to work with; the first one prints it, as a plan is told."""
    import torch

    from trainshed.contract.wire.pipeline import PipelineSettings
    from trainshed.parallel.grid import join
    from trainshed.parallel.means import measure

    torch.set_num_threads(1)
    print(json.dumps({"ready": os.getpid()}), flush=True)
    settings, device = PipelineSettings(), torch.device("cpu")
    joined = join(settings, device)
    how = measure(joined, settings, device)
    if joined.rank == 0:
        print(json.dumps({"seconds": [], "how": how.text()}), flush=True)


def predictions(way: str, model_name: str, ranks: int) -> list[dict[str, Any]]:
    """All ways that a plan considers, for microbatches of one row."""
    how = json.loads(play(MEASURE, model_name, ranks, 0)["how"])
    how.update(count=False, slower=1.0, limit_mib=0)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plan.json")
        environment = {
            **os.environ,
            **RETURNS,
            **{"PYTHONPATH": os.pathsep.join([str(TOOLKIT), os.environ.get("PYTHONPATH", "")])},
            **{"TRAINSHED_PLAN_ONLY": path, "TRAINSHED_PLAN_HOW": json.dumps(how), "OMP_NUM_THREADS": "1"},
            **{"TRAINSHED_PIPELINE": json.dumps({"degrees": "auto", "pipeline": "interleaved"})},
            **{"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"},
        }
        command = [sys.executable, "-m", "trainshed.parallel.plan", __file__, "--plan", way, model_name]
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=TIMEOUT_S)
        found: list[dict[str, Any]] = json.loads(Path(path).read_text())["considered"]
    machine = f"{how['crowd']:.2f} times slower together, {how['gbits']:.2f} Gbit/s, {how['latency'] * 1e6:.0f} us"
    print(f"predictions for {way.split()[0]}: {machine}", file=sys.stderr, flush=True)
    return found


def predicted_for(way: str, considered: list[dict[str, Any]], ranks: int) -> dict[str, Any]:
    """The entry of a way; empty where none was planned."""
    settings = WAYS[way]
    if settings is None or "context_parallel_degree" in settings:
        return {}
    stages, tensor = settings["partitions"], settings.get("tensor_parallel_degree", 1)
    replicas = ranks // stages // tensor
    wanted = {
        "stages": stages,
        "tensor": tensor,
        "replicas": replicas,
        "sharded": settings.get("sharded_data_parallel_degree", 1),
        "shard_optimizer_state": settings.get("shard_optimizer_state", False),
        "microbatches": ROWS // replicas,
    }
    return next((one for one in considered if all(one.get(k) == v for k, v in wanted.items()) and "step_ms" in one), {})


MEASURE = "measure"
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


def play(way: str, model_name: str, ranks: int, steps: int, python: str = sys.executable) -> dict[str, Any]:
    """What the ranks found, or {"failed": why}.

    Args:
        python: the interpreter of the ranks.
    """
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    isolated = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"] if _can_isolate() else []
    command = [*isolated, python, __file__, "--job", way, model_name, str(ranks), str(steps), str(port)]
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
    steady = tempfile.mkdtemp()
    environment = {
        **os.environ,
        **RETURNS,
        "PYTHONPATH": os.pathsep.join([str(TOOLKIT), os.environ.get("PYTHONPATH", "")]),
        "STEADY": steady,
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
    peaks, during = dict(first), dict(first)
    while any(process.poll() is None for process in started):
        for pid in peaks:
            now = anonymous(pid)
            peaks[pid] = max(peaks[pid], now)
            if os.path.exists(os.path.join(steady, str(pid))):
                during[pid] = max(during[pid], now)
        if any(process.poll() for process in started):  # one has failed: the others wait for it
            time.sleep(5)
            for process in started:
                process.kill()
        time.sleep(0.05)
    shutil.rmtree(steady)
    print(started[0].stdout.read() if started[0].stdout else "", end="")
    most = {"peak": max(peaks[pid] - first[pid] for pid in peaks), "during": max(during[pid] - first[pid] for pid in peaks)}
    print(json.dumps(most), flush=True)
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


def table(model_name: str, ranks: int, steps: int, ways: list[str], workdir: Path) -> list[str]:
    """One model's rows, as Markdown."""
    alone = play("one process", model_name, 1, steps)
    if "failed" in alone:
        raise SystemExit(f"one process: {alone['failed']}")
    planned = predictions("ways", model_name, ranks)
    experts = predictions("EP", model_name, ranks) if model_name == "mixtral" else []
    lines = [
        f"{model_name}, {ranks} ranks on {len(os.sched_getaffinity(0))} cores, {ROWS} rows of {TOKENS} words a step",
        "",
        "| way | step, s | to DDP by hand | predicted, s | measured / predicted | memory in steps, MiB | predicted, MiB |"
        " measured / predicted | memory at most, MiB | sent by a rank, MiB | loss | load |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
        f"| one process | {median(alone['seconds']):.3f} | | | | {alone['during'] / 2**20:.0f} | | |"
        f" {alone['peak'] / 2**20:.0f} | | | |",
    ]
    base = 0.0
    for way in ways:
        if way.startswith("EP") and model_name != "mixtral":
            continue
        load = os.getloadavg()[0]
        python = sys.executable
        if way.startswith("DeepSpeed"):
            try:
                python = Venvs(workdir, sys.executable).with_torch("deepspeed", DEEPSPEED)
            except BenchError as error:
                lines.append(f"| {way} | not installed: {str(error).splitlines()[-1][:80]} | | | | | | | | | | |")
                continue
        found = play(way, model_name, ranks, steps, python)
        if "failed" in found:
            lines.append(f"| {way} | {found['failed']} | | | | | | | | | | |")
        else:
            seconds, memory = median(found["seconds"]), found["during"] / 2**20
            base = base or (seconds if way == "DDP by hand" else 0.0)
            off = max(abs(a - b) / abs(b) for a, b in zip(found["losses"], alone["losses"], strict=True))
            sent = f"{median(found['sent']) / ranks / 2**20:.2f}" if found["isolated"] else "-"
            entry = predicted_for(way, experts if way.startswith("EP") else planned, ranks)
            time_cells = memory_cells = "- | -"
            if entry:
                expected, most = entry["step_ms"] / 1e3, entry["memory_mib"]
                time_cells = f"{expected:.3f} | {seconds / expected:.2f}"
                memory_cells = f"{most:.0f} | {memory / most:.2f}"
            ratio = f"{seconds / base:.2f}" if base else ""
            lines.append(
                f"| {way} | {seconds:.3f} | {ratio} | {time_cells} | {memory:.0f} | {memory_cells} |"
                f" {found['peak'] / 2**20:.0f} | {sent} | {off:.0e} | {load:.1f} |"
            )
        print(lines[-1], flush=True)
    return lines


def main() -> int:
    """0, whatever is found: this measures."""
    if sys.argv[1:2] == ["--plan"]:
        planning_process(*sys.argv[2:4])
        return 0
    if sys.argv[1:2] == ["--rank"]:
        if sys.argv[2] == MEASURE:
            measuring_process()
            return 0
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
    parser.add_argument("--workdir", type=Path, default=Path(tempfile.gettempdir()) / "trainshed-bench", help="environments")
    options = parser.parse_args()
    found = ["\n".join(table(name, options.ranks, options.steps, options.ways, options.workdir)) for name in options.models]
    text = "\n\n".join(found) + "\n"
    print(f"\n{text}")
    if options.out:
        Path(options.out).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
