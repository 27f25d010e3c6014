"""Writes the file: its parts as the plan asks for them, between one head and one function."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from trainshed.base.files import write_atomic
from trainshed.contract.wire.pipeline import PipelineSettings

from ..engine.block_shards import blocks
from ..plan.division import DivisibleModule
from ..plan.plan_file import Plan
from ..tracing.subject import Subject
from . import stage_code
from .calls import ModelCall, NotEmitted, model_call
from .cuts import Cuts, cuts_of
from .limits import check_model, check_settings, schedule_of
from .styles import styles_of


@dataclass(frozen=True)
class Parts:
    """What a file says.

    stages, tensor, sharded: ranks of each. optimizer: whether its states are shared out among replicas.
    styles: module -> style. ties: (module and parameter, module and parameter that is the same one).
    wrapped: what is gathered at once, as Python. unused: whether the backward leaves parameters out.
    """

    stages: int = 1
    tensor: int = 1
    sharded: int = 1
    microbatches: int = 1
    schedule: str = ""
    optimizer: bool = False
    styles: Mapping[str, str] = field(default_factory=dict)
    ties: Sequence[tuple[str, str]] = ()
    wrapped: str = ""
    unused: bool = False
    cuts: Cuts | None = None


def emit(path: str, subject: Subject, plan: Plan, settings: PipelineSettings, pieces: Sequence[DivisibleModule]) -> None:
    """Writes the file of a plan.

    Args:
        pieces: modules that a tensor group can divide.

    Raises:
        NotEmitted: plain torch does not train by it as one process does, or the file cannot be written.
    """
    parts = parts_of(subject, plan, settings, pieces)
    text = text_of(parts)
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        write_atomic(path, text)
    except OSError as error:
        raise NotEmitted(f"{path} cannot be written: {error.strerror}") from None


def parts_of(subject: Subject, plan: Plan, settings: PipelineSettings, pieces: Sequence[DivisibleModule]) -> Parts:
    """What the file of a plan has to say; see `emit`."""
    check_settings(settings)
    degrees, root = plan.degrees, subject.root
    stages, tensor = degrees.get("stages", 1), degrees.get("tensor", 1)
    sharded = degrees.get("sharded", settings.sharded_data_parallel_degree)
    shares = bool(degrees.get("shard_optimizer_state", settings.shard_optimizer_state))
    _check_together(stages, tensor, sharded, shares=shares)
    if subject.counts or subject.device.type == "meta":
        raise NotEmitted("the parts of a file are tried with values, which --count does not have", hint="leave out --count")
    call = model_call(subject)
    check_model(root, tensor=tensor, sharded=sharded, draws=call.draws)
    styles = styles_of(subject, pieces, tensor, call) if tensor > 1 else {}
    return Parts(
        stages,
        tensor,
        sharded,
        plan.pipeline.get("microbatches", 1),
        schedule_of(plan) if stages > 1 else "",
        shares,
        in_short(styles, root),
        _ties(root, styles),
        _wrapped(root, _ran(subject, call)) if stages == 1 else "",
        call.unused,
        cuts_of(subject, plan, call) if stages > 1 else None,
    )


def _check_together(stages: int, tensor: int, sharded: int, *, shares: bool) -> None:
    hint = "plan it without, or use the engine: `distribution: parallel`"
    if sharded > 1 and stages > 1:
        raise NotEmitted("stages whose parameters are sharded over replicas are not emitted", hint=hint)
    if shares and (stages > 1 or tensor > 1):
        raise NotEmitted(
            "torch shares optimizer states out among DDP's replicas alone, without stages and tensor ranks", hint=hint
        )


def in_short(styles: Mapping[str, str], root: nn.Module) -> dict[str, str]:
    """The same with one line for all blocks of a list, where all of them have the module, with one style."""
    found = {tuple(name.split(".")): style for name, style in styles.items()}
    for place in range(max((len(name) for name in found), default=0)):
        alike: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
        for name in found:
            if len(name) > place and name[place].isdigit():
                alike.setdefault((*name[:place], "*", *name[place + 1 :]), []).append(name)
        for pattern, names in alike.items():
            parent = root.get_submodule(".".join("0" if one == "*" else one for one in pattern[:place]))
            if len(names) == len(list(parent.children())) > 1 and len({found[name] for name in names}) == 1:
                found = {
                    pattern if name == names[0] else name: style for name, style in found.items() if name not in names[1:]
                }
    return {".".join(name): style for name, style in found.items()}


def _ties(root: nn.Module, styles: Mapping[str, str]) -> list[tuple[str, str]]:
    """Parameters of divided modules that are one: torch divides each module's by itself, which would make them two."""
    first: dict[int, str] = {}
    found = []
    for name, parameter in root.named_parameters(remove_duplicate=False):
        if name.rpartition(".")[0] in styles:
            other = first.setdefault(id(parameter), name)
            found += [(name, other)] if other != name else []
    return found


def _ran(subject: Subject, call: ModelCall) -> set[str]:
    ran = set[str]()
    handles = [
        module.register_forward_hook(lambda *_, name=name: ran.add(name))  # type: ignore[misc]
        for name, module in call.root.named_modules()
    ]
    try:
        with subject.untouched():
            call.output()
    finally:
        for handle in handles:
            handle.remove()
    return ran


def _wrapped(root: nn.Module, ran: set[str]) -> str:
    """The blocks that are gathered one by one, as Python: whole lists, and what is alone."""
    names = {id(module): name for name, module in root.named_modules()}
    found = [names[id(one)] for one in blocks(root, ran)]
    parents = dict.fromkeys(name.rpartition(".")[0] for name in found)
    several: list[str] = []
    for parent in parents:
        entries = [f"{parent}.{name}".lstrip(".") for name, _ in root.get_submodule(parent).named_children()]
        inside = [name for name in found if name in entries]
        several += [f"*{_python(parent)}"] if inside == entries else map(_python, inside)
    return ", ".join(several)


def _python(name: str) -> str:
    plain = all(part.isidentifier() for part in name.split("."))
    return f"model.{name}" if plain else f'model.get_submodule("{name}")' if name else "model"


def text_of(parts: Parts) -> str:
    """The whole file."""
    classes = [inspect.getsource(one) for one in _CLASSES] if parts.stages > 1 else []
    helps = [_OWN_GRADIENT] if parts.tensor > 1 and parts.sharded == 1 else []
    first = "\n\n".join([_head(parts), _imports(parts), _constants(parts)])
    return "\n\n\n".join(one.strip("\n") for one in [first, *classes, _OWN_ROWS, _MESH, *helps, _parallelize(parts)]) + "\n"


_CLASSES = (stage_code.Reached, stage_code.Elsewhere, stage_code.Stage, stage_code.Dense)


def _head(parts: Parts) -> str:
    ranks = parts.stages * parts.tensor * parts.sharded
    names = {"stages": parts.stages, "tensor ranks": parts.tensor, "shards": parts.sharded}
    words = ", ".join(f"{count} {name}" for name, count in names.items() if count > 1) or "replicas"
    use = _USE_STAGES if parts.stages > 1 else _USE
    made = torch.__version__.partition("+")[0]
    each = f"torchrun --nproc-per-node {max(ranks, 2)} SCRIPT    # or a multiple of {ranks}: the rest are replicas"
    return f'"""Trains a model on several ranks by plain torch ({made}): {words}.\n{use}\n    {each}\n{_NOTES}"""'


_USE = """
    from parallel import own_rows, parallelize

    model, optimizer = parallelize(model, lambda parameters: torch.optim.AdamW(parameters, lr=1e-3))
    for batch in batches:  # the same ones on all ranks
        loss = model(**own_rows(batch)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
_USE_STAGES = """
    from parallel import own_rows, parallelize

    model, optimizer, step = parallelize(model, lambda parameters: torch.optim.AdamW(parameters, lr=1e-3))
    for batch in batches:  # the same ones on all ranks: a dictionary of what the model is called with
        loss = step(own_rows(batch))  # forward and backward; of this replica, on all its ranks
        optimizer.step()

`step` sets gradients anew, so clear none and add none up. The model's loss is `output.loss`, or what you give as
`loss(output, targets)`, with `step(batch, targets)`. torch's clip_grad_norm_ would see this stage's gradients alone.
"""
_NOTES = """
Losses are as in one process that has all rows, if the model's loss is a mean over them, with as many tokens in each rank's.
Dropout draws other numbers. Written by `trainshed plan --emit`; the file is yours, and needs torch alone.
"""


def _imports(parts: Parts) -> str:
    lines = ["import torch", "import torch.distributed as dist", "from torch import nn"]
    lines.append("from torch.distributed.device_mesh import DeviceMesh, init_device_mesh")
    if parts.stages > 1:
        lines.append(f"from torch.distributed.pipelining import PipelineStage, {parts.schedule}")
    elif parts.sharded > 1:
        lines.append("from torch.distributed.fsdp import fully_shard")
    elif parts.tensor == 1:
        lines.append("from torch.nn.parallel import DistributedDataParallel")
    if parts.optimizer:
        lines.append("from torch.distributed.optim import ZeroRedundancyOptimizer")
    if parts.tensor > 1:
        lines.append("from torch.distributed.tensor import DTensor, Replicate" if _gathers(parts) else _DTENSOR)
        lines.append("from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module")
    first = "from __future__ import annotations\n\nimport os\nfrom collections.abc import Callable\nfrom typing import Any\n"
    return "\n".join([first, *sorted(lines, key=lambda line: (not line.startswith("import"), line))])


_DTENSOR = "from torch.distributed.tensor import DTensor"


def _gathers(parts: Parts) -> bool:
    return any("Replicate" in style for style in parts.styles.values())


def _constants(parts: Parts) -> str:
    lines = [f"STAGES, SHARDED, TENSOR = {parts.stages}, {parts.sharded}, {parts.tensor}"]
    if parts.styles:
        lines += ["# How each module is divided; all others are whole on each rank.", "STYLES = {"]
        lines += [f'    "{name}": {style},' for name, style in parts.styles.items()] + ["}"]
    if parts.cuts is not None:
        lines.append(f"MICROBATCHES = {parts.microbatches}")
        lines += ["# Module -> its stage, number of results (0: one tensor), features where it is an embedding."]
        lines += ["UNITS = {", *(f'    "{name}": {what},' for name, what in parts.cuts.units.items()), "}"]
        lines += ["# For each cut, the results of modules that are sent to the next stage: (module, number of its result)."]
        lines += _list("CROSSING", parts.cuts.crossing)
        lines += ["# Parameters that several stages hold, by stage: their gradients are summed."]
        lines += _list("TIED", parts.cuts.tied)
    return "\n".join(lines)


def _list(name: str, entries: Sequence[object]) -> list[str]:
    kind = "list[dict[int, str]]" if name == "TIED" else "list[list[tuple[str, int]]]"
    return (
        [f"{name}: {kind} = [", *(f"    {entry},".replace("'", '"') for entry in entries), "]"]
        if entries
        else [f"{name}: {kind} = []"]
    )


_OWN_GRADIENT = '''
def own_gradient(parameter: nn.Parameter) -> torch.Tensor:
    """The part of a gradient that this rank has."""
    if isinstance(parameter, DTensor):
        parameter.grad = parameter.grad.redistribute(placements=parameter.placements)
        return parameter.grad.to_local()
    return parameter.grad
'''
_OWN_ROWS = '''
def own_rows(batch: Any) -> Any:
    """This rank's rows of a tensor, or of a dictionary of tensors: those of its replica."""
    if isinstance(batch, dict):
        return {name: own_rows(value) for name, value in batch.items()}
    each, world = STAGES * TENSOR, int(os.environ["WORLD_SIZE"])
    return batch.tensor_split(world // each)[int(os.environ["RANK"]) // each] if isinstance(batch, torch.Tensor) else batch
'''

_MESH = '''
def ranks_as_mesh() -> DeviceMesh:
    """All ranks: replicas of shards of stages of tensor groups."""
    world, each = int(os.environ["WORLD_SIZE"]), SHARDED * STAGES * TENSOR
    if world % each:
        raise SystemExit(f"{world} ranks are not a multiple of {each}: torchrun --nproc-per-node {each}")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    names = ("replica", "shard", "stage", "tensor")
    return init_device_mesh(device, (world // each, SHARDED, STAGES, TENSOR), mesh_dim_names=names)
'''


def _parallelize(parts: Parts) -> str:
    more = (
        ",\n    loss: Callable[[Any, Any], torch.Tensor] = lambda output, targets: output.loss,\n"
        if parts.stages > 1
        else ""
    )
    found = "tuple[nn.Module, Any, Callable[..., torch.Tensor]]" if parts.stages > 1 else "tuple[nn.Module, Any]"
    head = f"def parallelize(model: nn.Module, make_optimizer: Callable[[Any], Any]) -> {found}:"
    if more:
        head = f"def parallelize(\n    model: nn.Module,\n    make_optimizer: Callable[[Any], Any]{more}) -> {found}:"
    words = '    """Divides the model among the ranks. `make_optimizer` is called with the parameters that this one has."""'
    lines = [head, words, *_indented(_START), *_indented(_tensor(parts)), *_indented(_rest(parts))]
    return "\n".join(lines)


def _indented(text: str) -> Iterable[str]:
    return (f"    {line}" if line else "" for line in text.strip("\n").split("\n") if text.strip("\n"))


_START = """
mesh = ranks_as_mesh()
model.to(mesh.device_type)
for one in (*model.parameters(), *model.buffers()):  # the same values on all ranks
    dist.broadcast(one.detach(), src=0)
"""
_SHARD = """
for block in [BLOCKS]:
    fully_shard(block, mesh=mesh["replica", "shard"])
fully_shard(model, mesh=mesh["replica", "shard"])
"""
_AVERAGE = """
replicas = mesh["replica"].get_group()

def average(parameter: nn.Parameter) -> None:
    mean = own_gradient(parameter)
    dist.all_reduce(mean, group=replicas)
    mean /= replicas.size()

for parameter in model.parameters():
    if parameter.requires_grad and replicas.size() > 1:
        parameter.register_post_accumulate_grad_hook(average)
"""
_DDP = """
model = DistributedDataParallel(model, process_group=mesh["replica"].get_group()UNUSED)
"""
_BY_MESH = """
kinds: dict[Any, list[nn.Parameter]] = {}  # optimizers take tensors of one kind at a time
for parameter in model.parameters():
    kinds.setdefault(parameter.device_mesh if isinstance(parameter, DTensor) else None, []).append(parameter)
return model, make_optimizer([{"params": several} for several in kinds.values()])
"""
_STAGE = """
number, device = mesh.get_local_rank("stage"), torch.empty(0, device=mesh.device_type).device
stage = Stage(model, number, UNITS, CROSSING, loss)
pipeline, replicas = mesh["stage"].get_group(), mesh["replica"].get_group()
runs = PipelineStage(stage, number, STAGES, device, group=pipeline)
schedule = SCHEDULE(runs, MICROBATCHES, loss_fn=lambda losses, _: losses.sum())
ties = []
for names in TIED:
    for ranks in mesh.mesh[:, 0, sorted(names)].transpose(1, 2).flatten(0, 1).tolist():
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            ties.append((model.get_parameter(names[number]), group))

def step(batch: dict[str, Any], targets: torch.Tensor | None = None) -> torch.Tensor:
    stage.zero_grad()
    losses: list[torch.Tensor] = []
    given = batch if targets is None else {**batch, "targets": targets}
    for name, one in given.items():
        if isinstance(one, torch.Tensor) and one.dim() and len(one) % MICROBATCHES:
            words = f"{name} has {len(one)} rows a replica, which are not a multiple of {MICROBATCHES} microbatches"
            raise SystemExit(f"{words}: give a multiple, and DataLoader drop_last=True")
    schedule.step(**given, target=torch.zeros(MICROBATCHES), losses=losses, return_outputs=False)
    for parameter, group in ties:
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.all_reduce(own(parameter), group=group)
    for parameter in stage.parameters():
        if parameter.grad is not None and replicas.size() > 1:
            dist.all_reduce(own(parameter), group=replicas)
            parameter.grad /= replicas.size()
    mean = torch.stack(losses).mean().detach() if losses else torch.zeros((), device=device)
    dist.broadcast(mean, group=pipeline, group_src=STAGES - 1)
    return mean

OPTIMIZER
return model, optimizer, step
"""


def _tensor(parts: Parts) -> str:
    if parts.tensor == 1:
        return ""
    lines = ['parallelize_module(model, mesh["tensor"], STYLES)']
    if parts.ties:
        lines.append("# Each module has been divided by itself: what was one parameter is one again.")
    for name, other in parts.ties:
        (module, own), (first, its) = (one.rpartition(".")[::2] for one in (name, other))
        lines.append(f"{_python(module)}.{own} = {_python(first)}.{its}")
    return "\n".join(lines)


def _rest(parts: Parts) -> str:
    """All behind the tensor groups."""
    if parts.stages > 1:
        text = _STAGE.replace("SCHEDULE", parts.schedule)
        text = text.replace("own(parameter)", "parameter.grad" if parts.tensor == 1 else "own_gradient(parameter)")
        return text.replace("OPTIMIZER", "optimizer = make_optimizer(stage.parameters())" if parts.tensor == 1 else _GROUPS)
    if parts.tensor > 1:
        copied = _SHARD.replace("BLOCKS", parts.wrapped) if parts.sharded > 1 else _AVERAGE
        return copied + _BY_MESH.lstrip("\n")
    if parts.sharded > 1:
        return _SHARD.replace("BLOCKS", parts.wrapped) + "return model, make_optimizer(model.parameters())"
    ddp = _DDP.replace("UNUSED", ", find_unused_parameters=True" if parts.unused else "")
    if parts.optimizer:
        return ddp + "return model, ZeroRedundancyOptimizer(model.parameters(), make_optimizer)"
    return ddp + "return model, make_optimizer(model.parameters())"


_GROUPS = """kinds: dict[bool, list[nn.Parameter]] = {}  # optimizers take tensors of one kind at a time
for parameter in stage.parameters():
    kinds.setdefault(isinstance(parameter, DTensor), []).append(parameter)
optimizer = make_optimizer([{"params": several} for several in kinds.values()])"""
