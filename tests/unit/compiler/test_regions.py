"""Which modules are left eager, and with which words. As jobs: tests/jobs/compiler (heavy)."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest

from support.lazy import Lazy

torch: Any = Lazy("torch")
regions: Any = Lazy("trainshed.compiler.regions")

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("wrap", "reason"),
    [
        ("jit.script", "it is a TorchScript module"),
        ("nn.DataParallel", "nn.DataParallel copies the module at each step; use the distribution torchrun with DDP"),
        ("nn.Sequential", ""),
    ],
)
def test_a_module_that_cannot_be_compiled_has_a_reason(wrap: str, reason: str) -> None:
    assert regions.why_not(attrgetter(wrap)(torch)(torch.nn.Linear(2, 2))) == reason
