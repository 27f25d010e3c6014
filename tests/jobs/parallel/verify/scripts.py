"""Scripts that are parallel by torch's own means, made of one template: those that are right, and those with one defect."""

from __future__ import annotations

import textwrap

_HEAD = """\
import torch, torch.nn.functional as F, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, MixedPrecisionPolicy
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
g = torch.Generator().manual_seed(7)
X, Y = torch.randn(32, 6, generator=g), torch.randint(4, (32,), generator=g)
"""
PARTS = {
    "data": """
        data = TensorDataset(X, Y)
        sampler = DistributedSampler(data)
        loader = DataLoader(data, batch_size=8, sampler=sampler)""",
    "model": """
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))""",
    "wrap": """
        torch.manual_seed(1 + rank)
        model = DDP(model)""",
    "optimizer": "optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)",
    "epoch": "sampler.set_epoch(epoch)",
    "loss": "loss = F.cross_entropy(model(x), y)",
    "backward": "loss.backward()",
    "reduce": "",
    "update": "optimizer.step()",
    "after": "optimizer.zero_grad()",
}
_LOOP = """
for epoch in range(9):
{epoch}
    for number, (x, y) in enumerate(loader):
{body}
"""


def script(**parts: str) -> str:
    """The template with these parts in the place of the usual ones; `loop` stands for the whole loop."""
    given = {name: textwrap.dedent(text).strip("\n") for name, text in {**PARTS, **parts}.items()}
    top = "\n".join(given[name] for name in ("data", "model", "wrap", "optimizer"))
    body = "\n".join(given[name] for name in ("loss", "backward", "reduce", "update", "after"))
    loop = given.get("loop") or _LOOP.format(
        epoch=textwrap.indent(given["epoch"] or "pass", " " * 4), body=textwrap.indent(body, " " * 8)
    )
    return f"{_HEAD}{top}\n{loop}\n"


def planted(expected: str, **parts: str) -> tuple[str, str]:
    return expected, script(**parts)


# Parts that several scripts have.
NO_DDP = "torch.manual_seed(1 + rank)"
MEAN = "for p in model.parameters(): dist.all_reduce(p.grad); p.grad /= world"
SLICES = "loader = [(X[i + rank : i + 8 : world], Y[i + rank : i + 8 : world]) for i in range(0, 32, 8)]"
UNEVEN = """
    rows = (0, 11, 32) if world == 2 else (0, 32)
    data = Subset(TensorDataset(X, Y), range(rows[rank], rows[rank + 1]))
    loader = DataLoader(data, batch_size=11 if rank == 0 else 21)"""
FSDP = """
    fully_shard(model[0])
    fully_shard(model)
    torch.manual_seed(1 + rank)"""
TP = """
    mesh = init_device_mesh("cpu", (world,))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    torch.manual_seed(1)"""
TP_DATA = "loader = DataLoader(TensorDataset(X, Y), batch_size=8)"
CLIP = "nn.utils.clip_grad_norm_(model.parameters(), 0.05)"
TOKENS = """
    g = torch.Generator().manual_seed(3)
    T = torch.randint(1, 9, (32, 10), generator=g)
    L = torch.randint(3, 10, (32,), generator=g)
    L[:16] = L[:16].clamp(max=5)
    pad = torch.arange(10)[None] >= L[:, None]
    T[pad] = 0
    rows = Subset(TensorDataset(T, T.masked_fill(pad, -100)), range(rank * 32 // world, (rank + 1) * 32 // world))
    loader = DataLoader(rows, batch_size=16 // world)"""
TEXT = """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 9))"""
OWN_NORM = """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))"""
WIDE = """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 4))"""
COUNTER = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 4)
            self.register_buffer("mean", torch.zeros(6))
        def forward(self, x):
            with torch.no_grad(): {count}
            return self.b(torch.tanh(self.a(x - self.mean.detach() * 0)))
    torch.manual_seed(0)
    model = Net()"""
TIED = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.mid, self.head = nn.Embedding(9, 8), nn.Linear(8, 8), nn.Linear(8, 9, bias=False)
            self.head.weight = self.emb.weight
        def forward(self, x): return self.head(torch.tanh(self.mid(self.emb(x))))
    torch.manual_seed(0)
    model = Net()"""
UNUSED = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 4), nn.Linear(8, 4)
        def forward(self, x): return self.b(torch.tanh(self.a(x)))
    torch.manual_seed(0)
    model = Net()"""
ACCUMULATE = """
    from contextlib import nullcontext
    with nullcontext() if number % 2 else model.no_sync():
        loss = F.cross_entropy(model(x), y)
        (loss / 2).backward()"""
EVERY_SECOND = """
    if number % 2 == 0: continue
    optimizer.step()"""
TOKEN_LOSS = "loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction='sum')"
GLOBAL_TOKENS = """
    count = (y != -100).sum().float()
    dist.all_reduce(count)
    loss = loss * world / count
    loss.backward()"""
SYNCED = """
    from torch.distributed.nn.functional import all_reduce
    class Norm(nn.Module):
        def forward(self, x):
            s = all_reduce(torch.stack([x.mean(0), x.square().mean(0)])) / world
            return (x - s[0]) / (s[1] - s[0] ** 2 + 1e-5).sqrt()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), Norm(), nn.Linear(16, 4))"""

OWN = """
    def made(step):
        g = torch.Generator().manual_seed(100 * step + rank)
        return torch.randn(8, 6, generator=g), torch.randint(4, (8,), generator=g)
    loader = [made(step) for step in range(4)]"""

# Causes that N ranks and one process agree with.
MILD = {"dropout"}
# name -> (the cause that has to be found, the script)
PLANTED = {
    "summed and not averaged": planted("sum", wrap=NO_DDP, reduce="for p in model.parameters(): dist.all_reduce(p.grad)"),
    "never reduced": planted("not reduced", wrap=NO_DDP),
    "one parameter not reduced": planted(
        "some not reduced",
        wrap=NO_DDP,
        reduce="for p in list(model.parameters())[1:]: dist.all_reduce(p.grad); p.grad /= world",
    ),
    "divided again after DDP": planted("averaged twice", reduce="for p in model.parameters(): p.grad /= world"),
    "loss divided by the ranks as well": planted("averaged twice", backward="(loss / world).backward()"),
    "a loop of slices, summed": planted(
        "sum", data=SLICES, epoch="", wrap=NO_DDP, reduce="for p in model.parameters(): dist.all_reduce(p.grad)"
    ),
    "batches made by each rank, summed": planted(
        "sum", data=OWN, epoch="", wrap=NO_DDP, reduce="for p in model.parameters(): dist.all_reduce(p.grad)"
    ),
    "batches made by each rank, loss divided": planted(
        "averaged twice", data=OWN, epoch="", backward="(loss / world).backward()"
    ),
    "forward past DDP": planted("past DDP", loss="loss = F.cross_entropy(model.module(x), y)"),
    "the last backward in no_sync": planted(
        "no sync",
        loss="""
            with model.no_sync(): F.cross_entropy(model(x), y).backward()""",
        backward="",
    ),
    "no_sync after the first of two": planted(
        "no sync",
        loss=ACCUMULATE.replace("if number % 2", "if number % 2 == 0"),
        backward="",
        update=EVERY_SECOND,
    ),
    "clipped before the sum": planted("clipped by rank", wrap=NO_DDP, reduce=f"{CLIP}\n{MEAN}"),
    "clipped by the norm of shards": planted(
        "changed by rank",
        wrap=FSDP,
        reduce="""
            total = sum(p.grad.to_local().norm() ** 2 for p in model.parameters()) ** 0.5
            for p in model.parameters(): p.grad.to_local().mul_((0.05 / total).clamp(max=1))""",
    ),
    "each rank clips its own way": planted(
        "changed by rank", reduce="for p in model.parameters(): p.grad.clamp_(-0.01 * (rank + 1), 0.01 * (rank + 1))"
    ),
    "rate scaled twice": planted(
        "rate", optimizer="optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * world * world)"
    ),
    "rate by rank": planted(
        "rates by rank", optimizer="optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * (rank + 1))"
    ),
    "no sampler": planted("same data", data="loader = DataLoader(TensorDataset(X, Y), batch_size=8)", epoch=""),
    "no set_epoch": planted("epoch", epoch=""),
    "dropout the same": planted("dropout", model=WIDE, wrap="model = DDP(model)"),
    "batch norm by rank": planted("batch norm", model=OWN_NORM),
    "stale buffers": planted(
        "buffers",
        model=COUNTER.format(count="self.mean.lerp_(x.mean(0), 0.1)"),
        wrap="model = DDP(model, broadcast_buffers=False)",
    ),
    "other parameters at the start": planted(
        "start",
        model="""
            torch.manual_seed(rank)
            model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))""",
        wrap=NO_DDP,
        reduce=MEAN,
    ),
    "shards of other models": planted(
        "start",
        model="""
            torch.manual_seed(rank)
            model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))""",
        wrap=FSDP,
    ),
    "mean of uneven tokens": planted(
        "uneven tokens",
        data=TOKENS,
        model=TEXT,
        epoch="",
        loss="loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())",
    ),
    "mean of uneven rows": planted("uneven rows", data=UNEVEN, epoch=""),
    "padding in the loss": planted(
        "padding",
        data=TOKENS,
        model=TEXT,
        epoch="",
        loss="loss = F.cross_entropy(model(x).flatten(0, 1), y.clamp(min=0).flatten())",
    ),
    "clipped while scaled": planted(
        "scaler",
        optimizer=f"{PARTS['optimizer']}\nscaler = torch.amp.GradScaler('cpu', init_scale=8.0)",
        backward="scaler.scale(loss).backward()",
        reduce=CLIP,
        update="scaler.step(optimizer); scaler.update()",
    ),
    "unused parameters": planted("unused", model=UNUSED),
    "a tie that sharding breaks": planted(
        "tie",
        data=TOKENS,
        model=TIED,
        wrap="fully_shard(model.emb); fully_shard(model.head); fully_shard(model); torch.manual_seed(1 + rank)",
        epoch="",
        loss="loss = F.cross_entropy(model(x).flatten(0, 1), y.clamp(min=1).flatten(), ignore_index=1)",
    ),
    "the optimizer has what was before": planted(
        "optimizer",
        wrap="optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n" + FSDP.replace("\n    ", "\n"),
        optimizer="",
    ),
    "no gradient from FSDP": planted(
        "no gradient", wrap=FSDP, loss="model.set_requires_gradient_sync(False)\n" + PARTS["loss"]
    ),
    "tensor group with other rows": planted("twins", wrap=TP),
    "softmax of a part": planted(
        "module", data=TP_DATA, epoch="", model=PARTS["model"].replace("nn.Tanh()", "nn.Softmax(-1)"), wrap=TP
    ),
    "a tie that a tensor group breaks": planted(
        "tie",
        data="loader = DataLoader(TensorDataset(torch.arange(9).repeat(4, 2), torch.arange(9).repeat(4, 2)), batch_size=2)",
        model=TIED,
        wrap="""
            plan = {"emb": RowwiseParallel(input_layouts=Replicate()), "head": ColwiseParallel(output_layouts=Replicate())}
            parallelize_module(model, init_device_mesh("cpu", (world,)), plan)""",
        epoch="",
        loss="loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())",
    ),
    "other weight decay on each rank": planted(
        "weights", optimizer="optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5 * rank)"
    ),
    "a scheduler that steps for each rank": planted(
        "rate",
        optimizer=f"{PARTS['optimizer']}\nscheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)",
        after="optimizer.zero_grad(); [scheduler.step() for _ in range(world)]",
    ),
    "eval on one rank": planted("mode", model=WIDE, wrap=PARTS["wrap"] + "\n        if rank == 1: model.module[1].eval()"),
}
RIGHT = {
    "DDP": script(),
    "DDP with Adam": script(optimizer="optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)"),
    "reduced by hand": script(wrap=NO_DDP, reduce=MEAN),
    "a loop of slices": script(data=SLICES, epoch="", wrap=NO_DDP, reduce=MEAN),
    "batches made by each rank": script(data=OWN, epoch=""),
    "batches made by each rank, a loss by hand": script(
        data=OWN, epoch="", loss="loss = -F.log_softmax(model(x), 1).square().mean()", reduce=CLIP
    ),
    "accumulation in no_sync": script(loss=ACCUMULATE, backward="", update=EVERY_SECOND),
    "accumulation without no_sync": script(backward="(loss / 2).backward()", update=EVERY_SECOND),
    "clipped": script(reduce=CLIP),
    "clipped by hand": script(
        reduce="""
            total = sum(p.grad.norm() ** 2 for p in model.parameters()) ** 0.5
            for p in model.parameters(): p.grad.mul_((0.05 / total).clamp(max=1))""",
    ),
    "FSDP": script(wrap=FSDP),
    "FSDP, clipped": script(wrap=FSDP, reduce=CLIP, optimizer="optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)"),
    "FSDP in bfloat16": script(
        wrap="fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)); torch.manual_seed(1 + rank)"
    ),
    "FSDP, accumulation": script(
        wrap=FSDP,
        backward="""
            model.set_requires_gradient_sync(number % 2 == 1)
            loss.backward()""",
        update=EVERY_SECOND,
    ),
    "FSDP of a tie": script(
        data=TOKENS.replace("masked_fill(pad, -100)", "clone()").replace("T[pad] = 0", ""),
        model=TIED,
        wrap="fully_shard(model.mid); fully_shard(model); torch.manual_seed(1 + rank)",
        epoch="",
        loss="loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())",
    ),
    "TP": script(data=TP_DATA, wrap=TP, epoch=""),
    "TP, clipped": script(data=TP_DATA, wrap=TP, epoch="", reduce=CLIP),
    "a scheduler": script(
        optimizer=f"{PARTS['optimizer']}\nscheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.1, 9 * len(loader))",
        after="optimizer.zero_grad(); scheduler.step()",
    ),
    "rate by the number of ranks": script(optimizer="optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * world)"),
    "frozen layers": script(wrap="model[0].requires_grad_(False)\ntorch.manual_seed(1 + rank)\nmodel = DDP(model)"),
    "unused parameters that DDP looks for": script(
        model=UNUSED, wrap="torch.manual_seed(1 + rank)\nmodel = DDP(model, find_unused_parameters=True)"
    ),
    "dropout": script(model=WIDE),
    "statistics over all ranks": script(model=SYNCED),
    "batch norm that does not train": script(
        model=OWN_NORM, wrap="model[1].eval()\ntorch.manual_seed(1 + rank)\nmodel = DDP(model)"
    ),
    "weighed by rows": script(
        data=UNEVEN,
        epoch="",
        backward="""
            rows = torch.tensor(float(len(x)))
            dist.all_reduce(rows)
            (loss * len(x) * world / rows).backward()""",
    ),
    "the last batch is smaller": script(
        data="""
            data = TensorDataset(X[:28], Y[:28])
            sampler = DistributedSampler(data)
            loader = DataLoader(data, batch_size=8, sampler=sampler)""",
    ),
    "tokens counted over ranks": script(
        data=TOKENS, model=TEXT, epoch="", wrap=NO_DDP + "\nmodel = DDP(model)", loss=TOKEN_LOSS, backward=GLOBAL_TOKENS
    ),
    "scaler": script(
        optimizer=f"{PARTS['optimizer']}\nscaler = torch.amp.GradScaler('cpu', init_scale=8.0)",
        backward="scaler.scale(loss).backward(); scaler.unscale_(optimizer)",
        reduce=CLIP,
        update="scaler.step(optimizer); scaler.update()",
    ),
    "buffers that DDP sends": script(model=COUNTER.format(count="self.mean.fill_(1.0)")),
    "a loss that is a sum": script(
        wrap=NO_DDP,
        loss="loss = F.cross_entropy(model(x), y, reduction='sum') / 16",
        reduce="for p in model.parameters(): dist.all_reduce(p.grad)",
    ),
}
