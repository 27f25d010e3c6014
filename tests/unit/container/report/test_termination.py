"""What `train` leaves for the kubelet."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainshed.container.report.finish import TERMINATION_LOG_BYTES, leave


def test_in_a_pod_the_kubelets_file_gets_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "termination-log"
    log.write_text("")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    leave("UserError: x", str(log))
    assert log.read_text() == ""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    inode = log.stat().st_ino
    leave("UserError: " + "é" * TERMINATION_LOG_BYTES, str(log))
    assert log.read_bytes().startswith("UserError: é".encode()) and log.stat().st_size <= TERMINATION_LOG_BYTES
    assert log.stat().st_ino == inode  # a mount, which cannot be replaced
    leave("x", str(tmp_path / "absent"))
    assert not (tmp_path / "absent").exists()
