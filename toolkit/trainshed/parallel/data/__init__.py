"""Data parallelism over slow links: exchanges DDP's gradients in less time, the same up to the order of summation.

    from trainshed.parallel import data

    model = data.accelerate(DistributedDataParallel(model))

Each module knows those before it: host_layout (which ranks share a host), bucket_plan (pure: how long steps take with
buckets of other sizes, and which sizes are best), timeline (watches DDP's steps), stage_threads (messages through stages
in order), algorithms (ways to sum a message over hosts), links (how long each takes here), ddp_buckets (what is torch's
own affair), reducing (a model whose gradients go another way), steadiness (pure: whether steps take as long as they did),
deciding (decides, changes, compares, and again when the network has changed), power_sgd (gradients of low rank),
accelerated (the call, and what it leaves to DDP), ddp_hook (for jobs that ask by `trainshed_reduce`), host_lines
(messages in stages, beside the computation), few_bits (sums in fewer bytes), between_hosts (one exchange of hosts),
agreed_model (what they agree on, in fragments), fragments (its exchanges, among hosts that stay), roll_call,
signs_of_life, members, meeting_place, coming_and_going (hosts that come and go: who exchanges; who lives; how they find
that out; where they find each other; what they exchange), local_steps (hosts that agree on a model every some steps),
gradient_pieces (a loop's gradients as messages), plain_loops (the mean of gradients without DDP).

Importing this package does not import torch; using one of its names does.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .accelerated import accelerate
    from .local_steps import LocalSteps, LocalStepsError, host_group
    from .members import Members
    from .plain_loops import Gradients
    from .power_sgd import PowerSGD

__all__ = ["Gradients", "LocalSteps", "LocalStepsError", "Members", "PowerSGD", "accelerate", "host_group"]
_IN = {
    "accelerate": ".accelerated",
    "Gradients": ".plain_loops",
    "Members": ".members",
    "PowerSGD": ".power_sgd",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_IN.get(name, ".local_steps"), __name__), name)
