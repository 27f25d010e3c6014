"""The gate is red for what it must be red for, and for nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.gate import areas, quarantine
from support.gate.selection import parse_slice
from support.import_graph import PACKAGE
from support.paths import ROOT

Gate = Callable[..., SimpleNamespace]
# Fails the first time, and passes then.
FLAKY = """
import pathlib, pytest
def flaky(name):
    seen = pathlib.Path(__file__).with_name(name)
    if not seen.exists():
        seen.touch()
        raise OSError("the first time")
"""


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """Runs a file of tests behind the gate, in a process of its own: what it printed, its status, its record of flakes."""

    def run(text: str, *options: str, ini: str = "") -> SimpleNamespace:
        (tmp_path / "tests").mkdir(exist_ok=True)
        (tmp_path / "tests/test_it.py").write_text(FLAKY + text)
        (tmp_path / "tests/conftest.py").write_text(
            'pytest_plugins = ("support.gate.hangs", "support.gate.selection", "support.gate.repeats")\n'
        )
        (tmp_path / "pytest.ini").write_text(
            f"[pytest]\npythonpath = {ROOT}/tests {ROOT}/toolkit\nmarkers =\n  safety\n  spine\n{ini}"
        )
        command = [sys.executable, "-m", "pytest", "-q", "--repeat", *options, "tests"]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
        record = tmp_path / "build/flakes.json"
        repeated = json.loads(record.read_text()) if record.exists() else []
        return SimpleNamespace(status=done.returncode, output=done.stdout + done.stderr, repeated=repeated)

    return run


def test_what_passes_when_repeated_is_told_and_green(gate: Gate) -> None:
    found = gate("def test_a(): flaky('a')\ndef test_b(): flaky('b')\ndef test_c(): pass\n", "-n", "1")

    assert found.status == 0, found.output
    assert [line.partition(": ")[2].partition(";")[0] for line in found.output.splitlines() if line.startswith("FLAKE")] == [
        "tests/test_it.py::test_a",
        "tests/test_it.py::test_b",
    ]
    assert "1 passed" in found.output and "2 flaky" in found.output
    assert "the first time" in found.repeated[0]["first"] and "1 passed" in found.repeated[0]["again"]


def test_a_flake_too_many_is_red(gate: Gate) -> None:
    found = gate("".join(f"def test_{name}(): flaky('{name}')\n" for name in "abc"))

    assert found.status == 1 and "red: 3 flakes, of which a green run may have 2" in found.output


def test_what_fails_again_is_red(gate: Gate) -> None:
    found = gate("def test_a(): assert 1 == 2\n")

    assert found.status == 1 and "FLAKE" not in found.output and "-m pytest 'tests/test_it.py::test_a'" in found.output


def test_a_flake_of_what_guards_data_is_red(gate: Gate) -> None:
    found = gate("@pytest.mark.safety\ndef test_a(): flaky('a')\n", "-n", "1")

    assert found.status == 1 and "red: it is marked safety" in found.output, found.output


def test_a_process_that_dies_is_red_even_if_it_lives_when_repeated(gate: Gate) -> None:
    text = "def test_a():\n    try: flaky('a')\n    except OSError:\n        import os; os.abort()\n"
    found = gate(text, "-n", "1")

    assert found.status == 1 and "FLAKE" in found.output, found.output


def test_a_hang_is_red_and_shows_where_each_process_waits(gate: Gate) -> None:
    script = "import time\ndef waits_in_the_script(): time.sleep(600)\nwaits_in_the_script()\n"
    text = (
        "import subprocess, sys, threading, time\n"
        "def waits_in_a_thread(stop): stop.wait()\n"
        "def test_a():\n    stop = threading.Event()\n"
        "    threading.Thread(target=waits_in_a_thread, args=[stop]).start()\n"
        f"    try: subprocess.run([sys.executable, '-c', {script!r}])\n    finally: stop.set()\n"
    )
    found = gate(text, "-n", "1", ini="timeout = 2\n")

    assert found.status == 1 and "hangs: still running after its limit of 2 s" in found.output, found.output
    assert "in waits_in_a_thread" in found.output and "waits_in_the_script (<string>:2)" in found.output


def test_a_process_that_is_stuck_outside_of_python_is_ended_and_its_stack_told(gate: Gate) -> None:
    text = (
        "from support.gate import hangs\nhangs.GRACE = 1\n"
        "def stuck():\n    import ctypes; ctypes.PyDLL(None).pause()\n"  # holds the interpreter's lock, as a collective may
        "def test_a():\n    import signal; signal.signal(signal.SIGALRM, signal.SIG_IGN); stuck()\n"
    )
    found = gate(text, "-n", "1", ini="timeout = 1\n")

    assert found.status == 1 and "ended while it was stuck in tests/test_it.py::test_a" in found.output, found.output
    assert "in stuck" in found.output


def test_a_test_in_quarantine_runs_is_shown_and_not_counted(gate: Gate, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/quarantine.toml").write_text("[[quarantined]]\ntest = 'tests/test_it.py::test_a'\n")
    found = gate("def test_a(): assert False\ndef test_b(): pass\n")

    assert found.status == 0 and "QUARANTINED, and failed: tests/test_it.py::test_a" in found.output, found.output


def test_a_run_says_what_was_left_out(gate: Gate) -> None:
    found = gate("@pytest.mark.spine\ndef test_a(): pass\ndef test_b(): pass\n", "--quick")

    assert found.status == 0 and "1 passed, 1 deselected" in found.output
    assert "ran unit tests and the spine. Left out 1 tests: make test-all" in found.output


# --- the tables ------------------------------------------------------------------------------------------------------


def test_the_quarantine_is_in_order() -> None:
    assert quarantine.faults(quarantine.entries(ROOT / quarantine.FILE), date.today()) == []


def test_a_quarantine_that_is_not_in_order_is_told() -> None:
    good = {
        "test": "tests/unit/test_gate.py::test_x",
        "first_seen": date(2026, 1, 1),
        "why": "unknown",
        "expires": date(2026, 1, 9),
    }
    today = date(2026, 1, 5)

    assert quarantine.faults([good], today) == []
    assert "has expired on 2026-01-09" in quarantine.faults([good], date(2026, 1, 10))[0]
    assert "more than 14 days" in quarantine.faults([{**good, "expires": date(2026, 2, 1)}], today)[0]
    assert "no such file" in quarantine.faults([{**good, "test": "tests/gone.py::test_x"}], today)[0]
    assert "has to have test, first_seen, why, expires" in quarantine.faults([{"test": "tests/unit/test_gate.py"}], today)[0]
    assert "at most 8" in quarantine.faults([good] * 9, today)[0]


def test_every_folder_of_whole_jobs_says_what_it_is_about() -> None:
    folders = {"jobs/" + path.name for path in (ROOT / "tests/jobs").iterdir() if any(path.glob("**/test_*.py"))}
    folders |= {path.name for path in (ROOT / "tests").iterdir() if any(path.glob("**/test_*.py"))} - {"unit", "jobs"}
    rooms = {room for rooms in areas.AREAS.values() for room in rooms}
    parts = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}

    assert areas.AREAS.keys() == folders
    assert [room for room in rooms if not (ROOT / room.strip("/") if room[0] == "/" else PACKAGE / room).exists()] == []
    assert parts - {room.partition("/")[0] for room in rooms} <= {"lineage", "contract"}, "a part that no folder is about"


def test_a_change_reaches_what_imports_it() -> None:
    assert areas.reached({PACKAGE / "studio/tune/tuner.py"}) == [
        "jobs/docs",
        "jobs/runner",
        "jobs/steps",
        "jobs/tune",
        "jobs/ui",
    ]
    assert {"clients", "jobs/checkpoint", "jobs/ssh", "jobs/ui"} < set(areas.reached({PACKAGE / "base/errors.py"}))
    assert areas.reached({ROOT / "LICENSE"}) == []
    assert areas.reached({ROOT / "entrypoints/tabular.py"}) == ["jobs/entrypoints"]
    assert areas.helped({ROOT / "tests/jobs/tune/test_kills.py"}) == []
    assert areas.helped({ROOT / "tests/jobs/tune/conftest.py"}) == ["jobs/tune"]
    assert areas.helped({ROOT / "tests/support/own_cluster.py"}) == ["jobs/kubernetes"]


def test_a_share_is_counted_from_one() -> None:
    assert parse_slice("") == [] and parse_slice("4/4") == [4, 4]
    for text in ("0/4", "5/4", "1", "a/b", "-1/4"):
        with pytest.raises(pytest.UsageError, match="takes a share as 1/4"):
            parse_slice(text)
