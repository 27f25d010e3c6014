"""`trainshed doctor --cluster`: hosts as processes on loopback addresses, and the judgement on what they found."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.free_ports import free_ports
from support.paths import TOOLKIT
from trainshed.container.doctor.cluster_checks import Pair, Server, facts, judge, measure, rounds

SAME = {"trainshed": "1", "code": "abc"}


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


@pytest.mark.parametrize("count", [2, 3, 4, 7, 16, 40])
def test_nobody_has_two_partners_at_a_time_and_up_to_16_hosts_all_meet(count: int) -> None:
    plan = rounds(count)
    pairs = [pair for one_round in plan for pair in one_round]

    assert len(plan) <= 15
    assert all(len({host for pair in one_round for host in pair}) == 2 * len(one_round) for one_round in plan)
    assert len(pairs) == len(set(pairs)) and all(one < other < count for one, other in pairs)
    assert len(pairs) == (count * (count - 1) // 2 if count <= 16 else 15 * count // 2)


def test_a_closed_port_and_a_strangers_server_are_problems_not_errors() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        assert "Connection refused" in measure("a", "b", "127.0.0.1", probe.getsockname()[1], b"secret").problem
    server = Server(b"another")
    try:
        assert measure("a", "b", "127.0.0.1", server.port, b"secret").problem
    finally:
        server.close()


def test_the_judgement_names_hosts_ways_and_clocks() -> None:
    known = {
        "a": {"facts": SAME, "unresolved": ["b"]},
        "b": {"facts": {**SAME, "code": "xyz"}, "unresolved": []},
    }
    pairs = [Pair("a", "b", 1e-4, 1e9, offset=-7.5), Pair("b", "a", problem="b:1: Connection refused")]
    found = {check.name: check for check in judge(("a", "b", "c"), ["c"], known, pairs)}

    assert {name: check.level for name, check in found.items()} == {
        "hosts": "fail",
        "names": "fail",
        "same trainshed": "ok",
        "same code": "fail",
        "a - b": "warn",
        "b - a": "fail",
    }
    assert "c did not answer" in found["hosts"].message and "a cannot resolve b" in found["names"].message
    assert "100 us, 8.00 Gbit/s" in found["a - b"].message and "clock -7500 ms" in found["a - b"].message


def test_code_is_told_by_names_and_contents(tmp_path: Path) -> None:
    def code(name: str, text: str) -> str:
        folder = tmp_path / f"{name}{len(text)}"
        (folder / "__pycache__").mkdir(parents=True)
        (folder / name).write_text(text)
        (folder / "__pycache__" / "x.pyc").write_text(str(folder))
        return facts(str(folder))["code"]

    assert len({code("a.py", "1"), code("a.py", "22"), code("b.py", "1")}) == 3
    assert facts(str(tmp_path / "a.py1"))["code"] == facts(str(tmp_path / "a.py1"))["code"]
    assert facts(str(tmp_path / "nowhere"))["code"] == "none"
