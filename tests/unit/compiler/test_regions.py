"""Which modules are left eager, and with which words. As jobs: tests/jobs/compiler (heavy)."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from trainshed.compiler import regions  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("wrap", "reason"),
    [
        (torch.jit.script, "it is a TorchScript module"),
        (torch.nn.DataParallel, "nn.DataParallel copies the module at each step; use the distribution torchrun with DDP"),
        (lambda module: module, ""),
    ],
)
def test_a_module_that_cannot_be_compiled_has_a_reason(wrap: Any, reason: str) -> None:
    assert regions.why_not(wrap(torch.nn.Linear(2, 2))) == reason
