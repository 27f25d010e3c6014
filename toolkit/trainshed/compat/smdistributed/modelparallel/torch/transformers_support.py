"""Parts that transformers' Trainer needs to train through this library.

transformers 5 delays the making of the optimizer until the model is wrapped, and then makes none on this path: it is made
before the scheduler asks for it. Its loss is the one of a single process (`trainer_loss`). It generates with the module that
it was given, whose parameters are on several ranks: the pipeline's model does that. transformers 4 wraps the optimizer in
accelerate's, which has to hand on what it is asked for when a checkpoint is written. accelerate knows nothing of replicas on
this path: it would give each of them all of the training data. Nor do its arguments know
`--mp_parameters` any more, which the platform puts on every such script's command line: its parser then lets that pass.

Scripts for the closed library take a GPU for granted; where there is none they get the CPU:
`torch.cuda.set_device(smp.local_rank())` does nothing then, and transformers' Trainer, which asks for `cuda:N` wherever the
library is present, gets the CPU from the first time it asks for its rank.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from trainshed.parallel import PipelineModel
from trainshed.parallel.session import session

from . import trainer_loss

_done: set[str] = set()


def apply() -> None:
    """Replaces what has to be replaced, as soon as the classes exist; costs nothing when called again."""
    _make_optimizer()
    _count_tokens()
    _accept_parameters()
    _generate_with_the_whole_model()
    _hand_on_states()
    _share_out_data()
    if torch.cuda.is_available():
        return
    if "cuda" not in _done:
        _done.add("cuda")
        torch.cuda.set_device = _no_device  # type: ignore[assignment]
    module = sys.modules.get("transformers.training_args")
    arguments = getattr(module, "TrainingArguments", None)
    if arguments is None or "transformers" in _done:
        return
    _done.add("transformers")
    arguments._setup_devices = property(_cpu)  # hides what an instance has cached under this name
    print("trainshed: transformers' Trainer runs on the CPU: there is no GPU", flush=True)


def _make_optimizer() -> None:
    trainer = getattr(sys.modules.get("transformers.trainer"), "Trainer", None)
    if trainer is None or "optimizer" in _done:
        return
    _done.add("optimizer")
    native = trainer.create_scheduler

    def create_scheduler(self: Any, num_training_steps: int, optimizer: Any = None) -> Any:
        if self.optimizer is None and optimizer is None:
            self.create_optimizer()
        return native(self, num_training_steps, optimizer)

    trainer.create_scheduler = create_scheduler


def _count_tokens() -> None:
    trainer = getattr(sys.modules.get("transformers.trainer"), "Trainer", None)
    if trainer is None or "loss" in _done or not hasattr(trainer, "_get_num_items_in_batch"):
        return  # older versions never count
    _done.add("loss")
    trainer_loss.install(trainer)


def _accept_parameters() -> None:
    if "transformers.training_args" not in sys.modules or "arguments" in _done:
        return
    _done.add("arguments")
    from transformers.hf_argparser import HfArgumentParser

    native = HfArgumentParser.parse_known_args

    def parse_known_args(self: Any, args: Any = None, namespace: Any = None) -> Any:
        found, rest = native(self, args, namespace)
        if "--mp_parameters" in rest:
            at = rest.index("--mp_parameters")
            del rest[at : at + 2]
        return found, rest

    HfArgumentParser.parse_known_args = parse_known_args  # type: ignore[method-assign]


def _generate_with_the_whole_model() -> None:
    """Seq2SeqTrainer (`predict_with_generate`) asks the module itself."""
    mixin = getattr(sys.modules.get("transformers.generation.utils"), "GenerationMixin", None)
    if mixin is None or "generate" in _done:
        return
    _done.add("generate")
    native = mixin.generate

    @functools.wraps(native)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        model = session.model
        if isinstance(model, PipelineModel) and model.module is self and not session.in_step:
            return model.generate(*args, **kwargs)
        return native(self, *args, **kwargs)

    mixin.generate = generate


def _hand_on_states() -> None:
    wrapper = getattr(sys.modules.get("accelerate.optimizer"), "AcceleratedOptimizer", None)
    if wrapper is None or "states" in _done:
        return
    _done.add("states")

    def local_state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.optimizer.local_state_dict(*args, **kwargs)

    wrapper.local_state_dict = local_state_dict


def _share_out_data() -> None:
    """Each replica trains on its part of the data, as with DistributedDataParallel; all evaluate on all of theirs."""
    trainer = getattr(sys.modules.get("transformers.trainer"), "Trainer", None)
    accelerator = sys.modules.get("accelerate.accelerator")
    if trainer is None or accelerator is None or "data" in _done:
        return
    _done.add("data")
    native, prepare = trainer.get_train_dataloader, accelerator.prepare_data_loader  # type: ignore[attr-defined]
    trains: Any = None

    def prepare_data_loader(*args: Any, **kwargs: Any) -> Any:
        if trains is not None:  # not dispatched: the ranks of a pipeline read the same themselves
            kwargs |= {
                "num_processes": trains.world_size,
                "process_index": trains.process_index,
                "dispatch_batches": False,
            }
        return prepare(*args, **kwargs)

    @functools.wraps(native)
    def get_train_dataloader(self: Any) -> Any:
        nonlocal trains
        trains = self.args
        try:
            return native(self)
        finally:
            trains = None

    accelerator.prepare_data_loader = prepare_data_loader  # type: ignore[attr-defined]
    trainer.get_train_dataloader = get_train_dataloader


def _no_device(_device: Any) -> None:
    return None


def _cpu(arguments: Any) -> torch.device:
    arguments.distributed_state = None
    arguments._n_gpu = 0
    return torch.device("cpu")
