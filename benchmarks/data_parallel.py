"""Steps of DDP whose gradients pass slow links between hosts: its own exchange beside trainshed's (docs/data-parallel.md).

    sudo python benchmarks/data_parallel.py --out FILE [--links 1000 500 200] [--layouts 4x1 2x2 2x4] [--megabytes 24 200]
    sudo python benchmarks/data_parallel.py --out FILE --only 2x2:500:24 4x1:200:24:real     # some cells
    python benchmarks/data_parallel.py --out FILE --table                                   # what was measured until now

Hosts are network namespaces of this machine, joined by a bridge; each host's link is limited both ways by `tc tbf`, so
that all ranks of a host share it (0 Mbit/s: not limited). Needs root, iproute2 and the kernel's sch_tbf; Linux only. Models:
`sleep` computes by sleeping (0.315 s a step, 12 layers), so that few cores are enough for many ranks; `real` is a small
transformer on one thread. A cell is a job of its own, and one line of the file: cells that are there are not measured again.
Its rows take turns (`--rounds`), so that what else the machine does hits all alike; medians of their steps are compared.

Rows: DDP as it is; DDP with the best of four buckets, tried by hand; `accelerate` with `auto`, and `bf16`; `LocalSteps`,
whose steps hold their part of an exchange. "Waits" is a step less the same step without an exchange (`no_sync`).
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _claims import claim

ROOT = Path(__file__).resolve().parents[1]
LAYERS, FORWARD, BACKWARD = 12, 0.010, 0.01625  # seconds a layer
BY_HAND = (1, 2, 5, 10)  # MiB of a bucket, beside DDP's own 25
EVERY = 16  # steps of LocalSteps between exchanges
SETTLED = 18  # steps after which `accelerate` has decided and compared
FEWEST, MOST, LONG = 3, 8, 8.0  # steps of a row in a round: so many, and no more than take so many seconds
ROWS = ("ddp", "by hand", "auto", "bf16", "powersgd", "local")
PREFIX = f"tsdp{os.getpid()}"


# --- hosts ---


def run(*words: str) -> None:
    """Runs a command; its words are its error."""
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr.strip()}")


@contextlib.contextmanager
def joined_hosts(count: int, megabits: int) -> Iterator[list[str]]:
    """Names of namespaces, each with one link of that rate to a bridge."""
    bridge, spaces = f"{PREFIX}-bridge", [f"{PREFIX}-{number}" for number in range(count)]
    try:
        run("ip", "netns", "add", bridge)
        run("ip", "-n", bridge, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", bridge, "link", "set", "br0", "up")
        for number, space in enumerate(spaces):
            run("ip", "netns", "add", space)
            run("ip", "link", "add", "link0", "netns", space, "type", "veth", "peer", "name", f"p{number}", "netns", bridge)
            run("ip", "-n", bridge, "link", "set", f"p{number}", "master", "br0", "up")
            run("ip", "-n", space, "addr", "add", f"10.78.0.{number + 1}/24", "dev", "link0")
            run("ip", "-n", space, "link", "set", "link0", "up")
            run("ip", "-n", space, "link", "set", "lo", "up")
            for where, device in ((space, "link0"), (bridge, f"p{number}")):
                limit = ("tbf", "rate", f"{megabits}mbit", "burst", "256kb", "latency", "400ms")
                if megabits:
                    run("ip", "netns", "exec", where, "tc", "qdisc", "add", "dev", device, "root", *limit)
        yield spaces
    finally:
        for space in (*spaces, bridge):
            subprocess.run(["ip", "netns", "del", space], capture_output=True)


def measure(
    layout: tuple[int, int], megabits: int, model: str, megabytes: int, rounds: int, rows: list[str]
) -> dict[str, Any]:
    """What rank 0 found."""
    hosts, each = layout
    with joined_hosts(hosts, megabits) as spaces, tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(hosts * each):
            environ = {
                **os.environ, "RANK": str(rank), "WORLD_SIZE": str(hosts * each), "LOCAL_RANK": str(rank % each),
                "LOCAL_WORLD_SIZE": str(each), "GROUP_RANK": str(rank // each), "MASTER_ADDR": "10.78.0.1",
                "MASTER_PORT": "29611", "GLOO_SOCKET_IFNAME": "link0", "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(ROOT / "toolkit"),
            }  # fmt: skip
            words = [sys.executable, __file__, "--rank", folder, model, str(megabytes), str(rounds), *rows]
            ranks.append(subprocess.Popen(["ip", "netns", "exec", spaces[rank // each], *words], env=environ))
        try:
            codes = [process.wait(timeout=3600) for process in ranks]
        finally:
            for process in ranks:
                process.kill()
        if any(codes):
            raise SystemExit(f"a rank failed: {codes}")
        return dict(json.loads(Path(folder, "found.json").read_text()))


# --- ranks ---


def make_model(kind: str, megabytes: int) -> tuple[Any, Any]:
    """A model and its batch."""
    import torch
    from torch import nn

    class Sleeping(torch.autograd.Function):
        """A layer's computation, as long as it is told; its gradients differ by rank."""

        @staticmethod
        def forward(context: Any, x: Any, weight: Any) -> Any:
            time.sleep(FORWARD)
            context.save_for_backward(weight)
            return x + 0

        @staticmethod
        def backward(context: Any, *grads: Any) -> Any:
            time.sleep(BACKWARD)
            (weight,) = context.saved_tensors
            return grads[0], weight * (1 + int(os.environ["RANK"]))

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(megabytes * 2**20 // 4 // LAYERS // 1024, 1024))

        def forward(self, x: Any) -> Any:
            return Sleeping.apply(x, self.weight)

    torch.manual_seed(0)
    if kind == "sleep":
        return nn.Sequential(*[Layer() for _ in range(LAYERS)]), torch.ones(1, requires_grad=True)
    width = 64 * max(1, round((megabytes * 2**20 / 4 / LAYERS / 12) ** 0.5 / 64))
    block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(block, LAYERS, enable_nested_tensor=False), torch.randn(2, 24, width)


def sent_bytes() -> int:
    """What this host has sent over its link."""
    return int(Path("/sys/class/net/link0/statistics/tx_bytes").read_text())


def used() -> float:
    """Seconds of CPU that this process has used."""
    times = resource.getrusage(resource.RUSAGE_SELF)
    return times.ru_utime + times.ru_stime


class Trainer:
    """The models of all rows, which have one memory for their parameters, and how to train them."""

    def __init__(self, kind: str, megabytes: int) -> None:
        self.kind = kind
        self.model, self.batch = make_model(kind, megabytes)
        self.models: dict[str, Any] = {}
        self.optimizers: dict[str, Any] = {}
        self.said: dict[str, list[str]] = {}
        self.bucket = 25

    def make(self, row: str, bucket: int = 25) -> None:
        """A model of a row, and the steps until it goes as it will."""
        import torch
        from torch.nn.parallel import DistributedDataParallel as DDP

        from trainshed.parallel import data

        module = copy.deepcopy(self.model)
        if row != "local":
            for own, first in zip(module.parameters(), self.model.parameters(), strict=True):
                own.data = first.data
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            if row == "local":
                self.models[row] = DDP(module, process_group=data.host_group())
                self.optimizers[row] = torch.optim.SGD(module.parameters(), lr=0.0)
                self.local = data.LocalSteps(self.models[row], self.optimizers[row], every=EVERY)
            else:
                self.models[row] = DDP(module, **({} if bucket == 25 else {"bucket_cap_mb": bucket}))
            if row in ("auto", "bf16"):
                data.accelerate(self.models[row], row)
            elif row == "powersgd":
                from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

                state = power.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
                self.models[row].register_comm_hook(state, power.powerSGD_hook)
            self.steps(row, SETTLED if row in ("auto", "bf16") else 4)
        self.said[row] = said.getvalue().splitlines()

    def choose_by_hand(self) -> None:
        """Takes the bucket whose steps are shortest on the slowest rank, as a person would who has tried some."""
        import torch
        import torch.distributed as dist

        tried: dict[int, float] = {}
        for bucket in (*BY_HAND, 0):
            bucket = bucket or min(tried, key=lambda one: tried[one])
            self.models.pop("by hand", None)
            self.make("by hand", bucket)
            if bucket not in tried:
                seconds = torch.tensor(statistics.median(self.steps("by hand", FEWEST)))
                dist.all_reduce(seconds, dist.ReduceOp.MAX)
                tried[bucket] = seconds.item()
        self.bucket = min(tried, key=lambda one: tried[one])

    def steps(self, row: str, count: int, exchange: bool = True) -> list[float]:
        """Seconds of steps."""
        times, model, optimizer = [], self.models[row], self.optimizers.get(row)
        for _ in range(count):
            model.zero_grad()
            began = time.monotonic()
            with contextlib.nullcontext() if exchange else model.no_sync():
                out = model(self.batch)
                (out.square().mean() if self.kind == "real" else out.sum()).backward()
            if optimizer is not None and exchange:
                optimizer.step()
            times.append(time.monotonic() - began)
        return times


def rank_main(folder: str, kind: str, megabytes: int, rounds: int, rows: list[str]) -> None:
    """Trains by each row in turn, and has rank 0 write what it found."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    trainer = Trainer(kind, megabytes)
    for row in rows:
        trainer.choose_by_hand() if row == "by hand" else trainer.make(row)
    pace = torch.tensor(statistics.median(trainer.steps(rows[0], FEWEST)))
    dist.broadcast(pace, 0)
    count = max(FEWEST, min(MOST, round(LONG / pace.item())))
    seconds: dict[str, list[float]] = {row: [] for row in rows}
    alone: list[float] = []
    measured: dict[str, dict[str, float]] = {row: {} for row in rows}
    whole: list[Any] = []
    for turn in range(rounds):
        alone += trainer.steps(rows[0], FEWEST, exchange=False)
        for row in rows:
            steps = EVERY if row == "local" else count
            dist.barrier()
            before, cpu = sent_bytes(), used()
            times = trainer.steps(row, steps)
            seconds[row] += [sum(times) / steps] if row == "local" else times
            measured[row]["cpu"] = (used() - cpu) / steps
            measured[row]["sent"] = (sent_bytes() - before) // steps
            dist.barrier()
            grads = [one.grad for one in trainer.models[row].parameters()]
            if rank == 0 and turn == rounds - 1 and row != "local":
                whole = whole or grads
                pairs = zip(whole, grads, strict=True)
                measured[row]["difference"] = max(float((one - other).abs().max() / one.abs().max()) for one, other in pairs)
            trainer.models[row].zero_grad()
    if rank == 0:
        found: dict[str, Any] = {"gradients": sum(one.numel() for one in trainer.model.parameters()) * 4 / 2**20}
        found |= {"computes": statistics.median(alone), "by hand, MiB": trainer.bucket, "torch": torch.__version__}
        for row in rows:
            found[row] = {"seconds": statistics.median(seconds[row]), **measured[row], "said": trainer.said[row]}
        Path(folder, "found.json").write_text(json.dumps(found))
    dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


# --- the table ---


HEADS = (
    "model",
    "gradients",
    "hosts x ranks",
    "link, Mbit/s",
    "computes, s",
    "DDP, s (waits)",
    "best bucket",
    "`auto`",
    "`bf16`",
    "PowerSGD, rank 1",
)
HEADS += (f"`LocalSteps`, {EVERY}", "MB a host sends", "`auto` - DDP", "`bf16` - DDP")


def line(cell: dict[str, Any]) -> str:
    """A row of the table."""
    ddp = cell["ddp"]["seconds"]

    def beside(row: str) -> str:
        one = cell.get(row)
        if one is None:
            return ""
        left = ", left to DDP" if any("left to DDP" in said or "given back" in said for said in one["said"]) else ""
        by_hand = f", {cell['by hand, MiB']} MiB" if row == "by hand" else ""
        waits = max(0.0, one["seconds"] - cell["computes"])
        return f"{ddp / one['seconds']:.2f}x: {one['seconds']:.3f} ({waits:.3f}){by_hand}{left}"

    sent = ", ".join(f"{cell[row]['sent'] / 1e6:.0f}" for row in ROWS if row in cell)
    words = [cell["model"], f"{cell['gradients']:.0f} MiB", cell["layout"], str(cell["link"]), f"{cell['computes']:.3f}"]
    words += [f"{ddp:.3f} ({max(0.0, ddp - cell['computes']):.3f})", *(beside(row) for row in ROWS[1:]), sent]
    words += [f"{cell[row]['difference']:.1g}" if row in cell else "" for row in ("auto", "bf16")]
    return f"| {' | '.join(words)} |"


def known_cells(path: Path | None) -> list[dict[str, Any]]:
    """What a file of results holds."""
    return [json.loads(text) for text in path.read_text().splitlines()] if path is not None and path.exists() else []


def name_of(cell: dict[str, Any]) -> str:
    """As `--only` takes it."""
    return f"{cell['layout']}:{cell['link']}:{cell['megabytes']}:{cell['model']}"


def main() -> None:
    """Prints one line a cell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", type=int, nargs="+", default=[1000, 500, 200], metavar="MBIT", help="of a host")
    parser.add_argument("--layouts", nargs="+", default=["4x1", "2x2", "2x4"], metavar="HxR", help="hosts x ranks on each")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[24, 200], help="of gradients (MiB)")
    parser.add_argument("--models", nargs="+", default=["sleep"], choices=["sleep", "real"])
    parser.add_argument("--only", nargs="+", metavar="HxR:MBIT:MIB[:MODEL]", help="these cells instead")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS, help="DDP is always there")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, metavar="FILE", help="results, a line of JSON a cell; cells in it are done")
    parser.add_argument("--again", action="store_true", help="measure cells that are in the file, too")
    parser.add_argument("--table", action="store_true", help="print what the file holds, and measure nothing")
    options = parser.parse_args()
    print(f"| {' | '.join(HEADS)} |\n|{'---|' * len(HEADS)}", flush=True)
    known = known_cells(options.out)
    if options.table:
        print("\n".join(line(cell) for cell in {name_of(cell): cell for cell in known}.values()))
        return
    rows = ["ddp", *(row for row in ROWS[1:] if row in options.rows)]
    names = options.only or [
        f"{layout}:{link}:{megabytes}:{model}"
        for model in options.models
        for megabytes in options.megabytes
        for layout in options.layouts
        for link in options.links
    ]
    done: Callable[[str], bool] = {name_of(cell) for cell in known}.__contains__
    for name in names:
        layout, link, megabytes, model = (*name.split(":"), "sleep")[:4]
        cell: dict[str, Any] = {"layout": layout, "link": int(link), "megabytes": int(megabytes), "model": model}
        if done(name_of(cell)) and not options.again:
            continue
        hosts, each = map(int, layout.split("x"))
        began = time.monotonic()
        cell |= measure((hosts, each), int(link), model, int(megabytes), options.rounds, rows)
        cell |= {"took": time.monotonic() - began, "load": os.getloadavg()[0], "cores": os.cpu_count()}
        if options.out is not None:
            with options.out.open("a") as file:
                file.write(json.dumps(cell) + "\n")
        print(line(cell), flush=True)
        for row in ("ddp", "powersgd") if "auto" in cell else ():
            if row in cell:
                what = f"data parallelism: a step with auto, {name_of(cell)}, beside {row}"
                claim(
                    what,
                    cell["auto"]["seconds"],
                    "s",
                    times=1.0 if row == "ddp" else None,
                    peer=cell[row]["seconds"],
                    peer_name=row,
                )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank_main(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), sys.argv[6:])
    else:
        main()
