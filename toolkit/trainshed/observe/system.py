"""Samples of a machine under training, in the form of the platform's profiler: their lines, their files, their reader.

    profiler/system/incremental/2026112210/1790000040.algo-1.json

holds what the first host measured from that second on, at most a minute of it, one JSON object a line:

    {"Type": "cpu", "Name": "cpu0", "Dimension": "CPUUtilization", "Value": 97.5, "NodeId": "algo-1",
     "Timestamp": 1790000041.0}

Source: the files that the platform's profiler writes, and what `smdebug` 1.0.34 (`LocalSystemMetricsReader`) accepts. The
folder is the hour in UTC. The name says `algo-` and the host's number even where hosts have other names, since that reader
knows no others; `NodeId` is the host's own name. All lines of one sample share one timestamp.

docs/profiler.md lists what is measured.
"""

from __future__ import annotations

import json
import os

from trainshed.base.files import open_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    # Type, Name, Dimension, Value. Names are plain (`plain`).
    Value = tuple[str, str, str, float]
    # (NodeId, Type, Name, Dimension) -> [(Timestamp, Value), ...] in the order of time.
    Curves = dict[tuple[str, str, str, str], list[tuple[float, float]]]

FOLDER = "system/incremental"  # below the profiler's folder, /opt/ml/output/profiler
_ENDING = ".json"


def plain(name: str) -> str:
    """A name that needs no escaping in JSON: of printable ASCII without quotes and backslashes, 64 characters at most."""
    return "".join(c if " " <= c <= "~" and c not in '"\\' else "?" for c in name[:64])


def sample_text(values: Iterable[Value], node: str, time: float) -> bytes:
    """The lines of one sample.

    Args:
        values: what was measured, with plain names; what is not finite is left out.
        node: the host's name.
        time: seconds since 1970.
    """
    tail = f', "NodeId": {json.dumps(node)}, "Timestamp": {time:.3f}}}\n'
    return "".join(
        f'{{"Type": "{kind}", "Name": "{name}", "Dimension": "{dimension}", "Value": {round(value, 2)}{tail}'
        for kind, name, dimension, value in values
        if value - value == 0
    ).encode()


def file_of(second: int, number: int) -> str:
    """The path of the samples from a second on, below `FOLDER`.

    Args:
        second: since 1970.
        number: of the host, from 1.
    """
    import time

    return f"{time.strftime('%Y%m%d%H', time.gmtime(second))}/{second}.algo-{number}{_ENDING}"


def files_below(folder: str, number: int | None = None) -> list[str]:
    """Paths of the files of samples in the order of time.

    Args:
        folder: the profiler's.
        number: of one host, from 1; None for all.
    """
    found: list[tuple[int, str]] = []
    top = f"{folder}/{FOLDER}"
    for hour in _listed(top):
        for name in _listed(f"{top}/{hour}") if hour.isdecimal() else []:
            second, _, rest = name.partition(".")
            ours = rest.startswith("algo-") if number is None else rest == f"algo-{number}{_ENDING}"
            if second.isdecimal() and ours and rest.endswith(_ENDING):
                found.append((int(second), f"{top}/{hour}/{name}"))
    return [path for _, path in sorted(found)]


def read_system(*folders: str, since: float = 0.0) -> Curves:
    """All samples of a run, by what was measured.

    Lines of any other form, and a last line that is being written, are passed over.

    Args:
        folders: the hosts' profiler folders (`<output>/profiler`).
        since: seconds since 1970; older samples are left out.
    """
    curves: Curves = {}
    for folder in dict.fromkeys(folders):
        for path in files_below(folder):
            if int(os.path.basename(path).partition(".")[0]) + 3600 < since:  # a file holds a minute
                continue
            for key, time, value in _samples(path):
                if time >= since:
                    curves.setdefault(key, []).append((time, value))
    for points in curves.values():
        points.sort()
    return curves


def sample_of(line: bytes) -> tuple[tuple[str, str, str, str], float, float] | None:
    """((NodeId, Type, Name, Dimension), Timestamp, Value) of a line, None for lines of any other form."""
    try:
        fields = json.loads(line)
        words = (fields["NodeId"], fields["Type"], fields.get("Name") or "", fields["Dimension"])
        time, value = float(fields["Timestamp"]), float(fields["Value"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return None
    known = all(isinstance(word, str) for word in words) and (time + value) - (time + value) == 0
    return (words, time, value) if known else None


def _samples(path: str) -> Iterator[tuple[tuple[str, str, str, str], float, float]]:
    try:
        with open_plain(path, links=False) as file:
            for line in file:
                sample = sample_of(line)
                if sample is not None:
                    yield sample
    except OSError:
        return


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
