"""What a script or a job asks of the cut: it is done, or refused with words; never left aside in silence."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

import trainshed.parallel as pipe

from .calls import BLOCKS, Chain, predict
from .table import begin, case, refused


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.decoder = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        self.heads = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.decoder(self.encoder(x))
        for head in self.heads:
            x = head(x)
        return x


def cut(pins: Mapping[str, int], **settings: Any) -> dict[str, int]:
    """The stage of each unit."""
    begin(**{"partitions": 2, "microbatches": 2, **settings})
    model = pipe.PipelineModel(Nested())
    for name, stage in pins.items():
        model.set_partition(model.module.get_submodule(name), stage)
    try:
        pipe.step(predict)(model, torch.ones(4, 4))
        assert model.plan is not None
        return {unit.unit: unit.stage for unit in model.plan.units}
    finally:
        pipe.shutdown()


@case(ranks=2)
def atomic_names_no_module() -> None:
    for given, words in (
        (["blocs.0"], "did you mean 'blocks.0'?"),
        (["module.blocks.0"], "did you mean 'blocks.0'?"),
        (["blocks.0", "xyz"], "model.named_modules()"),
    ):
        begin(partitions=2, microbatches=2, atomic=given)
        refused(lambda: pipe.PipelineModel(Chain()), f"atomic: the model has no module {given[-1]!r}", words)
        pipe.shutdown()
    begin(partitions=2, microbatches=2, atomic=BLOCKS)
    model = pipe.PipelineModel(Chain())
    pipe.step(predict)(model, torch.ones(4, 4))


@case(ranks=2)
def split_inputs_are_no_arguments() -> None:
    def train(model: Any, inputs: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
        return model(inputs)

    refused(lambda: pipe.step(train, non_split_inputs=["input"]), "has no argument 'input'", "did you mean 'inputs'?")
    refused(lambda: pipe.step(train, input_split_axes={"mask": 1}), "has no argument 'mask'", "name it")


@case(ranks=2)
def containers_and_their_parts_are_put_on_stages() -> None:
    found = cut({"encoder": 0, "decoder": 1})
    assert {name: stage for name, stage in found.items() if name[:3] == "dec"} in (
        {"decoder": 1},
        {"decoder.0": 1, "decoder.1": 1, "decoder.2": 1},
    ), found
    assert cut({"decoder": 0, "heads": 1})["heads.0"] == 1
    found = cut({"decoder.0": 0, "decoder.2": 1})
    assert (found["decoder.0"], found["decoder.2"]) == (0, 1), found
    found = cut({"decoder": 1, "decoder.0": 0})
    assert [found[f"decoder.{number}"] for number in range(3)] == [0, 1, 1], found


@case(ranks=2)
def parts_of_a_module_that_is_kept_whole_are_put_on_stages() -> None:
    assert cut({"decoder.2": 1}, atomic=["decoder"])["decoder"] == 1
    assert cut({"decoder.0": 0, "decoder.2": 0}, atomic=["decoder"])["decoder"] == 0
    for pins in ({"decoder": 0, "decoder.2": 1}, {"decoder.0": 0, "decoder.2": 1}):
        text = refused(
            lambda pins=pins: cut(pins, atomic=["decoder"]), "'decoder.2' on stage 1, but 'decoder' is kept whole: asked for"
        )
        assert "do not name it in `atomic`" in text, text


@case(ranks=2)
def a_plan_file_and_the_script_contradict_each_other() -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths: list[Any] = [f"{folder}/plan.json"]
        torch.distributed.broadcast_object_list(paths, src=0)
        path = paths[0]
        found = cut({"decoder": 1}, partition_file=path)
        assert cut({}, partition_file=path) == found == cut({"decoder": 1}, partition_file=path)
        refused(lambda: cut({"decoder": 0}, partition_file=path), "plan.json", "on stage 1, and set_partition on stage 0")
    begin(partitions=2, microbatches=2)
    model = pipe.PipelineModel(Nested())
    pipe.step(predict)(model, torch.ones(4, 4))
    plan = model.plan
    assert plan is not None
    pipe.shutdown()
    begin(partitions=2, microbatches=2)
    model = pipe.PipelineModel(Nested())
    model.use_plan(plan)
    model.set_partition(model.module.decoder, 1 - next(one.stage for one in plan.units if one.unit.startswith("decoder")))
    pipe.step(predict)(model, torch.ones(4, 4))
    assert model.plan is not None and model.plan.units != plan.units
