"""Records in frames, each with a header of a fixed size that says how long it is: what RecordIO and TFRecord share.

Files of tensors are long runs of frames of one length. Where the next header equals this one, the
next frame is as long as this one; so a whole run is found by comparing columns of bytes, instead of
looking at one header after the other.
"""

from __future__ import annotations

import os

from .errors import damaged
from .format import BLOCK, Counted, Marks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_FAR = 1 << 16  # frames that are longer are counted by their headers alone: not read
_GLANCE = 1 << 12  # bytes that are read for such a header


def equal_frames(data: bytes, at: int, size: int, head: int) -> int:
    """How many whole frames with equal headers begin at `at`, one after the other.

    Args:
        size: of the frame at `at`, which is whole, with its header, bytes.
        head: size of a header, bytes.
    """
    many = (len(data) - at) // size
    if many < 2 or data[at + size : at + size + head] != data[at : at + head]:
        return 1
    for place in range(at, at + head):
        column = data[place : at + many * size : size]
        many = min(many, len(column) - len(column.lstrip(column[:1])))
    return many


def count_frames(path: str, head: int, look: Callable[[bytes, int, int, int], tuple[int, bool, bool]]) -> Counted:
    """Counts the records of a file by its frames' headers.

    Args:
        head: size of a header, bytes.
        look: (data, place in it, records before, offset in the file) of a header -> (size of the
            frame, whether it begins a record, whether it is the whole record). Raises DataError
            where the header is wrong.

    Raises:
        DataError: the file ends within a frame.
    """
    marks = Marks()
    with open(path, "rb", buffering=0) as file:
        end = os.fstat(file.fileno()).st_size
        data, start, at, size = b"", 0, 0, 0
        while at < end:
            if at + head > start + len(data):
                data, start = os.pread(file.fileno(), _GLANCE if size > _FAR else BLOCK, at), at
                if len(data) < head:
                    raise damaged(path, marks.records, at, f"is cut short: the file ends at byte {at + len(data)}")
            size, begins, whole = look(data, at - start, marks.records, at)
            many = equal_frames(data, at - start, size, head) if whole and at + size <= start + len(data) else 1
            if begins:
                marks.extend(range(at, at + many * size, size))
            at += many * size
    if at != end:
        raise damaged(path, max(0, marks.records - 1), at - size, f"is cut short: the file ends at byte {end}")
    return marks.counted()
