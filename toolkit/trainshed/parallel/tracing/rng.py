"""The state of PyTorch's random numbers as one small tensor, so that it can travel between stages.

Each microbatch starts from a state that depends on the seed, the step and the number of the microbatch alone, and the
state then follows the microbatch through the stages: the numbers drawn are the same for every number of stages, also one.
"""

from __future__ import annotations

import torch


def get_state(device: torch.device) -> torch.Tensor:
    """State of the CPU generator and, on an accelerator, of its own: bytes, shape (n,), on the CPU."""
    state = torch.get_rng_state()
    if device.type == "cuda":
        return torch.cat([state, torch.cuda.get_rng_state(device)])
    return state


def set_state(state: torch.Tensor, device: torch.device) -> None:
    """Sets what `get_state` gave."""
    state = state.cpu()
    length = torch.get_rng_state().numel()
    torch.set_rng_state(state[:length].clone())
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[length:].clone(), device)


def state_of_seed(seed: int, device: torch.device) -> torch.Tensor:
    """The state right after `torch.manual_seed(seed)`; the current state stays as it is."""
    before = get_state(device)
    torch.manual_seed(seed)
    try:
        return get_state(device)
    finally:
        set_state(before, device)


def state_size(device: torch.device) -> int:
    """Length of `get_state`'s tensor in bytes."""
    return get_state(device).numel()
