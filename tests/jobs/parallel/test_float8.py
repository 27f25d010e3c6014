"""Products in float8: refused where they cannot run; as torchao by hand where it emulates them (if it is installed)."""

from __future__ import annotations

import importlib.util
from typing import Any
from unittest.mock import patch

import pytest

import trainshed.parallel as pipe
from support.lazy import Lazy
from trainshed.parallel.ground.errors import PipelineError

torch = Lazy("torch")
float8_workers = Lazy("float8_workers")
float8 = Lazy("trainshed.parallel.float8")

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("no_pipeline")]
INSTALLED = pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed")


def test_on_a_cpu_it_is_refused_before_ranks_meet() -> None:
    with pytest.raises(
        PipelineError, match=r"fp8 needs a GPU of compute capability 8\.9 or later, and this rank computes on cpu"
    ):
        pipe.init({"fp8": True}, device="cpu")
    assert not pipe.is_initialized() and not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("capability", "installed", "words"),
    [((8, 0), True, "8.9 or later, and An old GPU has 8.0"), ((9, 0), False, "torchao, which is not installed")],
)
def test_an_older_gpu_and_a_missing_torchao_are_named(capability: tuple[int, int], installed: bool, words: str) -> None:
    with (
        patch("torch.cuda.get_device_capability", return_value=capability),
        patch("torch.cuda.get_device_name", return_value="An old GPU"),
        patch.object(float8, "find_spec", return_value=object() if installed else None),
        pytest.raises(PipelineError, match=words),
    ):
        float8.check_float8(torch.device("cuda", 0))


@pytest.mark.parametrize("name", ["tensor_parallel_degree", "sharded_data_parallel_degree"])
def test_what_it_does_not_go_together_with_is_named(name: str) -> None:
    for given in ({"fp8": True, name: 2}, pipe.Settings().replace(fp8=True, **{name: 2})):
        with pytest.raises(pipe.NotServed, match=f"{name} together with fp8"):
            pipe.init(given)


def test_a_model_without_fitting_linears_is_told_that_it_changes_nothing() -> None:
    with pytest.raises(PipelineError, match=r"no nn\.Linear of the model has sizes that 16 divides"):
        float8.in_float8(torch.nn.Linear(6, 16))


@pytest.mark.exact
@INSTALLED
@pytest.mark.on_ranks("float8_workers:trained", world=2)
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"partitions": 2, "microbatches": 2}, marks=pytest.mark.spine),
        {"partitions": 2, "microbatches": 4, "pipeline": "interleavedzerobubble"},
    ],
)
def test_stages_compute_as_torchao_by_hand_to_the_last_bit(settings: dict[str, Any], found: list[Any]) -> None:
    expected = float8_workers.alone(settings["microbatches"])
    for state, kinds in found:
        assert kinds == [f"{block}.0" for block in range(1, 5)]
        assert state.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(state[name], value), name
