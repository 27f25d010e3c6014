"""Optimizers that Amazon's library takes from apex, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from trainshed.parallel import clip_grad_norm_
from trainshed.parallel.ground.errors import NotServed
from trainshed.parallel.session import session

from ....unserved import ALTERNATIVES, UnservedName


class FusedLAMB(torch.optim.Optimizer):
    """LAMB (You et al. 2020, arXiv 1904.00962), with the arguments and defaults of apex; not fused into one kernel.

    Gradients are first clipped by their norm over all stages. Then each tensor takes Adam's update plus its weight decay,
    scaled by the ratio of the tensor's norm to the update's.

    Args:
        params: parameters or groups.
        lr: learning rate.
        bias_correction: divide the moments by 1 - beta ** step.
        betas, eps: of the moments.
        weight_decay: added to the update (`adam_w_mode`), else to the gradient.
        grad_averaging: the gradient enters the first moment with 1 - beta1, else with 1.
        set_grad_none: `zero_grad` drops the gradients.
        max_grad_norm: 0 does not clip.
        use_nvlamb: scale tensors without weight decay, too.

    Raises:
        NotServed: amsgrad; clipping with shard_optimizer_state, where a rank has no gradient of what others update.
    """

    asks_all_ranks = True  # `parallel.mixing` need not try it

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        set_grad_none: bool = True,
        max_grad_norm: float = 1.0,
        use_nvlamb: bool = False,
    ) -> None:
        if amsgrad:
            raise NotServed("FusedLAMB(amsgrad=True) is not supported", hint="apex has none either")
        if max_grad_norm and session.grid is not None and session.grid.settings.shard_optimizer_state:
            raise NotServed(
                "FusedLAMB's clipping together with shard_optimizer_state is not supported",
                hint="give it max_grad_norm=0, and call clip_grad_norm_ before the step",
            )
        self._set_to_none = set_grad_none
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "adam_w_mode": adam_w_mode,
            "grad_averaging": grad_averaging,
            "max_grad_norm": max_grad_norm,
            "use_nvlamb": use_nvlamb,
        }
        super().__init__(params, defaults)

    def zero_grad(self, set_to_none: bool | None = None) -> None:  # type: ignore[override]
        """Forgets all gradients."""
        super().zero_grad(self._set_to_none if set_to_none is None else set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One update. Collective over the pipeline where gradients are clipped."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if limit := max(group["max_grad_norm"] for group in self.param_groups):
            clip_grad_norm_([p for group in self.param_groups for p in group["params"]], limit)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
        state["step"] += 1
        one, two = group["betas"]
        decay = group["weight_decay"]
        if decay and not group["adam_w_mode"]:
            gradient = gradient.add(parameter, alpha=decay)
        state["exp_avg"].mul_(one).add_(gradient, alpha=1 - one if group["grad_averaging"] else 1.0)
        state["exp_avg_sq"].mul_(two).addcmul_(gradient, gradient, value=1 - two)
        corrected = group["bias_correction"]
        first = state["exp_avg"] / (1 - one ** state["step"] if corrected else 1.0)
        second = state["exp_avg_sq"] / (1 - two ** state["step"] if corrected else 1.0)
        update = first / (second.sqrt() + group["eps"])
        if decay and group["adam_w_mode"]:
            update.add_(parameter, alpha=decay)
        ratio = torch.ones((), device=parameter.device)
        if decay or group["use_nvlamb"]:
            own, change = parameter.norm(), update.norm()
            ratio = torch.where((own > 0) & (change > 0), own / change, ratio)
        parameter.sub_(update * (group["lr"] * ratio))


FusedLamb = FusedLAMB


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise UnservedName(f"smp.optimizers.{name} is not supported", hint=ALTERNATIVES["optimizers"])
