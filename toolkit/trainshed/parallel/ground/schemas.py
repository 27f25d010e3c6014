"""The schemas of torch's operations: what they take, write and return."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch.fx.operator_schemas import get_signature_for_torch_op


@cache
def schema_of(operation: Any) -> Any:
    """The schema of an overload (`torch.ops.aten.add.Tensor`)."""
    found: Any = get_signature_for_torch_op(operation, return_schemas=True)
    return found[1][0]
