"""fine_tune.py: models and hyperparameters that cannot be trained are named."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.extras import needs
from support.lazy import Lazy
from support.programs import Module, Options, Train

needs("transformers", "accelerate", "peft")
pytestmark = pytest.mark.torch
torch: Any = Lazy("torch")

PROGRAM = "fine_tune.py"


def edit(name: str, change: Callable[[Any], None]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return apply


def bring_code(folder: Path) -> None:
    """A model of a kind of its own, with code that leaves a file behind."""
    for name, keys in (
        ("config.json", ("AutoConfig", "AutoModelForCausalLM")),
        ("tokenizer_config.json", ("AutoTokenizer",)),
    ):
        auto = {key: [f"own.{key}", None] if key == "AutoTokenizer" else f"own.{key}" for key in keys}
        edit(name, lambda config, auto=auto: config.update(model_type="own", auto_map=auto))(folder)
    (folder / "own.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")


def ruin_weight(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][3] = math.nan
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def drop_weight(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "config.json").unlink(), "holds no "),
        (lambda folder: (folder / "tokenizer.json").unlink(), "holds no tokenizer that Transformers loads: "),
        (lambda folder: os.truncate(folder / "model.safetensors", 1000), "holds no causal language model that Transformers"),
        pytest.param(bring_code, "holds no ", marks=pytest.mark.safety),
        (ruin_weight, "has weights that are not finite numbers: model.norm.weight$"),
        (drop_weight, "lacks weights of its LlamaForCausalLM: model.layers.1.mlp.up_proj.weight$"),
        (edit("tokenizer_config.json", lambda config: config.pop("eos_token")), "the tokenizer names no eos_token"),
        (edit("config.json", lambda config: config.update(model_type="t5")), "holds no "),
        (lambda folder: (folder / "config.json").rename(folder / "adapter_config.json"), "holds "),
    ],
)
def test_a_model_that_cannot_be_trained_is_named(
    damage: Callable[[Path], None],
    words: str,
    program: ModuleType,
    tuning: Options,
    tune: Train,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    shutil.copytree(data / "model", tmp_path / "broken")
    damage(tmp_path / "broken")
    with pytest.raises(program.Problem, match=words) as raised:
        tune(tuning(model=tmp_path / "broken"))
    assert not (tmp_path / "broken/ran").exists()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"max_length": 1000}, "max_length is 1000, but the model takes 256 tokens"),
        ({"lora_targets": "query"}, "LlamaForCausalLM takes no such adapter: .*; lora_targets may be among .*q_proj"),
        ({"batch_size": 2, "gradient_accumulation_steps": 3}, "batch_size 2 is smaller than the world size 1 times 3 parts"),
        ({"too_long": "refuse", "max_length": 16}, r"train: questions.jsonl:1: has \d+ tokens, more than max_length"),
        ({"max_length": 4}, "nothing is left to train on: raise max_length"),
    ],
)
def test_what_cannot_be_done_is_said(
    changed: dict[str, Any], words: str, program: ModuleType, tuning: Options, tune: Train, tmp_path: Path
) -> None:
    with pytest.raises(program.Problem, match=words):
        tune(tuning(checkpoint_dir=tmp_path / "checkpoints", **changed))
    assert not (tmp_path / "model/model.json").exists()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"method": "qlora"}, "hyperparameter method: 'qlora' is not one of lora, full"),
        ({"method": "full", "merge": True}, "merge is true, but there is no adapter"),
        ({"objective": "dpo", "too_long": "split"}, "too_long is split, but half an answer"),
        ({"objective": "dpo", "packing": True}, "packing is true, but pairs are not packed"),
        ({"objective": "kto", "loss_on": "all"}, "loss_on is all, but kto judges answers, not their prompts"),
        ({"objective": "dpo", "beta": 0}, "beta is 0, with which dpo learns nothing"),
    ],
)
def test_hyperparameters_that_contradict_each_other_are_named(
    changed: dict[str, Any], words: str, program: ModuleType, tuning: Options
) -> None:
    with pytest.raises(program.Problem, match=words):
        tuning(**changed)


def test_a_library_that_is_not_installed_is_named(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["fine_tune.py"])
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(
        program.Problem, match=r"^fine_tune needs peft, not installed here: pip install 'trainshed\[finetune\]'$"
    ):
        program.main()


def test_a_job_without_data_or_model_says_so(program: ModuleType, tuning: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(program.Problem, match=r"^there is nothing to train on: give --train DIR$"):
        program.load_data(tuning(train=""))
    monkeypatch.setattr(sys, "argv", ["fine_tune.py"])
    with pytest.raises(program.Problem, match=r"^there is no model to start from: add a channel model, or give --model"):
        program.main()
    monkeypatch.setattr(sys, "argv", ["fine_tune.py", "--model", "/nowhere"])
    with pytest.raises(program.Problem, match=r"^model: /nowhere is not a folder$"):
        program.main()


@pytest.mark.parametrize(
    ("asked", "size", "memory", "sharded"),
    [
        ("auto", 2, 1 << 40, False),
        ("auto", 2, 1 << 10, True),
        ("auto", 1, 1 << 10, False),
        ("shard", 2, 1 << 40, True),
        ("shard", 1, 1 << 40, False),
        ("replicate", 2, 1 << 10, False),
    ],
)
def test_a_model_is_sharded_where_asked_or_where_it_does_not_fit(
    asked: str,
    size: int,
    memory: int,
    sharded: bool,
    program: ModuleType,
    tuning: Options,
    module: Module,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sharding = module("_sharding")
    monkeypatch.setattr(sharding, "memory", lambda _: memory)
    monkeypatch.setattr(program.World, "gather", lambda self, value: [value] * size)
    world = program.World(0, size, 0, torch.device("cpu"))
    model = torch.nn.Linear(16, 16)

    assert sharding.bytes_to_train(model) == 5 * 4 * (16 * 16 + 16)
    assert sharding.wanted(tuning(sharding=asked), model, world) is sharded
    said = capsys.readouterr().out
    assert ("it takes 0.0 GiB a rank" in said) == (asked == "auto" and sharded)
    assert ("one rank holds the whole model" in said) == (asked == "shard" and size == 1)


@pytest.fixture(scope="module")
def tied(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model with embeddings that are its head, too."""
    import transformers

    folder = tmp_path_factory.mktemp("tied")
    shutil.copytree(data / "model", folder, dirs_exist_ok=True)
    config = transformers.AutoConfig.from_pretrained(folder)
    config.tie_word_embeddings = True
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def adapter_on(base: Path, folder: Path, module: Module, *targets: str, **more: Any) -> Any:
    """Writes an adapter that changes answers to a folder, as fine_tune writes one; gives the model with it."""
    import peft

    pretrained = module("_pretrained")
    model = pretrained.load_model(str(base), torch.float32)
    facts = {"start": pretrained.fingerprint(model), "base": str(base), "stops": [], "hyperparameters": {"objective": "sft"}}
    config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=list(targets), r=4, init_lora_weights=False, **more)
    adapted = peft.get_peft_model(model, config)
    adapted.save_pretrained(folder)
    shutil.copyfile(base / "tokenizer.json", folder / "tokenizer.json")
    shutil.copyfile(base / "tokenizer_config.json", folder / "tokenizer_config.json")
    (folder / "model.json").write_text(json.dumps(facts))
    return adapted.eval()


@pytest.mark.parametrize("targets", [("q_proj",), ("lm_head",), ("embed_tokens", "q_proj"), ("embed_tokens", "lm_head")])
def test_a_merged_model_answers_as_its_base_with_the_adapter(
    targets: tuple[str, ...], tied: Path, tuning: Options, module: Module, tmp_path: Path
) -> None:
    import transformers

    adapted = adapter_on(tied, tmp_path / "adapter", module, *targets)
    module("_answers").merge(tuning(model_dir=tmp_path / "adapter", merge_to=tmp_path / "whole"), str(tied))

    whole = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    tokens = torch.arange(1, 20)[None]
    with torch.no_grad():
        assert torch.allclose(whole(tokens).logits, adapted(tokens).logits, atol=1e-4)
    assert whole.config.tie_word_embeddings == (targets == ("q_proj",))


@pytest.mark.parametrize("there", [False, True])
def test_a_merge_that_cannot_be_written_names_the_folder_and_leaves_nothing(
    there: bool, tied: Path, tuning: Options, program: ModuleType, module: Module, tmp_path: Path, monkeypatch: Any
) -> None:
    adapter_on(tied, tmp_path / "adapter", module, "q_proj")
    target = tmp_path / "new/whole"
    if there:
        target.mkdir(parents=True)

    def full(self: Any, folder: str) -> None:
        Path(folder, "model.safetensors").write_text("half")
        raise safetensors.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    import safetensors

    monkeypatch.setattr("transformers.PreTrainedModel.save_pretrained", full)
    with pytest.raises(program.Problem, match=r"/new/whole cannot be written to: .*No space left on device"):
        module("_answers").merge(tuning(model_dir=tmp_path / "adapter", merge_to=target), str(tied))
    assert sorted(path.name for path in (tmp_path / "new").rglob("*")) == ["whole"] * there
    assert (tmp_path / "new").exists() == there


def test_a_folder_that_nobody_can_write_to_is_named_before_the_model_is_loaded(
    tied: Path, tuning: Options, program: ModuleType, module: Module, tmp_path: Path
) -> None:
    adapter_on(tied, tmp_path / "adapter", module, "q_proj")
    (tmp_path / "file").write_text("")
    with pytest.raises(program.Problem, match=r"/file/whole cannot be written to: Not a directory$"):
        module("_answers").merge(tuning(model_dir=tmp_path / "adapter", merge_to=tmp_path / "file/whole"), "/nowhere")
