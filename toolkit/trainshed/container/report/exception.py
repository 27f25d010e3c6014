"""Finds the exception in what a process printed: class, message, and the line of the user's code."""

from __future__ import annotations

import os
import re

from trainshed.contract.record import Record

_HEADER = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s*(?:[|+] )*\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_EXCEPTION = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)(?::\s?(?P<message>.*))?$")
_USAGE = re.compile(r"^(?P<program>[^\s:]+): error: (?P<message>.+)$")
_RANK_TAG = re.compile(r"^\[(?:rank)?\d+\]:\s?")  # torch tags the lines of a failing rank's traceback a second time
_NATIVE = re.compile(
    r"^(?:terminate called after throwing .*|.*(?:: |^)Assertion .* failed\.?|Fatal Python error: .*"
    r"|.*error while loading shared libraries: .*|.*: symbol lookup error: .*|\*\*\* .* \*\*\*.*"
    r"|free\(\): .*|malloc\(\): .*|double free .*)$"
)
# Raised by launchers about a child's failure; the child's own exception is the reason.
_WRAPPERS = (
    "ChildFailedError",
    "CalledProcessError",
    "SignalException",
    "ProcessRaisedException",
    "ProcessExitedException",
)


class Raised(Record):
    """An exception as it was printed.

    name: its class as printed, e.g. `torch.OutOfMemoryError`; "" for a native crash or an argparse error.
    message: its text, several lines joined by newlines.
    place: `train.py:41 in main`, the innermost frame of the user's code, "" where there is none.
    traceback: the whole block, "" where there is none.
    """

    name: str
    message: str
    place: str = ""
    traceback: str = ""

    @property
    def text(self) -> str:
        """`ValueError: the message` on one line."""
        message = " ".join(self.message.split())
        return f"{self.name}: {message}" if self.name and message else self.name or message


def find_exception(output: str, code_folder: str) -> Raised | None:
    """The exception that ended the process which printed `output`; None where nothing looks like one."""
    lines = [_RANK_TAG.sub("", line) for line in output.splitlines()]
    starts = [number for number, line in enumerate(lines) if line.lstrip(" +|").startswith(_HEADER)]
    found: Raised | None = None
    for start in reversed(starts):
        raised = _parse_traceback(lines, start, code_folder)
        if raised is None:
            continue
        if raised.name.rpartition(".")[2] not in _WRAPPERS:
            return raised
        found = found or raised
    return found or _usage_error(lines) or _syntax_error(lines, code_folder) or _native_error(lines, code_folder)


def _parse_traceback(lines: list[str], start: int, code_folder: str) -> Raised | None:
    frames = []
    for number in range(start + 1, min(start + 2000, len(lines))):
        line = lines[number]
        frame = _FRAME.match(line)
        if frame:
            frames.append((frame["file"], frame["line"], frame["function"] or ""))
        elif line and not line[0].isspace() and not line.startswith("["):
            exception = _EXCEPTION.match(line)
            if exception is None:
                return None
            end = _end_of_message(lines, number + 1)
            rest = lines[number + 1 : end]
            message = "\n".join([exception["message"] or "", *rest]).strip("\n")
            block = "\n".join(lines[start:end])
            return Raised(name=exception["name"], message=message, place=user_frame(frames, code_folder), traceback=block)
    return None


def _end_of_message(lines: list[str], start: int) -> int:
    """Messages of several lines end at a blank line, at the next traceback, or after 30 lines."""
    for number in range(start, min(start + 30, len(lines))):
        line = lines[number]
        if not line.strip() or _HEADER in line or (_EXCEPTION.match(line) and ":" in line and "Error" in line.split(":")[0]):
            return number
    return min(start + 30, len(lines))


def user_frame(frames: list[tuple[str, str, str]], code_folder: str) -> str:
    """The innermost frame of the user's own code, else the innermost of all; frames are (file, line, function)."""
    own = [frame for frame in frames if _is_own(frame[0], code_folder)]
    if not own and not frames:
        return ""
    file, line, function = (own or frames)[-1]
    if code_folder and file.startswith(code_folder.rstrip("/") + "/"):
        file = os.path.relpath(file, code_folder)
    return f"{file}:{line}" + (f" in {function}" if function and function != "<module>" else "")


def _is_own(file: str, code_folder: str) -> bool:
    if file.startswith("<") or "/site-packages/" in file or "/dist-packages/" in file or "/lib/python3" in file:
        return False
    return not file.startswith("/") or not code_folder or file.startswith(code_folder.rstrip("/") + "/")


def _usage_error(lines: list[str]) -> Raised | None:
    """argparse: `usage: ...` and then `train.py: error: unrecognized arguments: --x 1` as the last thing said."""
    for line in reversed(lines[-20:]):
        match = _USAGE.match(line)
        if match and any(other.startswith("usage:") for other in lines):
            return Raised(name="", message=line.strip(), place="")
    return None


def _syntax_error(lines: list[str], code_folder: str) -> Raised | None:
    """An error in the script itself comes without a header: File line, source, caret, exception."""
    for number in range(len(lines) - 1, -1, -1):
        exception = _EXCEPTION.match(lines[number])
        if exception and exception["name"] in ("SyntaxError", "IndentationError", "TabError"):
            frames = [match for line in lines[max(0, number - 6) : number] if (match := _FRAME.match(line))]
            place = user_frame([(f["file"], f["line"], "") for f in frames[-1:]], code_folder)
            return Raised(name=exception["name"], message=exception["message"] or "", place=place)
    return None


def _native_error(lines: list[str], code_folder: str) -> Raised | None:
    """What the C and C++ run-time libraries and Python's fault handler print before a process dies."""
    for number, line in enumerate(lines):
        if not _NATIVE.match(line.strip()):
            continue
        message = line.strip()
        for more in lines[number + 1 : number + 4]:
            if more.strip().startswith("what():"):
                message += " " + more.strip()
        # The fault handler prints the innermost frame first.
        frames = [match for other in lines[number:] if (match := _FRAME.match(other))]
        place = user_frame([(f["file"], f["line"], f["function"] or "") for f in reversed(frames)], code_folder)
        return Raised(name="", message=message, place=place)
    return None
