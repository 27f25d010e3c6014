"""The topics of the table and the names of their cases, read from the sources: to collect the tests nothing is imported."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

# Modules of this folder with cases, by what goes wrong in them.
TOPICS = {
    "training": (
        *("replicas", "optimizers", "absent", "failures", "amazon", "results", "reruns", "losses", "calls", "noted"),
        *("surroundings", "whole", "sharded_stages", "offloaded", "in_half", "half_in_parts", "recomputed", "reads"),
    ),
    "models": ("routes", "sideways", "in_place", "objects", "modules", "outside", "forms"),
    "defects": (
        *("defects", "verified", "in_parts", "aliases", "callables", "places", "kept", "asked", "ways", "remembered"),
        *("updates", "copies"),
    ),
    "larger": (
        *("without_values", "tensor", "pairs", "sequences", "vocabulary", "mixtures"),
        *("tensor_stages", "stage_pairs", "stage_experts", "divided_without_values"),
    ),
    "joint": ("context", "context_shards", "context_parts", "whole_in_shards", "pretrained"),
    "sequences": ("context_stages",),
    "sharded": ("sharded_parts", "sharded_pairs", "sharded_part_stages"),
}
_CONTEXT, _TENSOR, _VERIFY = "parallel/engine/context", "parallel/engine/tensor", "parallel/engine/verify"
_STAGE_SHARDS, _BLOCK_SHARDS = "parallel/engine/stage_shards.py", "parallel/engine/block_shards.py"
_DELAYED, _MASTERS, _SHARDS = "parallel/delayed", "parallel/masters.py", "parallel/ground/shards.py"
# Rooms of the toolkit, folders and files below trainshed/, by the topics that are about them; others are about everything.
ROOMS = {
    "absent": ("parallel/engine/remote_parameters.py",),
    "amazon": ("compat/smdistributed",),
    "asked": ("parallel/plan",),
    "context": (_CONTEXT,),
    "context_parts": (_CONTEXT, _TENSOR),
    "context_shards": (_CONTEXT, _BLOCK_SHARDS, _SHARDS),
    "context_stages": (_CONTEXT,),
    "copies": ("parallel/reads.py", "parallel/optimizer.py", _SHARDS),
    "defects": (_VERIFY, "parallel/engine/gradients.py"),
    "divided_without_values": (_DELAYED, _TENSOR),
    "half_in_parts": (_MASTERS, "parallel/ground/halves.py", "parallel/optimizer.py", _STAGE_SHARDS, _TENSOR),
    "in_half": (_MASTERS, "parallel/ground/halves.py", "parallel/optimizer.py"),
    "in_parts": (_VERIFY,),
    "kept": ("parallel/record",),
    "mixtures": (_TENSOR,),
    "noted": ("parallel/record",),
    "offloaded": ("parallel/engine/offload.py",),
    "optimizers": ("parallel/clip.py", "parallel/optimizer.py", "parallel/lbfgs.py"),
    "pairs": (_TENSOR,),
    "places": ("parallel/collective_errors.py", "parallel/engine/exchange.py"),
    "pretrained": (_DELAYED, _SHARDS),
    "reads": (
        "parallel/reads.py",
        "parallel/mixing.py",
        "parallel/local_parts.py",
        "parallel/clip.py",
        "parallel/optimizer.py",
        _SHARDS,
    ),
    "recomputed": ("parallel/stages/recompute.py", "parallel/replay"),
    "remembered": (_VERIFY, "parallel/record"),
    "replicas": ("parallel/engine/gradients.py",),
    "results": ("parallel/engine/outputs.py",),
    "sequences": (_TENSOR,),
    "sharded_pairs": (_TENSOR, _BLOCK_SHARDS, _SHARDS),
    "sharded_part_stages": (_TENSOR, _STAGE_SHARDS, "parallel/stages/stage_parts.py", _SHARDS),
    "sharded_parts": (_TENSOR, _BLOCK_SHARDS, _SHARDS),
    "sharded_stages": (_STAGE_SHARDS, _SHARDS),
    "sideways": ("parallel/record",),
    "stage_experts": (_TENSOR, "parallel/stages/stage_parts.py"),
    "stage_pairs": (_TENSOR, "parallel/stages/stage_parts.py"),
    "surroundings": ("parallel/record",),
    "tensor": (_TENSOR,),
    "tensor_stages": (_TENSOR, "parallel/stages/stage_parts.py"),
    "verified": (_VERIFY,),
    "updates": (_VERIFY, "parallel/clip.py", "parallel/optimizer_check.py", "parallel/undivided_update.py"),
    "vocabulary": (_TENSOR,),
    "whole": ("parallel/full_model.py",),
    "whole_in_shards": (_BLOCK_SHARDS, _SHARDS, _VERIFY),
    "without_values": (_DELAYED,),
}
# Cases of one start of so many ranks: that many take a few minutes, where others use the cores as well.
MOST = {2: 40, 4: 12, 8: 3}
# How cases are written: `@found`, a defect that is planted, is a case of two ranks.
_WRITTEN = re.compile(
    r"""^(?: @?case\(ranks=(?P<ranks>\d)(?P<heavy>,\ heavy=True)?(?:,\ name="(?P<name>\w+)")?\)
           | @(?P<long>long_case)\(ranks=(?P<long_ranks>\d)(?P<long_heavy>,\ heavy=True)?\)
           | @found\( | found\("(?P<found>\w+)" ).*\n(?:^def\ (?P<function>\w+))?""",
    re.MULTILINE | re.VERBOSE,
)


class Case(NamedTuple):
    """A case of the table: `topic:function`, and who runs it. One that takes long is heavy."""

    name: str
    ranks: int
    heavy: bool

    @property
    def topic(self) -> str:
        """The module that it is in."""
        return self.name.partition(":")[0]


@cache
def cases() -> tuple[Case, ...]:
    """All, in the order in which they are written."""
    return tuple(case for topics in TOPICS.values() for topic in topics for case in _cases_of(topic))


def _cases_of(topic: str) -> list[Case]:
    found = []
    for one in _WRITTEN.finditer(Path(__file__).with_name(f"{topic}.py").read_text()):
        name = f"{topic}:{one['name'] or one['found'] or one['function']}"
        ranks = int(one["ranks"] or one["long_ranks"] or 2)
        if not (one["long"] and one["long_heavy"]):
            found.append(Case(name, ranks, bool(one["heavy"])))
        if one["long"]:
            found.append(Case(f"{name}_for_twenty_steps", ranks, True))
    return found


def chosen(ranks: int, *parts: str, heavy: bool = False) -> list[Case]:
    """The cases for that many ranks, of these parts or of all: either the heavy ones or the others."""
    topics = [topic for part in parts or TOPICS for topic in TOPICS[part]]
    return [case for case in cases() if (case.ranks, case.heavy) == (ranks, heavy) and case.topic in topics]


@cache
def starts() -> dict[str, str]:
    """The start of ranks that each case is in, by its name: those of one start stay with one worker, in their order."""
    found = {}
    for ranks, most in MOST.items():
        rows = {part: chosen(ranks, part) for part in TOPICS} | {"heavy": chosen(ranks, heavy=True)}
        for part, together in rows.items():
            count = -(-len(together) // most)
            found |= {one.name: f"{part} {ranks} {at * count // len(together) + 1}" for at, one in enumerate(together)}
    return found
