"""Finds the exception in what a process printed: class, message, and the line of the user's code."""

from __future__ import annotations

import os
import re

from trainshed.base.record import Record

_HEADER = re.compile(r"^(?:Original )?Traceback \(most recent call last\):")  # "Original": torch's data-loader workers
_GROUP = re.compile(r"^\s*\+ Exception Group Traceback \(most recent call last\):")
_MARGIN = re.compile(r"^\s*[|+] ?")  # of exception groups
_RULE = re.compile(r"^[+-]*-{8,}.*$")  # between the exceptions of a group
_BOX = "Traceback (most recent call last) \u2500"  # rich draws a frame around it
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:,? in (?P<function>.+))?$')
_BOX_FRAME = re.compile(r"^\u2502 (?P<file>/\S+):(?P<line>\d+) in (?P<function>\S+)")
_EXCEPTION = re.compile(r"^(?P<name>[^\W\d][\w.]*(?:\.<locals>\.[\w.]+)*)(?::\s?(?P<message>.*))?$")
_USAGE = re.compile(r"^(?P<program>[^\s:]+): error: (?P<message>.+)$")
# A progress bar leaves its line without an end, so that the header comes behind it, and is drawn again as the program ends.
_BEHIND = re.compile(r"(?:\[(?:rank)?\d+\]:\s)?((?:Original )?Traceback \(most recent call last\):)\s*$")
_BAR = re.compile(r"^.*\d%\|.*\||^.*\[\d\d:\d\d(?::\d\d)?[<,][^]]*\]\s*$")  # tqdm's, with and without a known end
_RANK_TAG = re.compile(r"^\[(?:rank)?\d+\]:\s?")  # torch tags the lines of a failing rank's traceback a second time
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_NATIVE = re.compile(
    r"^(?:terminate called (?:after throwing|without) .*|.*(?:: |^)Assertion .* failed\.?|Fatal Python error: .*"
    r"|.*error while loading shared libraries: .*|.*: symbol lookup error: .*|\*\*\* .* \*\*\*.*|free\(\): .*"
    r"|malloc\(\): .*|double free .*)$"
)
_GLOG = re.compile(r"^\[?[IWEF]\d{4} \d\d:")  # torch's own log lines
_FATAL_THREAD = "Current thread "  # of the fault handler: the thread that crashed, if it is one of Python's
_ROOT_CAUSE = re.compile(
    r"^Root Cause \(first observed failure\):\n(?:.*\n){1,4}\s+rank +: (?P<rank>\d+) .*\n\s+exitcode +: (?P<code>-?\d+)",
    re.MULTILINE,
)
_AGENT = re.compile(r"^E\d{4} .*failed \(exitcode: .*\) local_rank: ", re.MULTILINE)
# torch's paths are relative to an entry of sys.path, or absolute where that is a link (a linked virtual environment).
AGENT_LINE = re.compile(r"^[IWE]\d{4} .*[ /]torch/distributed/(?:elastic/|run\.py)")
_NEAR = 20  # lines between two things that belong together
# Raised by launchers about a child's failure; the child's own exception is the reason.
_WRAPPERS = (
    "ChildFailedError",
    "CalledProcessError",
    "SignalException",
    "ProcessRaisedException",
    "ProcessExitedException",
    "ExecuteUserScriptError",  # Amazon's launchers
)


class Raised(Record):
    """An exception as it was printed.

    name: its class as printed, e.g. `torch.OutOfMemoryError`; "" for a native crash or an argparse error.
    message: its text, several lines joined by newlines.
    place: `train.py:41 in main`, the innermost frame of the user's code, "" where there is none.
    traceback: the whole block, "" where there is none.
    start, end: its lines in the output, the first and the one after the last.
    after: number of lines that follow it and are not blank. Many mean that the program continued.
    """

    name: str
    message: str
    place: str = ""
    traceback: str = ""
    start: int = 0
    end: int = 0
    after: int = 0

    @property
    def text(self) -> str:
        """`ValueError: the message` on one line."""
        message = " ".join(self.message.split())
        return f"{self.name}: {message}" if self.name and message else self.name or message


def find_exception(output: str, code_folder: str) -> Raised | None:
    """Returns the exception that ended the process which printed `output`; None if it printed no exception.

    This is the last one, except in two cases: an exception that a launcher raises about a failed child is replaced by the
    child's own just before it, and a crash outside Python code (usually at exit) by the exception just before it.
    """
    lines = [_from_header(_RANK_TAG.sub("", line)) for line in _COLOR.sub("", output).splitlines()]
    found, native = _tracebacks(lines, code_folder), _native_error(lines, code_folder)
    if not found:
        found = _syntax_error(lines, code_folder)
    found = sorted([*found, *native, *_usage_error(lines)], key=lambda raised: raised.end)
    while found:
        last = found.pop()
        replaced = last.name.rpartition(".")[2] in _WRAPPERS or (last in native and not last.place)
        if not (replaced and found and last.start - found[-1].end <= _NEAR):
            # The end of a message is not marked: what follows its first line may already be other output.
            after = sum(1 for line in lines[last.end :] if line.strip()) + last.message.count("\n")
            return last.replace(traceback=_with_causes(lines, last, found), after=after)
    return None


def _from_header(line: str) -> str:
    """A traceback's header without what some other output left in front of it; other lines as they are."""
    header = _BEHIND.search(line) if "Traceback (" in line else None
    if header is None or line[: header.start()].endswith("Group ") or not line[: header.start()].strip(" |+"):
        return line
    return header[1]


def _with_causes(lines: list[str], last: Raised, before: list[Raised]) -> str:
    """The traceback, with those of the exceptions that led to it."""
    start = last.start
    for raised in reversed(before):
        between = "".join(lines[raised.end : start])
        if "direct cause of the following exception" not in between and "During handling of the above" not in between:
            break
        start = raised.start
    return "\n".join(lines[start : last.end]) if last.traceback else ""


def root_cause(output: str) -> tuple[int, int, str] | None:
    """Reads the report of torchrun's elastic agent: rank and return code of the first child that failed, the ranks' output.

    None where there is no such report.
    """
    match = _ROOT_CAUSE.search(output)
    if match is None:
        return None
    reports = [report.start() for report in _AGENT.finditer(output, 0, match.start())]
    before = output[: reports[-1] if reports else match.start()].splitlines(keepends=True)
    return int(match["rank"]), int(match["code"]), "".join(line for line in before if not AGENT_LINE.match(line))


def _tracebacks(lines: list[str], code_folder: str) -> list[Raised]:
    found: list[Raised] = []
    for start, line in enumerate(lines):
        if found and start < found[-1].end:
            continue
        if _HEADER.match(line):
            raised = _parse_traceback(lines, start, code_folder)
        elif _GROUP.match(line):
            raised = _parse_group(lines, start, code_folder)
        elif _BOX in line:
            raised = _parse_box(lines, start, code_folder)
        else:
            continue
        if raised is not None:
            found.append(raised)
    return found


def _parse_traceback(lines: list[str], start: int, code_folder: str) -> Raised | None:
    frames = []
    strange = 0
    for number in range(start + 1, min(start + 2000, len(lines))):
        line = lines[number]
        frame = _FRAME.match(line)
        if frame:
            frames.append((frame["file"], frame["line"], frame["function"] or ""))
        elif line and not line[0].isspace() and not line.startswith("["):
            if _EXCEPTION.match(line):
                return _raised(lines, start, number, frames, code_folder)
            strange += 1  # another thread's words in between
            if strange > _NEAR:
                return None
    return None


def _raised(
    lines: list[str], start: int, number: int, frames: list[tuple[str, str, str]], code_folder: str
) -> Raised | None:
    """The exception whose class stands at the start of line `number`, with its message of one or more lines."""
    exception = _EXCEPTION.match(lines[number])
    if exception is None:
        return None
    end = _end_of_message(lines, number + 1)
    message = "\n".join([exception["message"] or "", *lines[number + 1 : end]]).strip("\n")
    return Raised(
        name=exception["name"],
        message=message,
        place=user_frame(frames, code_folder),
        traceback="\n".join(lines[start:end]),
        start=start,
        end=end,
    )


def _parse_group(lines: list[str], start: int, code_folder: str) -> Raised | None:
    """An exception group: its own line and the first exception in it, which says more."""
    end = next((n for n in range(start + 1, len(lines)) if not _MARGIN.match(lines[n])), len(lines))
    inner = [_RULE.sub("", _MARGIN.sub("", line)) for line in lines[start:end]]
    outer = _parse_traceback(inner, 0, code_folder)
    if outer is None:
        return None
    first = next((raised for raised in _tracebacks(inner[1:], code_folder)), outer)
    message = outer.message.split("\n")[0] + (f": {first.text}" if first is not outer else "")
    traceback = "\n".join(lines[start:end])
    return outer.replace(message=message, place=first.place, traceback=traceback, start=start, end=end)


def _parse_box(lines: list[str], start: int, code_folder: str) -> Raised | None:
    """rich's tracebacks: frames in a box, the exception below it."""
    for number in range(start + 1, min(start + 2000, len(lines))):
        if lines[number].startswith("\u2570"):
            matches = [match for line in lines[start:number] if (match := _BOX_FRAME.match(line))]
            frames = [(match["file"], match["line"], match["function"]) for match in matches]
            return _raised(lines, start, number + 1, frames, code_folder) if number + 1 < len(lines) else None
    return None


def _end_of_message(lines: list[str], start: int) -> int:
    """Messages of several lines end at a blank line, a progress bar, the next traceback, or after 30 lines."""
    for number in range(start, min(start + 30, len(lines))):
        line = lines[number]
        if (
            not line.strip("\"' \t")
            or _HEADER.match(line)
            or _BAR.match(line)
            or _NATIVE.match(line)
            or _GLOG.match(line)
            or (_EXCEPTION.match(line) and ":" in line and "Error" in line.split(":")[0])
        ):
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
    if not file.startswith("/"):  # Cython's frames have paths of the machine that compiled them
        return os.path.exists(os.path.join(code_folder, file))
    return not code_folder or file.startswith(code_folder.rstrip("/") + "/")


def _usage_error(lines: list[str]) -> list[Raised]:
    """argparse: `usage: ...` and then `train.py: error: unrecognized arguments: --x 1` as the last thing said."""
    for number in range(len(lines) - 1, max(-1, len(lines) - _NEAR - 1), -1):
        if _USAGE.match(lines[number]) and any(other.startswith("usage:") for other in lines[:number]):
            return [Raised(name="", message=lines[number].strip(), start=number, end=number + 1)]
    return []


def _syntax_error(lines: list[str], code_folder: str) -> list[Raised]:
    """An error in the script itself comes without a header: File line, source, caret, exception."""
    for number in range(len(lines) - 1, -1, -1):
        exception = _EXCEPTION.match(lines[number])
        if exception and exception["name"] in ("SyntaxError", "IndentationError", "TabError"):
            frames = [match for line in lines[max(0, number - 6) : number] if (match := _FRAME.match(line))]
            place = user_frame([(f["file"], f["line"], "") for f in frames[-1:]], code_folder)
            message = exception["message"] or ""
            return [Raised(name=exception["name"], message=message, place=place, start=number, end=number + 1)]
    return []


def _native_error(lines: list[str], code_folder: str) -> list[Raised]:
    """What the C and C++ run-time libraries and Python's fault handler print before a process dies: the last of it."""
    hits = [number for number, line in enumerate(lines) if _NATIVE.match(line.strip())]
    if not hits:
        return []
    start = hits[-1]
    for number in reversed(hits):  # `terminate called ...` says more than the `Fatal Python error: Aborted` below it
        start = number if start - number < _NEAR // 2 else start
    message = lines[start].strip()
    for more in lines[start + 1 : start + 4]:
        if more.strip().startswith("what():"):
            message += " " + more.strip()
    frames, end = _crashed_frames(lines, hits[-1] + 1)
    return [Raised(name="", message=message, place=user_frame(frames, code_folder), start=start, end=max(end, start + 1))]


def _crashed_frames(lines: list[str], start: int) -> tuple[list[tuple[str, str, str]], int]:
    """The frames of the thread that crashed, outermost first (the fault handler prints them the other way round)."""
    frames: list[tuple[str, str, str]] = []
    end, inside = start, False
    for number in range(start, len(lines)):
        frame = _FRAME.match(lines[number])
        if frame and inside:
            frames.insert(0, (frame["file"], frame["line"], frame["function"] or ""))
        elif not frame:
            inside = lines[number].startswith(_FATAL_THREAD)
            if not (
                inside or not lines[number].strip() or lines[number].startswith(("Thread 0x", "  ", "Extension modules:"))
            ):
                break
        end = number + 1
    return frames, end
