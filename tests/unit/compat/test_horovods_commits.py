"""What a start goes on from of an elastic state's commits, whoever has written them."""

from __future__ import annotations

import datetime
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from support.lazy import Lazy
from support.offenders import check_each

commits = Lazy("trainshed.compat.horovod_api.horovod.torch.elastic.kept")
pytestmark = [pytest.mark.torch, pytest.mark.safety]


class Forged:
    """Leaves a file when it is unpickled."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (self.mark,)


class Own:
    """A class of the script's."""


def committed(folder: Path, *values: Any) -> Any:
    kept = commits.Kept(str(folder), "train")
    for value in values:
        kept.write({"number": kept.next_number, "ranks": 2, "content": {"values": value}})
    return kept


def value_of(folder: Path) -> Any:
    found = commits.Kept(str(folder), "train").newest()
    return found and found["content"]["values"]


def test_a_commit_holds_what_scripts_keep(tmp_path: Path) -> None:
    import numpy
    import torch

    values = [
        {"epoch": 3, "name": "a", "notes": [1, (2, None)]}, {1, 2}, frozenset({3}), range(4), 1 + 2j, b"x",
        torch.float32, numpy.float64(0.5), numpy.int64(3), datetime.datetime(2026, 1, 2), Path("/a"),
        numpy.random.default_rng(0).bit_generator.state,
    ]  # fmt: skip

    def check(value: Any) -> None:
        folder = tmp_path / str(id(value))
        committed(folder, value)
        assert value_of(folder) == value

    check_each(values, check)
    committed(tmp_path, numpy.arange(3))
    assert value_of(tmp_path).tolist() == [0, 1, 2]


def test_a_forged_commit_runs_nothing_even_with_its_checksum(tmp_path: Path, capfd: Any) -> None:
    import torch

    committed(tmp_path, "good")
    mark = tmp_path / "ran"
    for number, forged in enumerate([{"number": 2, "ranks": 2, "content": Forged(str(mark))}, Forged(str(mark))], 2):
        path = tmp_path / f"horovod-train-commit-{number}.pt"
        torch.save(forged, path)
        commits.sum_of(path).write_text(commits.digest_of(path))
    plain = tmp_path / "horovod-train-commit-4.pt"
    plain.write_bytes(pickle.dumps(Forged(str(mark))))
    commits.sum_of(plain).write_text(commits.digest_of(plain))

    assert value_of(tmp_path) == "good" and not mark.exists()
    told = capfd.readouterr().err
    assert [told.count(f"commit-{number}.pt cannot be read, trying the one before") for number in (2, 3, 4)] == [1, 1, 1]


def test_a_damaged_commit_or_checksum_is_passed_over_with_words(tmp_path: Path, capfd: Any) -> None:
    def damage(name: str, change: Any) -> None:
        folder = tmp_path / name
        committed(folder, "first", "second")
        change(folder / "horovod-train-commit-2.pt")
        assert value_of(folder) == "first"

    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    damage("flipped", flip)
    damage("cut", lambda path: os.truncate(path, 100))
    damage("another's sum", lambda path: commits.sum_of(path).write_text("0" * 64))
    damage("no sum", lambda path: commits.sum_of(path).unlink())
    assert capfd.readouterr().err.count("trying the one before") == 4


def test_a_state_with_objects_stays_in_memory_and_that_is_said_once(tmp_path: Path, capfd: Any) -> None:
    kept = committed(tmp_path, "plain", {"own": Own()}, {"own": Own()})

    told = capfd.readouterr().err
    assert told.count("commits stay in memory") == 1 and "test_horovods_commits.Own" in told and "state_dict" in told
    assert value_of(tmp_path) == "plain" and kept.next_number == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["horovod-train-commit-1.pt", "horovod-train-commit-1.pt.sum"]
