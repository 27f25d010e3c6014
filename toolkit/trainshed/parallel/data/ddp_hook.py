"""Accelerates every DistributedDataParallel that a script makes, for jobs that ask for it (`trainshed_reduce`)."""

from __future__ import annotations

import functools
import os

from trainshed.base.voice import tell
from trainshed.contract.settings import REDUCE_VARIABLE, REDUCTIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def install(module: ModuleType, default: str = "off") -> None:
    """Has the class of `torch.nn.parallel.distributed` accelerate the models that it makes.

    Args:
        module: that one, just imported.
        default: how, where the job does not say.
    """
    reduce = os.environ.get(REDUCE_VARIABLE) or default
    if reduce not in REDUCTIONS or reduce == "off":
        return
    native = module.DistributedDataParallel.__init__
    if hasattr(native, "trainshed_reduces"):
        return

    @functools.wraps(native)
    def init(model: Any, *args: Any, **options: Any) -> None:
        native(model, *args, **options)
        _accelerate(model, reduce)

    init.trainshed_reduces = True  # type: ignore[attr-defined]
    module.DistributedDataParallel.__init__ = init


def _accelerate(model: Any, reduce: str) -> None:
    from ..ground.errors import TorchLacks
    from .accelerated import accelerate

    try:
        accelerate(model, reduce)
    except (AttributeError, TypeError, ImportError, TorchLacks) as error:  # another torch; alike on all ranks
        tell(f"reduce={reduce}: left to DDP: {type(error).__name__}: {error}")
