"""The roles of a parameter-server training: how many processes play each.

The names are those of TF_CONFIG ("Parameter server training with ParameterServerStrategy", tensorflow.org).
"""

from __future__ import annotations

from trainshed.base.errors import did_you_mean

CHIEF, WORKER, SERVER, EVALUATOR = "chief", "worker", "ps", "evaluator"
MOST = 4096  # processes of one role


def read_roles(value: object) -> dict[str, int]:
    """How many processes each role has, as a person wrote it.

    Args:
        value: an object such as {"worker": 4, "ps": 2}. A `chief` may be named, of which there is always one.

    Raises:
        ValueError: it says what is wrong.
    """
    if not isinstance(value, dict):
        raise ValueError('must be an object such as {"worker": 4, "ps": 2, "evaluator": 1}')
    least = {CHIEF: 1, WORKER: 0, SERVER: 1, EVALUATOR: 0}
    for role, number in value.items():
        if role not in least:
            near = did_you_mean(str(role), tuple(least))
            raise ValueError(f"{role!r} is not a role: {', '.join(least)} are{f' ({near})' if near else ''}")
        if not isinstance(number, int) or isinstance(number, bool) or not least[role] <= number <= MOST:
            raise ValueError(f"{role} must be a whole number from {least[role]} to {MOST}")
    if value.get(CHIEF, 1) != 1:
        raise ValueError("chief must be 1: the job is over when its chief is done")
    return {role: value[role] for role in least if role in value}
