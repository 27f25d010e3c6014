"""How checkpoints are named."""

from __future__ import annotations

import pytest

from trainshed.checkpoint.folder import STEPS, Naming
from trainshed.checkpoint.foreign_manifest import CHECKPOINTS

pytestmark = pytest.mark.safety


@pytest.mark.parametrize(("naming", "name"), [(STEPS, "step-000000001200"), (CHECKPOINTS, "checkpoint-1200")])
def test_a_name_tells_its_step(naming: Naming, name: str) -> None:
    assert naming.name_of(1200) == name
    assert naming.step_of(name) == 1200


@pytest.mark.parametrize(
    "name",
    ["", "step-", "step-1200", "step-00000000120x", "step-000000001200.old", ".aside-step-000000001200", "000000001200"],
)
def test_other_names_have_no_step(name: str) -> None:
    assert STEPS.step_of(name) is None


@pytest.mark.parametrize("name", ["checkpoint-", "checkpoint-01", "checkpoint-1.5", "checkpoint-\u0663", "xcheckpoint-1"])
def test_other_names_of_library_folders_have_no_step(name: str) -> None:
    assert CHECKPOINTS.step_of(name) is None
