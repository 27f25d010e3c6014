"""Models that do not fit beside their optimizer: each rank keeps a part of every weight (FSDP2, by accelerate's plugin).

accelerate leaves ranks on CPUs to DistributedDataParallel, whatever plugin it is given. So the plugin is put in place after
the Trainer has made its Accelerator, in the same way for GPUs and CPUs.
"""

from __future__ import annotations

import os
from argparse import Namespace
from typing import Any

import torch
from _common import Problem, World

FULL = 0.7  # of a rank's memory: the rest is for activations and buffers
GRADIENTS = 2  # copies: the weights' own, and the buckets of DistributedDataParallel
MOMENTS = 2  # of AdamW


def bytes_to_train(model: torch.nn.Module) -> int:
    """What a rank needs that holds the whole model: weights, gradients and AdamW's state; activations come to it."""
    total = 0
    for weight in model.parameters():
        copies = 1 + (GRADIENTS + MOMENTS) * weight.requires_grad
        total += copies * weight.numel() * weight.element_size()
    return total


def memory(world: World) -> int:
    """Bytes that this rank may take: of its GPU, or its share of the host's memory, or of what the container may have."""
    if world.device.type == "cuda":
        return int(torch.cuda.get_device_properties(world.device).total_memory)
    from trainshed.machine.hardware import probe

    return probe(os.environ).memory_bytes // max(int(os.environ.get("LOCAL_WORLD_SIZE") or 1), 1)


def wanted(hp: Namespace, model: torch.nn.Module, world: World) -> bool:
    """Whether to shard: as asked, else where the model does not fit a rank's memory. Collective; raises Problem."""
    if hp.sharding == "replicate":
        return False
    if hp.sharding == "shard" and world.size > 1 and world.device.type == "cpu" and torch.cuda.is_available():
        raise Problem("sharding is shard and device is cpu, but FSDP2 takes the GPUs that are here: leave device out")
    if world.size == 1:
        if hp.sharding == "shard":
            world.say("sharding: one rank holds the whole model; start more to share it")
        return False
    if hp.sharding == "shard":
        return True
    need, least = bytes_to_train(model), min(world.gather(memory(world)))
    if need <= FULL * least or (world.device.type == "cpu" and torch.cuda.is_available()):
        return False
    gib = 1 << 30
    world.say(f"sharding: to train it takes {need / gib:.1f} GiB a rank, and one has {least / gib:.1f}: each keeps a part")
    return True


def prepare_for(accelerator: Any) -> None:
    """Has an Accelerator shard the model that it prepares next: unit by unit, gathered for computing, freed after it.

    With mixed precision, weights travel and compute in it; gradients are summed in float32.
    """
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
    from torch.distributed.fsdp import MixedPrecisionPolicy

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        state_dict_type="SHARDED_STATE_DICT",
        cpu_ram_efficient_loading=False,
    )
    if accelerator.mixed_precision == "bf16":
        plugin.mixed_precision_policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    accelerator.state.distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = plugin


def is_sharded(model: torch.nn.Module) -> bool:
    """Whether ranks hold parts of it: then all have to compute with it together."""
    from torch.distributed.fsdp import FSDPModule

    return isinstance(model, FSDPModule)


def part_here(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor, which may be empty; all of it if it is not sharded."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def whole_state(model: torch.nn.Module) -> dict[str, Any]:
    """All weights, in main memory, on rank 0; nothing on the others. Collective."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
