"""Whose end is the job's where a wrapper died of the stop signal."""

from __future__ import annotations

from trainshed.container.supervisor.wrappers import scripts_end

# What wrappers have started, how processes ended, the script's end (None where it is not known). Process 1 is the rank.
CASES = {
    "one child": ({1: [2]}, {2: 75}, 75),
    "a wrapper in a wrapper": ({1: [2], 2: [3]}, {2: -15, 3: 75}, 75),
    "a wrapper whose end another wrapper saw": ({1: [2], 2: [3]}, {3: 75}, 75),
    "a success is one": ({1: [2]}, {2: 0}, 0),
    "the script died of the signal": ({1: [2]}, {2: -15}, None),
    "a worker of a script that died is not the script": ({1: [2]}, {2: -15, 3: 0}, None),
    "a helper that died of the signal": ({1: [2, 3]}, {2: 75, 3: -15}, 75),
    "two that ended": ({1: [2, 3]}, {2: 75, 3: 0}, None),
    "one that was killed": ({1: [2]}, {2: -9}, None),
    "one that was killed beside a helper": ({1: [2, 3]}, {2: -9, 3: 0}, None),
    "a child that the wrapper has seen itself": ({1: [2]}, {}, None),
    "not a wrapper": ({}, {2: 75}, None),
}


def test_the_scripts_end_is_known_where_there_is_one_script() -> None:
    found = {name: scripts_end(started, ends, 1, 15) for name, (started, ends, _) in CASES.items()}
    assert found == {name: end for name, (_, _, end) in CASES.items()}
