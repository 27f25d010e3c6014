"""Compiles what a script trains, from its second step on: hooked into torch.nn, without a change to the script.

The first step runs as ever; meanwhile the outermost modules that are called for training are noted. When the first
optimizer step is done, they are compiled in place (`Module.compile`): no wrapper, so names of parameters, types and
attributes stay. What Accelerate or the script itself compiles is left alone, and only counted.

All of it goes through torch's own hooks: global forward hooks, which are gone after the first step, and a global
optimizer hook, which counts steps.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
import threading
import time
import warnings

from trainshed.contract.wire.compile_plan import plan_of

from . import regions
from .messages import local_rank, reason_of, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from torch.nn import Module

    from trainshed.contract.wire.compile_plan import CompilePlan

_WARNING = r"Using `torch\.compile\(module\)` when there are global hooks"


def _cpu_seconds() -> float:
    """Of this process, and of the C++ compilers it has started."""
    return sum(os.times()[:4])


def install(module: ModuleType) -> None:
    """Hooks into `torch.nn.modules.module`, which has just been imported."""
    plan = plan_of(os.environ)
    if plan is not None and plan.backend in ("inductor", "neuron"):
        CompileSession(plan, module).begin()


class CompileSession:
    """One process's way from eager to compiled."""

    def __init__(self, plan: CompilePlan, module: ModuleType) -> None:
        self.plan, self._module = plan, module
        self._handles: list[Any] = []
        self._seen: dict[int, Module] = {}
        self._depth = threading.local()
        self._optimizer = 0  # id of the one whose steps are counted
        self._clock = (0.0, 0.0)
        self.facts: dict[str, Any] = {"backend": plan.backend, "mode": plan.mode, "compiled": [], "steps": 0}
        self._packing: threading.Thread | None = None
        self._steady: tuple[float, int] | None = None  # when, and after how many steps, the first compiled one was done

    def begin(self) -> None:
        """Watches for the first step."""
        warnings.filterwarnings("ignore", message=_WARNING)  # ours are gone before the module is traced
        self._handles = [
            self._module.register_module_forward_pre_hook(self._before),
            self._module.register_module_forward_hook(self._after, always_call=True),
        ]

    # --- the first step ----------------------------------------------------------------------------------------------

    def _before(self, module: Module, _: object) -> None:
        depth = getattr(self._depth, "value", 0)
        self._depth.value = depth + 1
        if depth or not module.training or id(module) in self._seen:
            return
        import torch

        if not torch.is_grad_enabled():
            return
        if not self._seen:
            self._prepare()
        if regions.is_compiled(module):
            self._leave(f"the script compiles {type(module).__name__} itself")
            return
        self._seen[id(module)] = module

    def _after(self, *_: object) -> None:
        self._depth.value = max(0, getattr(self._depth, "value", 0) - 1)

    def _prepare(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        configure()
        register_optimizer_step_post_hook(self._stepped)
        atexit.register(self._end)
        self._clock = (time.monotonic(), _cpu_seconds())

    def _unhook(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._seen = {}

    def _leave(self, why: str) -> None:
        """Somebody else compiles: from its first step on."""
        self._unhook()
        accelerate = "accelerate" in sys.modules and os.environ.get("ACCELERATE_DYNAMO_BACKEND", "no") != "no"
        self.facts["compiled"] = [{"by": "Accelerate" if accelerate else "script"}]
        say("Accelerate compiles the model, from the first step on" if accelerate else f"{why}: left to it")

    def _arm(self) -> None:
        """Compiles in place what the first step has called."""
        modules = regions.outermost(self._seen.values())
        self._unhook()
        for module in modules:
            name = type(module).__name__
            why = regions.why_not(module)
            if why:
                if any(True for _ in module.parameters()):  # losses and the like are no news
                    self._step_back(f"{name} stays eager: {why}")
                continue
            inner = regions.inside_ddp(module)
            self._compile(inner, type(inner).__name__)
        if not self.facts["compiled"] and not self.facts.get("stepped_back"):
            self._step_back("nothing to compile: the first step called no module with parameters to train")

    def _compile(self, module: Module, name: str) -> None:
        options: dict[str, Any] = {"backend": self.plan.backend}
        if self.plan.mode != "default":
            options["mode"] = self.plan.mode
        if self.plan.dynamic != "auto":
            options["dynamic"] = self.plan.dynamic == "on"
        repeated = regions.blocks(module) if self.plan.regional != "off" else []
        try:
            for part in repeated or [module]:
                regions.compile_in_place(part, **options)
        except Exception as error:
            for part in repeated or [module]:
                part._compiled_call_impl = None
            self._step_back(f"{name} stays eager: {reason_of(error)}")
            return
        what = f"{len(repeated)} x {type(repeated[0]).__name__} of {name}" if repeated else name
        self.facts["compiled"].append({"by": "trainshed", "module": name, "blocks": len(repeated)})
        mode = "" if self.plan.mode == "default" else f", mode {self.plan.mode}"
        say(f"compiling {what} in place, from the second step on ({self.plan.backend}{mode})")

    def _step_back(self, why: str) -> None:
        self.facts.setdefault("stepped_back", []).append(why)
        say(f"stepping back to eager: {why}")

    # --- every step --------------------------------------------------------------------------------------------------

    def _stepped(self, optimizer: object, *_: object) -> None:
        if self._optimizer not in (0, id(optimizer)):
            return
        self._optimizer = id(optimizer)
        facts = self.facts
        facts["steps"] += 1
        if facts["steps"] > 2:
            return
        now = (time.monotonic(), _cpu_seconds())
        seconds = {"seconds": round(now[0] - self._clock[0], 3), "cpu_seconds": round(now[1] - self._clock[1], 3)}
        self._clock = now
        facts["first_step" if facts["steps"] == 1 else "second_step"] = seconds
        if facts["steps"] == 1 and self._handles:
            self._arm()
            self._clock = (time.monotonic(), _cpu_seconds())
            return
        if facts["steps"] == 2 or not self._handles:
            self._first_compiled_step()

    def _first_compiled_step(self) -> None:
        from . import counters

        self._steady = (time.monotonic(), self.facts["steps"])
        counters.write(self.plan, self.facts)
        if self._packing is None and self.plan.store and local_rank() == 0 and self._keeps():
            self._packing = threading.Thread(target=self._pack, name="trainshed-compile-cache")
            self._packing.start()

    def _keeps(self) -> bool:
        return self.plan.keeper or not os.path.exists(self.plan.store)

    def _pack(self) -> None:
        """Beside the next steps: the checkpoint folder may be slow."""
        from trainshed.contract.wire.compile_cache import pack

        try:
            count = pack(self.plan.live, self.plan.store)
        except OSError as error:
            say(f"the compile cache is not kept: {error}", every_rank=True)
            return
        if count:
            say(f"compile cache: {count} files kept in {self.plan.store}", every_rank=True)

    def _end(self) -> None:
        from . import counters

        if self._packing is not None:
            self._packing.join()
        if self._steady is not None and self.facts["steps"] > self._steady[1]:
            steps = self.facts["steps"] - self._steady[1]
            self.facts["steps_after"] = {"steps": steps, "seconds": round(time.monotonic() - self._steady[0], 3)}
        if not self.facts["steps"]:
            self._unhook()
            self._step_back("no optimizer of torch's made a step: nothing was compiled")
        counters.write(self.plan, self.facts)


class _OneLine(logging.Filter):
    """Tells in one line that a frame stays eager; torch itself prints its whole traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        if "WON'T CONVERT" not in str(record.msg):
            return True
        try:
            lines = [line.strip() for line in record.getMessage().splitlines() if line.strip()]
        except (TypeError, ValueError):
            return True
        # Below the traceback stand the exception, the user's code and advice about logging.
        causes = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Unsupported|Violation)\b", line)]
        text = f"{lines[0].replace(chr(39), '')}: {(causes or lines)[-1]}"[:300]
        if text not in self.said:
            self.said.add(text)
            say(f"stays eager: {text}", every_rank=True)
        return False


def configure() -> None:
    """Once in a process, before anything is compiled."""
    import torch._dynamo
    import torch._inductor.config

    config = torch._dynamo.config
    config.suppress_errors = True  # what cannot be captured runs eagerly
    logging.getLogger("torch._dynamo.convert_frame").addFilter(_OneLine())
    # Dropout draws the numbers that it would have drawn.
    torch._inductor.config.fallback_random = True
    # transformers logs a warning inside GPT-2's forward, once; for the compiler that is a break in the graph.
    for name in ("warning_once", "info_once"):
        function = getattr(logging.Logger, name, None)
        if function is not None:
            getattr(config, "ignore_logging_functions", set()).add(function)
