"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from .basics import size
from .mpi_ops import Sum, allreduce, grouped_allreduce


class SyncBatchNorm(_BatchNorm):
    """In training, mean and variance are those of all ranks' samples together, of which ranks may have different numbers.

    Arguments are those of `torch.nn.BatchNorm1d` and its like; it works on CPUs, too.
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm expects samples with channels (at least 2 dimensions), not {input.dim()}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The normalized samples, of the same shape."""
        self._check_input_dim(input)
        if size() == 1 or not (self.training or self.running_mean is None):
            return super().forward(input)
        over = [0, *range(2, input.dim())]
        shape = [1, -1] + [1] * (input.dim() - 2)
        work = input if input.dtype == torch.float64 else input.float()  # sums in 16 bits are none
        mine = work.new_tensor([work.numel() / work.shape[1]])
        total, count = grouped_allreduce([work.sum(over), mine], op=Sum)
        mean = total / count
        centered = work - mean.view(shape)
        variance = allreduce((centered * centered).sum(over), op=Sum) / count
        self._remember(mean.detach(), variance.detach(), float(count.item()))
        made = centered * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            made = made * self.weight.view(shape) + self.bias.view(shape)
        return made.to(input.dtype)

    @torch.no_grad()
    def _remember(self, mean: torch.Tensor, variance: torch.Tensor, count: float) -> None:
        """The running statistics, as `torch.nn.BatchNorm1d` has them: with the unbiased variance."""
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        factor = self.momentum or 0.0
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                factor = 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
        self.running_var.lerp_((variance * (count / max(count - 1, 1))).to(self.running_var.dtype), factor)
