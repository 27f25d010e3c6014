"""The marks in torch's own functions: what a batch, a backward, an optimizer's step, a wait or a checkpoint goes through.

Each function stays what it is, with a mark before and after it. A mark that fails takes all of them out of service, with one
line: a script never fails because it is measured.
"""

from __future__ import annotations

import functools
import os
import time

from trainshed.base.process_age import process_began
from trainshed.base.voice import tell
from trainshed.contract.wire.step_profile import step_profile_of

from .beginning import Imports
from .pacing import Pacing
from .segments import Segments
from .tracer import Tracer
from .window_file import WindowFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from trainshed.contract.wire.step_profile import StepProfile

    from .segments import Step

_EVERY = 8  # steps from one question to DDP, or for the memory, to the next
# Functions whose whole time is a checkpoint's, by their modules.
_SAVES = {
    "torch.serialization": ("save",),
    "torch.distributed.checkpoint.state_dict_saver": ("save", "async_save"),
    "safetensors.torch": ("save_file", "save_model"),
}


def install(module: ModuleType) -> None:
    """Puts the marks into a module that has just been imported; does nothing for a process that is not measured."""
    meter = _meter()
    if meter is None:
        return
    name = module.__name__
    for function in _SAVES.get(name, ()):
        if hasattr(module, function):
            setattr(module, function, meter.inside(getattr(module, function), "checkpoint"))
    if name in _INSTALL:
        _INSTALL[name](meter, module)


@functools.cache
def _meter() -> Meter | None:
    """This process's, made when the first module that it marks is imported."""
    profile = step_profile_of(os.environ)
    if profile is None:
        return None
    return Meter(profile.folder, _facts(profile), profile.trace_start, profile.trace_steps)


def renew() -> None:
    """For a process that was forked when its modules had been imported (`container/warm_start`): it begins now."""
    profile, meter = step_profile_of(os.environ), _meter()
    if profile is not None and meter is not None:
        meter.begin(_facts(profile))


def live_on() -> None:
    """For a process whose training begins anew (`checkpoint/in_place`): that is another life of its rank."""
    profile, meter = step_profile_of(os.environ), _meter()
    if profile is not None and meter is not None:
        meter.live_on(_facts(profile))


def _facts(profile: StepProfile) -> dict[str, Any]:
    rank, world = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    return {
        "Rank": int(rank) if rank.isdecimal() else 0,
        "World": int(world) if world.isdecimal() else 1,
        "Host": profile.host,
        "Cpus": profile.cpus,
        "Ranks": profile.ranks,
        "Pid": os.getpid(),
    }


class Meter:
    """Measures this process.

    Args:
        folder: the profiler's.
        facts: what is known of this rank.
        trace_start, trace_steps: the steps to be recorded in detail without being asked: the first, from 0, and how many.
    """

    def __init__(self, folder: str, facts: dict[str, Any], trace_start: int = 0, trace_steps: int = 0) -> None:
        self._folder, self._traced = folder, (trace_start, trace_steps)
        self._pacing: Pacing | None = None  # of ranks that train beside others
        self.segments = Segments(self._ended)
        self.off = False
        self._ddp: Any = None  # a weak reference to the model that exchanges gradients
        self._exposed = 0.0  # which part of its backward it waits
        self._backwards = 0
        self._steps = 0
        self._imports: Imports | None = None
        self._memory: Callable[[], int] | None = None
        self._peaks: dict[str, int] = {}
        self.begin(facts)

    def live_on(self, facts: dict[str, Any]) -> None:
        """Begins another file of windows, as a process that begins now; the old one ends as that of a killed process."""
        if self._steps:
            self.begin({**facts, **self.file.close()}, time.time())
            self.segments.restart(first=True)

    def begin(self, facts: dict[str, Any], began: float = 0.0) -> None:
        """From here on it measures the process of which these are the facts."""
        self._rank, self._facts = facts["Rank"], facts
        self.file = WindowFile(self._folder, facts, self.say, self._take_peaks)
        self._tracer = Tracer(self._folder, self._rank, *self._traced)
        if self._imports is not None:
            self._imports.leave()
        self._began = began or process_began()
        self._imports = Imports(self._began)
        self._imports.watch()

    def say(self, line: str) -> None:
        """Prints a line, on rank 0 alone."""
        if self._rank == 0:
            tell(f"profile=auto: {line}")

    def fail(self, error: Exception) -> None:
        """Measures no more."""
        if not self.off:
            self.off = True
            self.say(f"the steps are not measured any more: {type(error).__name__}: {error}")

    def marked(
        self,
        function: Callable[..., Any],
        before: Callable[..., Any],
        after: Callable[..., None],
    ) -> Callable[..., Any]:
        """The same function with marks.

        Args:
            before: gets the function's arguments; its result goes to `after`.
            after: gets that result, the function's own (None where it raises), and its arguments.
        """

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if self.off:
                return function(*args, **kwargs)
            try:
                mark = before(*args)
            except Exception as error:
                self.fail(error)
                return function(*args, **kwargs)
            result = None
            try:
                result = function(*args, **kwargs)
                return result
            finally:
                if not self.off:
                    try:
                        after(mark, result, *args)
                    except Exception as error:
                        self.fail(error)

        return wrapper

    def inside(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        """The same function; its time is `phase`, whatever happens around it."""
        return self.marked(
            function,
            lambda *_: self.segments.inside_begins(),
            lambda mark, *_: self.segments.inside_ends(phase, mark),
        )

    # --- checkpoints ---

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same method of a Checkpointer, which is told the number of a step."""

        def after(mark: float, _: object, __: object, step: Any = None, *___: object) -> None:
            self.segments.inside_ends("checkpoint", mark)
            if type(step) is int:
                self.file.at = step

        return self.marked(function, lambda *_: self.segments.inside_begins(), after)

    def restored(self, _: object, step: Any, *__: object) -> None:
        """The script goes on from this step."""
        if type(step) is int:
            self.file.tell(Resumed=step)

    # --- batches ---

    def fetched(self, _: object, batch: Any, iterator: Any, *__: object) -> None:
        """A loader has given a batch, or has none left."""
        self.segments.fetch_ends(id(iterator._dataset), 0 if batch is None else rows_of(batch))
        self.file.tell(Workers=iterator._num_workers)

    # --- backward ---

    def backward_ended(self, *_: object) -> None:
        """Estimates what DDP waited for the other ranks, from what it has measured itself in some steps."""
        model = self._ddp() if self._ddp is not None else None
        if model is not None and not self._backwards % _EVERY:
            self._exposed = exposed_part(model._get_ddp_logging_data(), self._exposed)
        seconds = self.segments.backward_ends(self._exposed if model is not None else 0.0)
        if seconds:
            self._backwards += 1
            self._note_memory("backward")

    def watch(self, model: Any) -> None:
        """Asks a model of DDP's from now on."""
        import weakref

        self._ddp = weakref.ref(model)
        if next(iter(model.parameters())).device.type == "cpu":  # on GPUs its own pace: reading its events may wait for them
            model._set_ddp_runtime_logging_sample_rate(_EVERY)

    # --- steps ---

    def step_begins(self, optimizer: Any, *_: object) -> None:
        """An optimizer is about to make a step."""
        if self.off:
            return
        try:
            if self._steps == 0:
                self._begin(optimizer)
            self.segments.optimizer_begins()
        except Exception as error:
            self.fail(error)

    def step_ended(self, optimizer: Any, *_: object) -> None:
        """The optimizer has made its step."""
        if self.off:
            return
        try:
            self._note_memory("optimizer")
            self._steps += 1
            if not self.segments.optimizer_ends(id(optimizer)):
                return
            self._note_beginning()
            if self._tracer.step_ended():
                self.segments.restart()
        except Exception as error:
            self.fail(error)

    def _note_beginning(self) -> None:
        """After the first step: what came before it."""
        work, self.segments.first_work = self.segments.first_work, None
        if work is None:
            return
        assert self._imports is not None
        self._imports.leave()
        now = time.time()
        told = {"Began": self._began, "Imported": self._imports.seconds, "Ready": now - work, "First": now}
        self.file.tell(**{name: round(seconds, 3) for name, seconds in told.items()})

    def _ended(self, step: Step) -> None:
        """A step is over, and the device has come to its end."""
        self.file.add(step)
        if self._pacing is not None:
            self._pacing.add(step)

    def _begin(self, optimizer: Any) -> None:
        import atexit
        import sys

        torch = sys.modules["torch"]
        atexit.register(self._end)
        device = next((one for group in optimizer.param_groups for one in group["params"]), torch.empty(0)).device.type
        pipeline = {"Pipeline": True} if "trainshed.parallel.session" in sys.modules else {}
        self.file.tell(Device=device, Threads=torch.get_num_threads(), **pipeline)
        if self._facts["World"] > 1 and not pipeline:  # stages of a pipeline are unlike each other
            local = os.environ.get("LOCAL_RANK", "")
            self._pacing = Pacing(self._folder, {**self._facts, "Local": int(local) if local.isdecimal() else 0})
        if device != "cpu":
            _mark_copies(self, torch.Tensor)
        if device == "cuda":

            def record() -> Any:
                if torch.cuda.is_current_stream_capturing():
                    return None
                event = torch.cuda.Event(enable_timing=True)
                event.record()
                return event

            self.segments.record = record
            self._memory = torch.cuda.memory_allocated

    def _end(self) -> None:
        if not self.off:
            try:
                self.segments.resolve()
                self.file.flush()
            except Exception as error:
                self.fail(error)

    def _note_memory(self, phase: str) -> None:
        if self._memory is not None and not self._steps % _EVERY:
            self._peaks[phase] = max(self._peaks.get(phase, 0), self._memory())

    def forward_ended(self, *_: object) -> None:
        """A backward begins."""
        self._note_memory("forward")
        self.segments.backward_begins()

    def _take_peaks(self) -> dict[str, int]:
        peaks, self._peaks = self._peaks, {}
        return peaks


def exposed_part(data: dict[str, Any], before: float) -> float:
    """Which part of its backward DDP waited for the exchange of gradients, from 0 to 1.

    Args:
        data: of `DistributedDataParallel._get_ddp_logging_data`, in nanoseconds. The backward's computation and the
            exchange overlap; what of the exchange does not overlap, the rank waits for.
        before: the answer where it has measured nothing yet.
    """
    computing = data.get("backward_compute_time") or 0
    exchange = data.get("backward_comm_time") or 0
    overlap = data.get("backward_compute_comm_overlap_time") or 0
    waited = max(0, exchange - overlap)
    return waited / (computing + waited) if computing > 0 and exchange > 0 else before


def rows_of(batch: Any, depth: int = 3) -> int | None:
    """How many samples a batch holds: the first dimension of the first tensor in it; None where there is none."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if depth and isinstance(batch, (list, tuple)) and batch:
        return rows_of(batch[0], depth - 1)
    if depth and hasattr(batch, "values") and callable(batch.values):
        return next((found for one in batch.values() if (found := rows_of(one, depth - 1)) is not None), None)
    return None


# --- where the marks go -----------------------------------------------------------------------------------------------


def _mark_loaders(meter: Meter, module: ModuleType) -> None:
    base, loader = module._BaseDataLoaderIter, module.DataLoader
    begins = meter.segments.fetch_begins
    base.__next__ = meter.marked(base.__next__, lambda *_: begins(), meter.fetched)
    # A new pass over the data starts the loader's workers.
    loader._get_iterator = meter.marked(
        loader._get_iterator,
        lambda *_: begins(),
        lambda _, __, one, *___: meter.segments.fetch_ends(id(one.dataset), 0),
    )


def _mark_backward(meter: Meter, module: ModuleType) -> None:
    module.backward = meter.marked(module.backward, meter.forward_ended, meter.backward_ended)  # type: ignore[attr-defined]


def _mark_optimizers(meter: Meter, module: ModuleType) -> None:
    module.register_optimizer_step_pre_hook(meter.step_begins)
    module.register_optimizer_step_post_hook(meter.step_ended)


def _mark_ddp(meter: Meter, module: ModuleType) -> None:
    model = module.DistributedDataParallel
    model.__init__ = meter.marked(model.__init__, lambda *_: None, lambda _, __, one, *___: meter.watch(one))


def _mark_waits(meter: Meter, module: ModuleType) -> None:
    work = module.Work
    work.wait = meter.inside(work.wait, "communication")


def _mark_fsdp(meter: Meter, module: ModuleType) -> None:
    """FSDP2 on a device, where its stream waits: for gathered parameters, and for the last gradients.

    On CPUs it waits through `Work.wait`. The module is torch's own affair: where these are not, nothing is marked.
    """
    group = getattr(module, "FSDPParamGroup", None)
    segments = meter.segments
    for name in ("wait_for_unshard", "finalize_backward"):
        if hasattr(group, name):
            marked = meter.marked(
                getattr(group, name), lambda *_: segments.exchange_begins(), lambda mark, *_: segments.exchange_ends(mark)
            )
            setattr(group, name, marked)


def _mark_copies(meter: Meter, tensor: Any) -> None:
    """From the host to a device; within one device and back they are left alone."""

    def before(one: Any, *_: object) -> float:
        return meter.segments.inside_begins() if one.device.type == "cpu" else -2.0

    def after(mark: float, result: Any, *_: object) -> None:
        if mark != -2.0:
            moved = result is not None and result.device.type != "cpu"
            meter.segments.inside_ends("copy" if moved else "", mark)

    for name in ("to", "cuda"):
        setattr(tensor, name, meter.marked(getattr(tensor, name), before, after))


def _mark_checkpointer(meter: Meter, module: ModuleType) -> None:
    def restoring(function: Callable[..., Any]) -> Callable[..., Any]:
        return meter.marked(function, lambda *_: None, meter.restored)

    def waiting(function: Callable[..., Any]) -> Callable[..., Any]:
        return meter.inside(function, "checkpoint")

    found = module.Checkpointer
    marks = {"step": meter.counted, "save": meter.counted, "wait": waiting, "close": waiting, "restore": restoring}
    for name, mark in marks.items():
        setattr(found, name, mark(getattr(found, name)))


_INSTALL: dict[str, Callable[[Meter, ModuleType], None]] = {
    "torch.utils.data.dataloader": _mark_loaders,
    "torch.autograd": _mark_backward,
    "torch.optim.optimizer": _mark_optimizers,
    "torch.nn.parallel.distributed": _mark_ddp,
    "torch.distributed.distributed_c10d": _mark_waits,
    "torch.distributed.fsdp._fully_shard._fsdp_param_group": _mark_fsdp,
    "trainshed.checkpoint.checkpointer": _mark_checkpointer,
}
MODULES = frozenset((*_SAVES, *_INSTALL))  # autopatch calls `install` for these
