"""Whether the undivided model has room on this rank beside what lies there."""

from __future__ import annotations

import torch
from torch import nn

from ...plan.plan_file import Plan
from ..absent import AbsentParameter

_SPARE = 1.1


def has_room(root: nn.Module, plan: Plan | None, device: torch.device, *, whole: bool) -> bool:
    """Whether all parameters, their gradients and what one microbatch keeps for its backward fit into free memory.

    Args:
        whole: whether all parameters are still here.
    """
    needed = sum(unit.saved_mib for unit in plan.units) * 2**20 if plan is not None else 0.0
    for parameter in root.parameters():
        size = parameter.numel() * parameter.element_size()
        needed += size * parameter.requires_grad
        if isinstance(parameter, AbsentParameter) and not whole:
            needed += size
    return needed * _SPARE <= _free(device)


def _free(device: torch.device) -> float:
    """Bytes."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    import psutil

    return float(psutil.virtual_memory().available)
