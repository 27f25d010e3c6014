"""The table's topics, what each is about, and its cases: what a collection of tests needs to know, without torch.

`python -m trust.topics`, in tests/jobs/parallel, lists the cases in cases.txt anew.
"""

from __future__ import annotations

import sys
from pathlib import Path

CASES = Path(__file__).with_name("cases.txt")
# Modules of this folder with cases, by what goes wrong in them. The topics of a part share a start of ranks.
TOPICS = {
    "training": (
        *("replicas", "optimizers", "absent", "failures", "amazon", "results", "reruns", "losses", "calls", "noted"),
        *("surroundings", "whole", "sharded_stages", "offloaded", "in_half", "half_in_parts", "recomputed"),
    ),
    "models": ("routes", "sideways", "in_place", "objects", "modules", "outside", "forms"),
    "defects": ("defects", "verified", "in_parts", "aliases", "callables", "places", "kept", "asked", "ways", "remembered"),
    "larger": (
        *("without_values", "tensor", "pairs", "sequences", "vocabulary", "mixtures"),
        *("tensor_stages", "stage_pairs", "stage_experts", "divided_without_values"),
    ),
    "joint": ("context", "context_shards", "context_parts", "whole_in_shards", "pretrained"),
    "sequences": ("context_stages",),
    "sharded": ("sharded_parts", "sharded_pairs", "sharded_part_stages"),
}
ORDER = [topic for part in TOPICS.values() for topic in part]
# What of the toolkit a topic is about: a change there plays all its cases in every slice of the matrix. Topics without a
# row are about all of parallel/.
ROOMS = {
    **dict.fromkeys(("tensor", "pairs", "sequences", "vocabulary", "mixtures"), ("parallel/engine/tensor",)),
    **dict.fromkeys(("context", "context_shards", "context_parts", "context_stages"), ("parallel/engine/context",)),
    **dict.fromkeys(("in_half", "half_in_parts"), ("parallel/halves.py", "parallel/masters.py")),
    **dict.fromkeys(("surroundings", "noted", "remembered"), ("parallel/record", "parallel/replay")),
    **dict.fromkeys(("verified", "asked"), ("parallel/engine/verify",)),
    "sharded_stages": ("parallel/shards.py",),
    "recomputed": ("parallel/delayed",),
}


def names(ranks: int, *parts: str, heavy: bool = False) -> list[str]:
    """The cases for that many ranks, of these parts or of all: either those that are light or the heavy ones."""
    topics = [topic for part in parts or TOPICS for topic in TOPICS[part]]
    wanted = [str(ranks), "heavy" if heavy else "light"]
    lines = [line.split(maxsplit=2) for line in CASES.read_text().splitlines()]
    return [name for *kind, name in lines if kind == wanted and name.partition(":")[0] in topics]


if __name__ == "__main__":
    sys.path[:0] = [".", "../..", "../../../toolkit"]
    from trust.table import listed

    CASES.write_text("\n".join(listed()) + "\n")
