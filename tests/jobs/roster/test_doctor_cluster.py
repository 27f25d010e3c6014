"""`trainshed doctor --cluster`: hosts as processes on loopback addresses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.free_ports import free_ports
from support.paths import TOOLKIT


@pytest.fixture
def doctors(tmp_path: Path) -> Iterator[Callable[..., list[tuple[int, str]]]]:
    """Runs the command on every host that has code; returns exit statuses and outputs."""
    started: list[subprocess.Popen[str]] = []

    def run(*codes: str | None, timeout: str = "180") -> list[tuple[int, str]]:
        names = [f"127.0.0.{number + 1}" for number in range(len(codes))]
        port = free_ports(3)
        for name, code in zip(names, codes, strict=True):
            base = tmp_path / name
            (base / "input/config").mkdir(parents=True)
            (base / "code").mkdir()
            (base / "code/train.py").write_text(code or "")
            (base / "input/config/hyperparameters.json").write_text(json.dumps({"trainshed_host_timeout_seconds": timeout}))
            (base / "input/config/resourceconfig.json").write_text(json.dumps({"current_host": name, "hosts": names}))
            if code is None:
                continue
            environment = {
                "PATH": os.defpath,
                "SAGEMAKER_BASE_DIR": str(base),
                "PYTHONPATH": str(TOOLKIT),
                "MASTER_PORT": str(port),
            }
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "trainshed.cli", "doctor", "--cluster"],
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        return [(process.wait(240), process.communicate()[0]) for process in started]

    yield run
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.spine
def test_every_pair_of_a_good_cluster_is_measured(doctors: Callable[..., list[tuple[int, str]]]) -> None:
    (first, table), *others = doctors("same", "same", "same")

    assert (first, [status for status, _ in others]) == (0, [0, 0]), table
    for pair in ("127.0.0.1 - 127.0.0.2", "127.0.0.1 - 127.0.0.3", "127.0.0.2 - 127.0.0.3"):
        (line,) = [line for line in table.splitlines() if pair in line]
        assert line.startswith("ok") and " us, " in line and " Gbit/s" in line and "clock" in line
    assert all("the table is printed on 127.0.0.1" in output for _, output in others)


def test_different_code_fails_on_all_hosts_and_says_where(doctors: Callable[..., list[tuple[int, str]]]) -> None:
    results = doctors("one", "other")

    assert [status for status, _ in results] == [1, 1]
    (line,) = [line for line in results[0][1].splitlines() if "same code" in line]
    assert line.startswith("fail") and "on 127.0.0.1; " in line and "on 127.0.0.2; fix:" in line


def test_a_host_that_does_not_come_is_named(doctors: Callable[..., list[tuple[int, str]]]) -> None:
    ((status, output),) = doctors("same", None, timeout="2")

    assert status == 1 and "fail  hosts  127.0.0.2 did not come within 2 s" in output


def test_a_job_on_one_host_has_nothing_to_check(doctors: Callable[..., list[tuple[int, str]]]) -> None:
    ((status, output),) = doctors("same")

    assert status == 0 and "one host" in output
