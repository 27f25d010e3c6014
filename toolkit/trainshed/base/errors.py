"""Errors before, around and in a job, and the exit status that says so.

    TrainshedError            one line for a person; `details` below it
    |- JobError               the job's own files or variables are wrong: a list of problems, all at once   exit 2
    |- NoJobError             there is no job at all                                                        exit 2
    |- ProgramError           the user's code cannot be found, unpacked or installed                        exit 1
    |- LaunchError            the program cannot be started (missing launcher, bad distribution)            exit 1
    |- LimitError             a limit of the machine: open files, processes, memory, disk                   exit 1
    `- ClusterError           another host is missing or unreachable                                        exit 69

`EXIT_TABLE` lists every exit status; docs/failures.md shows it.
"""

from __future__ import annotations

from .record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

EXIT_SUCCESS = 0
EXIT_USER = 1
EXIT_JOB = 2
EXIT_UNAVAILABLE = 69  # EX_UNAVAILABLE of sysexits(3)
EXIT_INTERNAL = 70  # EX_SOFTWARE
EXIT_INTERRUPTED = 75  # EX_TEMPFAIL: asked of `train` where a scheduler has to tell interruptions from successes
EXIT_TIMEOUT = 124  # of timeout(1)
EXIT_CANNOT_EXECUTE = 126  # of POSIX shells
EXIT_NOT_FOUND = 127  # of POSIX shells
EXIT_SIGNAL_BASE = 128

# (exit status of `train`, what it means, kinds of failure that lead to it)
EXIT_TABLE: tuple[tuple[str, str, str], ...] = (
    (
        f"{EXIT_SUCCESS}",
        "the script succeeded, or ended by itself after a stop signal (then neither `success` nor `failure` is there; "
        "`trainshed_interrupted_exit_code` sets another status)",
        "",
    ),
    ("the script's own", "the script failed; its exit status is passed on", "`UserError`"),
    (
        f"{EXIT_SIGNAL_BASE} + n",
        "signal n killed the script (130: SIGINT, 137: SIGKILL, 139: SIGSEGV, 143: SIGTERM)",
        "`UserError`, `Interrupted`",
    ),
    (
        f"{EXIT_USER}",
        "the program cannot be found, unpacked, installed or started, or a limit of the machine is in the way",
        "`ProgramError`, `LaunchError`, `LimitError`",
    ),
    (
        f"{EXIT_JOB}",
        "the job cannot be read, or there is none; `train` was called with an unknown argument",
        "`JobError`, `NoJobError`",
    ),
    (f"{EXIT_UNAVAILABLE}", "another host did not come, or vanished", "`ClusterError`"),
    (f"{EXIT_INTERNAL}", "trainshed itself failed: a defect to report", "`InternalError`"),
    (f"{EXIT_INTERRUPTED}", "the job was interrupted, where trainshed submitted it to Slurm or Kubernetes", ""),
    (f"{EXIT_TIMEOUT}", "the job hung: no rank moved for `trainshed_hang_seconds`", "`Hang`"),
    (f"{EXIT_CANNOT_EXECUTE}", "the operating system cannot execute the program", "`LaunchError`"),
    (f"{EXIT_NOT_FOUND}", "the program, or the interpreter that it names, does not exist", "`LaunchError`"),
)


def exit_status(returncode: int) -> int:
    """A process's return code as an exit status: itself, or 128 + n for signal n."""
    return EXIT_SIGNAL_BASE - returncode if returncode < 0 else returncode


class Problem(Record):
    """One thing wrong in the job, with its place: `file: field = value: message (suggestion)`."""

    file: str
    message: str
    field: str = ""
    value: str = ""
    suggestion: str = ""

    def line(self) -> str:
        """The problem on one line, for a person."""
        where = self.file + (f": {self.field}" if self.field else "")
        value = f" = {shorten(self.value)}" if self.value else ""
        suggestion = f" ({self.suggestion})" if self.suggestion else ""
        return one_line(f"{where}{value}: {self.message}{suggestion}")


class TrainshedError(Exception):
    """An error with a message of one line, optional details and hint, and an exit status."""

    exit_code = EXIT_USER

    def __init__(self, message: str, *, details: str = "", hint: str = "") -> None:
        message = one_line(message)
        super().__init__(message)
        self.message = message
        self.details = details
        self.hint = one_line(hint)


MOST_TOLD = 50  # problems of a job, each on a line; of more, how many there are


class JobError(TrainshedError):
    """The job cannot be read; `problems` lists all problems, in the order of the files."""

    exit_code = EXIT_JOB

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        count = f"{len(problems):,} problems in the job" if len(problems) > 1 else "the job cannot be read"
        told = [f"  {number}. {problem.line()}" for number, problem in enumerate(problems[:MOST_TOLD], 1)]
        if len(problems) > MOST_TOLD:
            told.append(f"  and {len(problems) - MOST_TOLD:,} more: mend these, and look again")
        super().__init__(f"{count}: {problems[0].line()}", details="\n".join(told) if len(problems) > 1 else "")


class NoJobError(TrainshedError):
    """Nothing describes a job: neither config, nor code, nor a program."""

    exit_code = EXIT_JOB


class ProgramError(TrainshedError):
    """The user's program cannot be found, unpacked or installed."""


class LaunchError(TrainshedError):
    """The program cannot be started."""


class LimitError(TrainshedError):
    """A limit of this machine or container is reached: open files, processes, memory, disk."""


class ClusterError(TrainshedError):
    """Another host of the job is missing."""

    exit_code = EXIT_UNAVAILABLE


def visible(text: str) -> str:
    """Text of one or more lines with what is not to be seen spelled out (`\\x1b`, `\\u202e`).

    Other people's text must neither control the terminal, nor turn itself around, nor make lines of its own: control
    and format characters, unpaired surrogates and Unicode's line separators are escaped; line ends and tabs stay.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter in "\n\t" or _is_seen(letter) else _escaped(letter) for letter in text)


def one_line(text: str) -> str:
    """As `visible`, and line ends and tabs are escaped, too: for names and values in a message."""
    if text.isprintable():
        return text
    return "".join(letter if _is_seen(letter) else _escaped(letter) for letter in text)


_JOINERS = "\u200c\u200d"  # Persian words and families of emoji are written with them


def _is_seen(letter: str) -> bool:
    if letter.isprintable() or letter in _JOINERS:
        return True
    import unicodedata  # only where something is strange already

    return unicodedata.category(letter) not in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _escaped(letter: str) -> str:
    return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(letter) or ascii(letter)[1:-1]


def shorten(text: str, limit: int = 80) -> str:
    """Returns `text` on one line of at most `limit` characters; `...` marks a cut."""
    text = " ".join(str(text).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def some(names: Sequence[str], most: int, between: str = ", ") -> str:
    """The first `most` names for a message, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return between.join(names[:most]) + more


def near_name(name: str, known: Iterable[str]) -> str:
    """`did_you_mean` for names with a prefix like `sagemaker_`, which would make all of them look alike."""
    prefix = name[: name.find("_") + 1]
    return did_you_mean(name[len(prefix) :], [item[len(prefix) :] for item in known]).replace("'", f"'{prefix}", 1)


def did_you_mean(word: str, known: object, cutoff: float = 0.6) -> str:
    """`did you mean 'train'?` for the nearest of the `known` words, or an empty string. cutoff: how near, 1 is the same."""
    import difflib  # only needed where something is already wrong

    if len(str(word)) > 200:  # nothing is near, and comparing takes the square of the length
        return ""
    near = difflib.get_close_matches(str(word), [str(item) for item in known], n=1, cutoff=cutoff)  # type: ignore[attr-defined]
    return f"did you mean {near[0]!r}?" if near else ""
