"""What ranks are told so that their flight recorders write, and what is read of that."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

from trainshed.container.hangs.contribution import summary
from trainshed.container.launchers.flight_recorder import recorder_settings


def test_ranks_on_gpus_record_their_collectives_unless_the_user_says_otherwise() -> None:
    given = recorder_settings("/out", "/tmp/x", {})

    assert given["TORCH_FR_DUMP_TEMP_FILE"] == "/out/flight-recorder-rank-" and int(given["TORCH_FR_BUFFER_SIZE"]) > 0
    own = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0", "TORCH_FR_DUMP_TEMP_FILE": "/mine"}
    assert list(recorder_settings("/out", "/tmp/x", own)) == ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"]


def test_a_file_that_is_no_dump_says_nothing(tmp_path: Path) -> None:
    for content in (b"", b"\x80", pickle.dumps([1]), pickle.dumps({"entries": [os.system]}), pickle.dumps({"entries": []})):
        (tmp_path / "dump").write_bytes(content)
        assert summary(str(tmp_path / "dump")) == ""
