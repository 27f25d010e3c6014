"""What this machine has consumed, as the kernel tells it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from trainshed.machine import cgroup, consumption


def test_cores_memory_and_this_process_are_there() -> None:
    cores = consumption.cores()
    used, size = consumption.memory_used()
    own = consumption.process(os.getpid())

    assert cores.busy.keys() == cores.total.keys() and len(cores.total) == os.sysconf("SC_NPROCESSORS_ONLN")
    assert all(0 <= cores.busy[core] <= cores.total[core] for core in cores.total)
    assert 0 < used < size == int(next(iter(Path("/proc/meminfo").read_text().splitlines())).split()[1]) << 10
    assert own is not None and own.resident > 1 << 20 and own.started > 0


def test_a_process_that_has_ended_is_none() -> None:
    process = subprocess.Popen(["true"])
    process.wait()

    assert consumption.process(process.pid) is None


def text_at(path: str, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Has the file of /proc say something else."""
    (tmp_path / "file").write_text(text)
    real = consumption._rows
    monkeypatch.setattr(
        consumption, "_rows", lambda name, skip=0: real(str(tmp_path / "file"), skip) if name == path else real(name)
    )


def test_partitions_count_in_their_disk_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = ["loop0", "sda", "sda1", "sda12", "sdaa", "nvme0n1", "nvme0n1p1", "nvme0n12", "dm-0", "md0", "vda", "vda1"]
    lines = "".join(f"8 0 {name} 1 0 {number} 0 1 0 2 0 0 0 0\n" for number, name in enumerate(names))
    text_at("/proc/diskstats", lines, monkeypatch, tmp_path)

    assert consumption.disks() == {
        name: (512 * names.index(name), 1024) for name in ("sda", "sdaa", "nvme0n1", "nvme0n12", "vda")
    }


def test_interfaces_of_old_kernels_and_new_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rest = "0 0 0 0 0 0 0 20 0 0 0 0 0 0 0\n"
    text_at("/proc/net/dev", f"head\nhead\n lo: 5 {rest} eth0:10 {rest} eth1: 30 {rest}", monkeypatch, tmp_path)

    assert consumption.interfaces() == {"eth0": (10, 20), "eth1": (30, 20)}


def test_files_that_the_kernel_may_drop_are_not_used_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"memory.current": "1000\n", "memory.stat": "anon 5\ninactive_file 300\nactive_file 9\n"}
    monkeypatch.setattr(cgroup, "_read", lambda controller, v1_name, v2_name: told[v2_name])

    assert cgroup.memory_used() == 700
    told["memory.current"] = ""
    assert cgroup.memory_used() is None
