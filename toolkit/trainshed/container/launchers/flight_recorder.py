"""torch's flight recorder of NCCL collectives: kept, and written to the job's output when asked or when one times out.

Each rank reads a pipe of its own, `<TORCH_NCCL_DEBUG_INFO_PIPE_FILE><rank>.pipe`; a byte in it has the rank write its last
collectives to `<TORCH_FR_DUMP_TEMP_FILE><rank>`, which `torchfrtrace` (of torch) reads. gloo has no such pipe.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
ENTRIES = "2000"


def recorder_settings(output_data: str, scratch: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables for ranks on GPUs, without those for which the user has a value, under the new name or the old one."""
    values = {PIPE: f"{scratch}/flight-recorder-"}
    for new, old, value in (
        ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", ENTRIES),
        ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", f"{output_data}/flight-recorder-rank-"),
    ):
        if old not in environ:
            values[new] = value
    return {name: value for name, value in values.items() if name not in environ}


def ask_for_dump(environ: Mapping[str, str], rank: int | None) -> bool:
    """Asks one rank's recorder to write its collectives, which takes it seconds; False if no rank listens."""
    if not environ.get(PIPE) or rank is None:
        return False
    try:
        fd = os.open(f"{environ[PIPE]}{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.write(fd, b"1") == 1
    except OSError:
        return False
    finally:
        os.close(fd)
