"""Weights as safetensors files: written and read by the ranks that hold them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import ranks

from support.lazy import Lazy

torch = Lazy("torch")
safetensors = Lazy("safetensors.torch")
weight_workers = Lazy("weight_workers")

pytestmark = [pytest.mark.torch, pytest.mark.exact]

WAYS: dict[str, dict[str, Any]] = {
    "stages": {"partitions": 2, "microbatches": 2},
    "replicas": {"partitions": 1, "microbatches": 2},
    "sharded": {"partitions": 1, "microbatches": 2, "sharded_data_parallel_degree": 2},
}


Played = tuple[Path, Callable[[str], list[Any]]]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, starts: ranks.Starts) -> Played:
    """Where two ranks write, and what they find, by the name of their work."""
    folder = tmp_path_factory.mktemp("weights")
    works: dict[str, tuple[Any, ...]] = {
        **{way: ("weight_workers:written", settings, f"{folder}/{way}") for way, settings in WAYS.items()},
        "wide": ("weight_workers:written_wide", f"{folder}/wide"),
        "full": ("weight_workers:full_disk", f"{folder}/full"),
        "pretrained": ("weight_workers:pretrained", f"{folder}/pretrained"),
        "refused": ("weight_workers:refused", f"{folder}/refused"),
    }
    return folder, cache(lambda name: starts.do(2, *works[name]))


@pytest.mark.parametrize("way", [pytest.param(way, marks=[pytest.mark.spine] * (way == "stages")) for way in WAYS])
def test_ranks_write_what_they_hold_and_others_read_it(played: Played, way: str) -> None:
    folder, found = played
    first = found(way)[0]
    files = [name for name in first["files"] if name.endswith(".safetensors")]
    stored = {name: value for file in files for name, value in safetensors.load_file(folder / way / file).items()}
    tied = {"language.head.weight"}
    assert stored.keys() == first["names"] == first["state"].keys() - tied
    assert len(files) > 2 and all(name.endswith((".safetensors", ".safetensors.index.json")) for name in first["files"])
    assert all(torch.equal(value, first["state"][name]) for name, value in stored.items())
    assert all(rank["losses"][0] == pytest.approx(rank["losses"][1], rel=1e-6) for rank in found(way))


def test_a_model_without_values_reads_what_its_ranks_will_hold(played: Played) -> None:
    whole = sum(parameter.numel() * 4 for parameter in weight_workers.Wide().parameters())
    for loss, again, held in played[1]("wide"):
        assert again == pytest.approx(loss, rel=1e-6)
        assert 0 < held < whole
    assert sum(held for *_, held in played[1]("wide")) == whole


@pytest.mark.safety
def test_a_disk_that_is_full_on_one_rank_leaves_the_earlier_weights(played: Played) -> None:
    folder, found = played
    for said, same, changed in found("full"):
        assert said == f"the weights were not saved to {folder}/full: [Errno 27] File too large (rank 1)"
        assert same and changed


def test_transformers_reads_the_folder(played: Played) -> None:
    from transformers import AutoModelForCausalLM

    folder, found = played
    states = found("pretrained")
    model = AutoModelForCausalLM.from_pretrained(folder / "pretrained")
    assert type(model).__name__ == "LlamaForCausalLM" and model.lm_head.weight is model.model.embed_tokens.weight
    state = model.state_dict()
    assert state.keys() == states[0].keys()
    assert all(torch.equal(value, state[name]) for name, value in states[0].items())


@pytest.mark.parametrize(("kind", "words"), [
    ("missing", "1.weight of the model is missing"), ("unknown", "the model has no 2.weight"),
    ("shape", "1.weight has the shape (3, 3), in the checkpoint (2, 3)"), ("empty", "model.safetensors is empty"),
    ("broken", "model.safetensors is not a safetensors file"), ("lost", "has no file model-00001-of-00002.safetensors"),
    ("nothing", "has neither model.safetensors nor model.safetensors.index.json"), ("nowhere", "there is no file or folder"),
    ("not transformers", "Sequential is not one of transformers' models"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_on_all_ranks(played: Played, kind: str, words: str) -> None:
    assert all(words in said[kind] for said in played[1]("refused"))


def test_a_checkpoint_is_converted_to_a_folder_tensor_by_tensor(tmp_path: Path) -> None:
    from trainshed.checkpoint import Checkpointer, export_weights

    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(5)])
    with Checkpointer(tmp_path / "checkpoints", model=model) as checkpointer:
        checkpointer.save(4)
    checkpoint = tmp_path / "checkpoints/step-000000000004"
    sizes = []
    for shard_bytes, files in ((300, 5), (600, 3), (10**9, 1), (300, 5)):
        export_weights(checkpoint, f"{tmp_path}/out/", shard_bytes=shard_bytes)
        found = sorted(path.name for path in (tmp_path / "out").iterdir())
        sizes.append(len([name for name in found if name.endswith(".safetensors")]))
        assert sizes[-1] == files and len(found) == files + (files > 1)
        stored = [safetensors.load_file(path) for path in (tmp_path / "out").glob("*.safetensors")]
        names = list(itertools.chain.from_iterable(stored))
        assert sorted(names) == sorted(model.state_dict())
        assert all(torch.equal(value, model.state_dict()[name]) for one in stored for name, value in one.items())
