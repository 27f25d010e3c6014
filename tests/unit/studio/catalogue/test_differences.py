"""`trainshed show` and `trainshed diff`: what they tell, and what they refuse to call equal."""

from __future__ import annotations

import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from support.run_folders import lay_run

from .conftest import Told

DATA = {"digest": "sampled:0123456789abcdef", "files": 3, "bytes": 1000, "read": 1000}


def lay(folder: Path, code: dict[str, bytes | str] | None = None, *, job: dict[str, Any] | None = None, **more: Any) -> Path:
    """A run's folder with code, and a run record with packages and fingerprints."""
    packages, data = more.pop("packages", {"torch": "2.13.0", "numpy": "2.4.6"}), more.pop("data", {"train": DATA})
    run = lay_run(folder, **more)
    about = json.loads((run / "job.json").read_text())
    fields = {"instances": 1, "channels": [{"name": name, "path": f"/data/{name}"} for name in data], "environment": {}}
    about["job"] = {**about["job"], **fields, **(job or {})}
    (run / "job.json").write_text(json.dumps(about))
    sums = {}
    for name, text in (code if code is not None else {"train.py": "print(1)\n"}).items():
        path = run / "algo-1/code" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        sums[name] = {"size": path.stat().st_size, "sha256": sha256(path.read_bytes()).hexdigest()}
    (run / "code.json").write_text(json.dumps({"files": sums}))
    noted = {"code": {"digest": "whole:1", "files": len(sums), "bytes": 9, "source": "/src", "kept": "algo-1/code"}}
    (run / "provenance.json").write_text(json.dumps(noted))
    record = run / "algo-1/output/data/run/algo-1.json"
    record.parent.mkdir(parents=True, exist_ok=True)
    hardware = {"cpus": 2, "gpus": 0, "memory_bytes": 8_000_000_000}
    environment = {"python": "3.11.2", "platform": "Linux x86_64", "packages": packages} if packages else {}
    record.write_text(json.dumps({"cluster": {"hardware": hardware}, "environment": environment, "fingerprints": data}))
    return run


def differs(trainshed: Told) -> Any:
    """What `diff a b` tells as JSON."""
    return trainshed("diff", "a", "b", "--json").rows


def test_runs_that_are_equal_in_all_that_is_known(place: Path, trainshed: Told) -> None:
    lay(place / "runs/a", metrics={"loss": [1.0, 0.5]})
    lay(place / "runs/b", metrics={"loss": [1.0, 0.5]})

    told = trainshed("diff", "a", "b")

    assert told.out == "a -> b: nothing differs\n" and differs(trainshed)["unknown"] == {}


def test_each_section_says_what_differs_and_nothing_else(place: Path, trainshed: Told) -> None:
    lay(
        place / "runs/a", {"train.py": "a = 1\nb = 2\nc = 3\n", "old.py": "x\n", "same.py": "s\n"},
        hps={"lr": "0.1", "kind": '"x"', "one": "1"}, metrics={"loss": [1.0, 0.5]},
        job={"environment": {"A": "1"}, "retries": 2},
    )  # fmt: skip
    lay(
        place / "runs/b", {"train.py": "a = 1\nb = 20\nc = 3\n", "sub/new.py": "y\n", "same.py": "s\n"},
        hps={"lr": "0.10", "kind": '"y"', "two": "2"}, metrics={"loss": [1.0, 0.25]}, state="Failed",
        FailureReason="ValueError: x",
        packages={"torch": "2.12.0", "numpy": "2.4.6", "scipy": "1"}, data={"train": {**DATA, "digest": "sampled:ffff"}},
    )  # fmt: skip
    told = differs(trainshed)
    text = trainshed("diff", "a", "b").out

    assert told["differs"]["hyperparameters"] == {"kind": ["x", "y"], "one": [1.0, None], "two": [None, 2.0]}
    assert told["differs"]["packages"] == {"torch": ["2.13.0", "2.12.0"], "scipy": [None, "1"]}
    assert told["differs"]["data"] == {"train": ["sampled:0123456789abcdef", "sampled:ffff"]}
    assert told["differs"]["environment"] == {"A": ["1", None]} and told["differs"]["settings"] == {"retries": [2, None]}
    assert list(told["differs"]["code"]) == ["old.py", "sub/new.py", "train.py"]
    assert told["differs"]["metrics"] == {"loss last": [0.5, 0.25], "loss min": [0.5, 0.25]}
    assert told["differs"]["outcome"] == {"state": ["Completed", "Failed"], "cause": [None, "ValueError: x"]}
    assert {"program", "image", "machine", "parents"} == set(told["equal"]) and told["unknown"] == {}
    assert "--- a/train.py\n  +++ b/train.py\n  @@ -1,3 +1,3 @@\n   a = 1\n  -b = 2\n  +b = 20\n   c = 3\n" in text
    assert text.startswith(
        "a -> b: they differ in hyperparameters (kind, one, two), code (old.py, sub/new.py, train.py), packages"
    )
    assert "; and in what came of it: outcome (state, cause), metrics (loss last, loss min)\n" in text
    assert "same.py" not in text


def test_results_alone(place: Path, trainshed: Told) -> None:
    lay(place / "runs/a", metrics={"loss": [0.5]})
    lay(place / "runs/b", metrics={"loss": [float("nan")]}, seconds=70)

    assert trainshed("diff", "a", "b").out.startswith(
        "a -> b: nothing differs but what came of it: outcome (duration), metrics (loss last, loss min, loss max)\n"
    )


UNSURE = {
    "a secret": ({"hps": {"api_key": '"******"'}}, "hyperparameters", "api_key is a secret, which is not kept"),
    "no packages": ({"packages": {}}, "packages", "has noted none"),
    "data not hashed": ({"data": {"train": {**DATA, "digest": ""}}}, "data", "train has no fingerprint of all its data in"),
    "data in part": ({"data": {"train": {**DATA, "digest": "incomplete:1"}}}, "data", "no fingerprint of all its data"),
    "an image by name": ({"AlgorithmSpecification": {"TrainingImage": "x:latest"}}, "image", "was not noted"),
}


@pytest.mark.parametrize("what", UNSURE, ids=str)
def test_what_is_not_known_is_said_and_not_called_equal(what: str, place: Path, trainshed: Told) -> None:
    more, section, words = UNSURE[what]
    lay(place / "runs/a", **more)  # type: ignore[arg-type]
    lay(place / "runs/b", **more)  # type: ignore[arg-type]
    told = differs(trainshed)

    assert words in told["unknown"][section] and section not in told["equal"] and section not in told["differs"]
    assert f"Not compared: {section}" in told["summary"] and words in trainshed("diff", "a", "b").out


def test_fingerprints_of_two_methods_and_code_that_was_not_kept(place: Path, trainshed: Told) -> None:
    lay(place / "runs/a")
    run = lay(place / "runs/b", data={"train": {**DATA, "digest": "whole:0123456789abcdef"}})
    for name in ("algo-1/code/train.py", "code.json"):
        (run / name).unlink()
    (run / "algo-1/code").rmdir()
    told = differs(trainshed)

    assert "different methods" in told["unknown"]["data"] and "b has not kept its code" in told["unknown"]["code"]


def test_code_of_runs_without_hashes_is_compared_by_its_files(place: Path, trainshed: Told) -> None:
    """Also where only the last byte of a large file differs."""
    large = b"\0" * (600 << 10)
    for name, end in (("a", b"1"), ("b", b"2")):
        run = lay(place / f"runs/{name}", {"train.py": "x\n", "large.bin": large + end, "table.csv": f"{end!r}\n"})
        (run / "code.json").unlink()
    told = differs(trainshed)

    assert list(told["differs"]["code"]) == ["large.bin", "table.csv"]
    assert "changed: large.bin (larger than" in told["code_diff"]


@pytest.mark.safety
def test_files_that_are_no_text_or_hold_secrets_or_control_a_terminal(place: Path, trainshed: Told) -> None:
    key = "hf_abcdefghijklmnopqrstuvwxyz"
    lay(
        place / "runs/a",
        {"b.bin": b"\0a", "s.py": f"key = '{key}'\n", "t.py": "x\n", "e": "", "n.py": "a\n", "l.py": "\n" * 30_000},
    )
    lay(place / "runs/b", {"b.bin": b"\0b", "s.py": "key = ''\n", "t.py": "\x1b[2J\n", "n.py": "a", "l.py": "\n" * 30_001})
    told = trainshed("diff", "a", "b")

    assert "changed: b.bin (binary)" in told.out and "removed: e (in its line ends, or it is empty)" in told.out
    assert "changed: l.py (more than 20,000 lines)" in told.out and "changed: n.py (in its line ends" in told.out
    assert key not in told.out and "\x1b" not in told.out and "\\x1b[2J" in told.out


def test_a_long_difference_is_cut_and_says_so(place: Path, trainshed: Told) -> None:
    lay(place / "runs/a", {"x.py": "".join(f"{number}\n" for number in range(3000)), "y.py": "1\n"})
    lay(place / "runs/b", {"x.py": "", "y.py": "2\n"})

    assert "1,003 lines more, and what differs in later files" in trainshed("diff", "a", "b").out


@pytest.mark.safety
def test_links_in_a_folder_that_somebody_sent_lead_nowhere(place: Path, trainshed: Told) -> None:
    (place / "secret").write_text("root:x:0:0\n")
    a = lay(place / "runs/a")
    b = lay(place / "runs/b", {"train.py": "print(2)\n"})
    for run, name in ((a, "passwd"), (b, "train.py")):
        path = run / "algo-1/code" / name
        path.unlink(missing_ok=True)
        path.symlink_to(place / "secret")
    sums = {"../../../../secret": {"size": 11, "sha256": sha256(b"root:x:0:0\n").hexdigest()}}
    noted = json.loads((a / "code.json").read_text())["files"]
    (a / "code.json").write_text(json.dumps({"files": {**noted, **sums}}))

    told = trainshed("diff", "a", "b")

    assert told.status == 0 and "root:x" not in told.out and "not in the run's folder any more" in told.out
    (a / "code.json").unlink()
    (b / "code.json").unlink()
    assert "root:x" not in trainshed("diff", "a", "b").out
    saved = json.loads((a / "provenance.json").read_text())
    (a / "provenance.json").write_text(json.dumps({"code": {**saved["code"], "kept": "../.."}}))
    assert "root:x" not in trainshed("diff", "a", "b").out


def test_a_copy_of_code_that_was_changed_since_is_said(place: Path, trainshed: Told) -> None:
    lay(place / "runs/a")
    run = lay(place / "runs/b", {"train.py": "print(2)\n"})
    (run / "algo-1/code/train.py").write_text("print(3)\n")

    assert (
        "changed: train.py (its copy in the run's folder was changed since the run started)"
        in trainshed("diff", "a", "b").out
    )


def test_show_has_everything_on_one_screen(place: Path, trainshed: Told) -> None:
    lay(
        place / "runs/a", hps={"lr": "0.1", "my_token": '"tigerpass1"'}, 
        metrics={"loss": [1.0, 0.25, 0.5], "odd": [float("nan")]},
        tags={"stage": "final"}, state="Failed", FailureReason="ValueError: bad\nat train.py:3",
        job={"environment": {"A": "b"}},
    )  # fmt: skip
    trainshed("note", "a", "the one of the talk")
    told = trainshed("show", "a")
    lines = [" ".join(line.split()) for line in told.out.splitlines()]

    assert lines[0] == "failed a" and "ValueError: bad" in lines and "at train.py:3" in lines
    for line in (
        "program train.py on 1 host", "exit 0", "cause ValueError: bad", "tags stage=final", "hyperparameters lr 0.1",
        "my_token ******", "loss 3 1 0.5 0.25 1 0.25", "odd 1 NaN NaN NaN NaN -", "variables A=b",
        "data train: /data/train, sampled:0123456789abcdef (3 files, 1.0 kB)", "code whole:1 (1 file, 9 B) from /src",
        "packages Python 3.11.2, torch 2.13.0, numpy 2.4.6", "machine Linux x86_64, 2 cpus, 0 gpus, 8.0 GB of memory",
        "folder runs/a",
    ):  # fmt: skip
        assert line.replace(", 0 gpus", "") in [one.replace(", 0 gpus", "") for one in lines], (line, told.out)
    assert any(line.startswith("notes ") and line.endswith("the one of the talk") for line in lines)
    assert "tigerpass1" not in told.out + trainshed("show", "a", "--json").out
    assert trainshed("show", "a", "--json").rows["metrics"]["loss"] == {
        "count": 3, "first": 1.0, "last": 0.5, "min": 0.25, "max": 1.0,
    }  # fmt: skip


def test_a_folder_with_almost_nothing_and_one_of_any_form(place: Path, trainshed: Told) -> None:
    (place / "runs/bare").mkdir(parents=True)
    (place / "runs/bare/status.json").write_text("{}\n")
    (place / "runs/bare/job.json").write_text('{"run": "bare", "job": {"environment": [1], "channels": 3, "tags": "x"}}')
    odd = lay(
        place / "runs/odd",
        job={"channels": [1, {"name": 3, "path": []}], "environment": {"A": [1]}, "spot": {"a": [float("inf")]}},
    )
    (odd / "provenance.json").write_text(
        json.dumps({"code": [], "git": 3, "image": {"id": []}, "model": {"files": [1]}, "parents": 1})
    )
    os.truncate(odd / "algo-1/output/data/run/algo-1.json", 20)

    for name in ("bare", "odd"):
        assert trainshed("show", name).status == trainshed("show", name, "--json").status == 0
    assert trainshed("diff", "bare", "odd").status == trainshed("diff", "odd", "bare", "--json").status == 0
    assert trainshed("diff", "bare").status == 2 and "there is no run" in trainshed("diff", "bare", "nothing").err
