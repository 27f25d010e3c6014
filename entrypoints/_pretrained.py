"""Loads causal language models and tokenizers that others trained; what is wrong with them is said in one line."""

from __future__ import annotations

import os
import zlib
from argparse import Namespace
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from _common import Problem, note
from _turns import first_line
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

if TYPE_CHECKING:
    from peft import PeftModel

HEAD = 2048  # bytes of each weight that the fingerprint takes in
DEFAULT_LENGTH = 1024  # tokens
HEADS = ("score.", "classifier.")  # names of weights that make one number of a text
NO_CODE = {"trust_remote_code": False}  # left out, it would be asked on a terminal, and "y" on standard input run it


def load_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or of a name on the hub; raises Problem."""
    try:
        return AutoTokenizer.from_pretrained(source, local_files_only=os.path.isdir(source), **NO_CODE)
    except Exception as error:  # of any library, about files that are not ours
        raise unloadable(source, "tokenizer", error) from error


def load_model(source: str, dtype: torch.dtype | str, scores: bool = False) -> PreTrainedModel:
    """The model of a folder or of a name on the hub; raises Problem. None of its weights is left to chance.

    dtype: as torch has it, or "auto", that of its files.
    scores: whether it shall give one number for a text, by a new head if it has none.
    """
    local = os.path.isdir(source)
    if local and os.path.isfile(f"{source}/adapter_config.json") and not os.path.isfile(f"{source}/config.json"):
        raise Problem(f"{source} holds an adapter, not a model: train it with merge, or give the model that it belongs to")
    loud = logging.get_verbosity()
    if scores:
        logging.set_verbosity_error()  # else a table of the heads that are new and that are gone
    try:
        kind: Any = AutoModelForSequenceClassification if scores else AutoModelForCausalLM
        more: dict[str, Any] = {"num_labels": 1} if scores else {}
        model, facts = kind.from_pretrained(
            source, local_files_only=local, dtype=dtype, output_loading_info=True, **more, **NO_CODE
        )
    except Exception as error:
        raise unloadable(source, "causal language model", error) from error
    finally:
        logging.set_verbosity(loud)
    if missing := sorted(name for name in facts["missing_keys"] if not (scores and name.startswith(HEADS))):
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise Problem(f"{source} lacks weights of its {type(model).__name__}: {missing[0]}{others}")
    if wrong := [name for name, weight in model.named_parameters() if not torch.isfinite(weight).all()]:
        raise Problem(f"{source} has weights that are not finite numbers: {wrong[0]}")
    if scores:
        return model
    model.loss_type = "ForCausalLM"  # what Transformers falls back to, but with a warning
    try:
        model.generation_config.validate(strict=True)
    except ValueError:  # such a one cannot be saved; that shall not be found out at the end
        model.generation_config = GenerationConfig.from_model_config(model.config)
    return model


def unloadable(source: str, what: str, error: Exception) -> Problem:
    """What to say where Transformers does not load a `what` from a folder or by a name on the hub."""
    why = first_line(error)
    if os.path.isdir(source):
        return Problem(f"{source} holds no {what} that Transformers loads: {why}")
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return Problem(
            f"model {source} is neither a folder nor in the hub's cache here, and HF_HUB_OFFLINE forbids to fetch it: "
            "give a channel model, or unset HF_HUB_OFFLINE"
        )
    return Problem(f"model {source} is not a folder, and the hub does not give a {what} of that name: {why}")


def named(hp: Namespace, source: str) -> str:
    """A starting model as a person can load it again: its name on the hub, or a folder, never one unpacked for a job."""
    if not os.path.isdir(source):
        return source
    given = hp.model or os.environ.get("SM_CHANNEL_MODEL") or source
    return os.path.realpath(given)


def context(model: PreTrainedModel) -> int | None:
    """The longest sequence that the model takes, in tokens; None if its configuration does not say."""
    config = model.config.get_text_config()
    return getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)


def length_of(hp: Namespace, model: PreTrainedModel) -> int:
    """max_length as it is asked for, or the default; raises Problem if the model's context is shorter."""
    most = context(model)
    if most and hp.max_length and hp.max_length > most:
        raise Problem(f"max_length is {hp.max_length}, but the model takes {most} tokens")
    return hp.max_length or min(DEFAULT_LENGTH, most or DEFAULT_LENGTH)


def fingerprint(model: PreTrainedModel, but: tuple[str, ...] = ()) -> str:
    """Tells models apart: a checksum of the beginning of each weight, the same whichever type it was loaded as.

    but: beginnings of the names of weights that do not count, as those of a head that is new.
    """
    value = 0
    for name, weight in sorted(model.named_parameters()):
        if name.startswith(but):
            continue
        head = weight.detach().reshape(-1)[: HEAD // 2].to("cpu", torch.bfloat16).view(torch.int16)
        value = zlib.crc32(head.numpy().tobytes(), zlib.crc32(f"{name}{tuple(weight.shape)}".encode(), value))
    return f"{value:08x}"


def add_adapter(hp: Namespace, model: PreTrainedModel) -> PeftModel:
    """The model with a new LoRA adapter, the only part that is trained; raises Problem for modules that it has not."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        task_type="SEQ_CLS" if hp.objective == "reward" else "CAUSAL_LM",
        r=hp.lora_rank,
        lora_alpha=hp.lora_alpha,
        lora_dropout=hp.lora_dropout,
        target_modules=list(hp.lora_targets) if hp.lora_targets else "all-linear",
    )
    kinds = (torch.nn.Linear, torch.nn.Embedding)
    ends = {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, kinds)}
    try:
        return get_peft_model(model, config)
    except (ValueError, TypeError) as error:
        layers = f"lora_targets may be among {', '.join(sorted(ends))}"
        raise Problem(f"{type(model).__name__} takes no such adapter: {first_line(error)}; {layers}") from error


def load_adapter(folder: str, model: PreTrainedModel) -> Any:
    """The model with the adapter of a folder; raises Problem."""
    from peft import PeftModel

    try:
        return PeftModel.from_pretrained(model, folder, local_files_only=True)
    except Exception as error:
        raise unloadable(folder, "adapter", error) from error


def merged(model: PeftModel) -> Any:
    """The whole model, with its adapter written into it; it answers as both did.

    A weight that modules share, as embeddings and head often do, is one of its own first in each that the adapter changes.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    holders = Counter(id(weight) for _, weight in model.named_parameters(remove_duplicate=False))
    apart = []
    for path, layer in model.named_modules():
        base = layer.get_base_layer() if isinstance(layer, BaseTunerLayer) else torch.nn.Identity()
        for name, weight in list(base.named_parameters(recurse=False)):
            if holders[id(weight)] > 1:
                setattr(base, name, torch.nn.Parameter(weight.detach().clone(), requires_grad=False))
                apart.append(path.rpartition(".")[2])
    whole: Any = model.merge_and_unload()
    if apart:
        note(f"the adapter changes {', '.join(apart)}, whose weights are shared: they are apart in the whole model")
        for config in (whole.config, whole.config.get_text_config()):
            config.tie_word_embeddings = False
    return whole
