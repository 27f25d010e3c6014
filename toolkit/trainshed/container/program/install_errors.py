"""Reads what pip or uv printed when an installation failed: the reason in one line, a hint, and the part to show."""

from __future__ import annotations

import re

from trainshed.base.errors import shorten

SHOWN_CHARACTERS = 6000
# Ordered by how much they explain: the compiler's own error, then the command that could not run.
_CAUSES = (
    re.compile(r"^\S+:\d+(?::\d+)?: (?:fatal )?error: "),
    re.compile(r"error: (?:command|Microsoft|can't find|could not find) .*", re.IGNORECASE),
)
# How builds say that a program is missing; the group is its name.
_MISSING = tuple(
    re.compile(pattern)
    for pattern in (
        r"command '([^']+)' failed: No such file",
        r"unable to execute '([^']+)': No such file",
        r"\[Errno 2\] No such file or directory: '([^']+)'",
        r"(?:sh|bash|dash)(?:: line)?:? ?\d*: ([\w.+/-]+): (?:command )?not found",
        r"make(?:\[\d+\])?: ([\w.+/-]+): No such file",
        r"No (CMAKE_\w+_COMPILER) could be found",
        r"Unknown compiler\(s\): \[\['([^']+)'",
        r"linker `([^`]+)` not found",
        r"can't find (Rust) compiler",
        r"(Cargo), the Rust package manager, is not installed",
        r"Cannot find command '([^']+)'",
    )
)
# What builds call, as it is named for people, and the packages of Debian that have it.
_TOOLS = (
    (r"g\+\+|c\+\+|clang\+\+|CMAKE_CXX_COMPILER", "C++ compiler", "build-essential python3-dev"),
    (r"gcc|cc|clang|ld|CMAKE_C_COMPILER", "C compiler", "build-essential python3-dev"),
    (r"gfortran|f77|f95|CMAKE_Fortran_COMPILER", "Fortran compiler", "gfortran"),
    (r"cargo|Cargo|rustc|Rust", "Rust compiler", "cargo"),
    (r"nvcc|CMAKE_CUDA_COMPILER", "CUDA compiler", "nvidia-cuda-toolkit"),
    (r"cmake|make|swig|git", "", ""),
    (r"ninja", "", "ninja-build"),
    (r"pkg-config", "", "pkg-config"),
    (r"pg_config", "", "libpq-dev"),
    (r"mysql_config", "", "libmysqlclient-dev"),
    (r"mpicc|mpicxx", "MPI compiler", "libopenmpi-dev"),
)
_PACKAGE = re.compile(r"[Bb]uilding wheel for ([\w.-]+)|Failed to (?:build|download and build) `([^`=]+)")
_LESS_TELLING = ("subprocess", "metadata-generation")  # pip's words about a failed build, which has errors of its own


def reason(text: str) -> str:
    """The line that says why, at most 300 characters.

    Args:
        text: what the installer printed to stderr.
    """
    if tool := _missing_tool(text):
        name, what, _ = tool
        package = next((a or b.split(" @")[0] for a, b in _PACKAGE.findall(text)), "a package")
        return f"{package} is built from source, and this image has no {f'{what} ({name})' if what else name}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for cause in _CAUSES:
        first = next((line for line in lines if cause.search(line)), "")
        if first:
            return shorten(first, 300)
    errors = [line for line in lines if line.lower().startswith(("error:", "× ", "x "))]
    telling = next((line for line in errors if not any(words in line for words in _LESS_TELLING)), "")
    return shorten(telling or (errors or lines or ["no reason given"])[-1], 300)


def hint(text: str) -> str:
    """Says what to do about it."""
    if "No module named pip" in text:
        return "this Python has no pip: python3 -m ensurepip gives it one (or apt-get install python3-pip)"
    if "Invalid requirement" in text:
        return "mend that line of requirements.txt: a name, or a name and a version like name==1.0"
    if "Could not open requirements file" in text or "due to an OSError: [Errno 2] No such file" in text:
        return "requirements.txt names a file that is not beside it: put it into the folder of the code"
    if "No matching distribution" in text or "no version of" in text:
        return "check the name and version in requirements.txt, and whether the index can be reached from where the job runs"
    if "No space left" in text:
        return "the container's disk is full"
    if "Connection" in text or "resolve host" in text or "Temporary failure" in text:
        return "the package index is not reachable from this container; build the packages into the image"
    if tool := _missing_tool(text):
        return f"install it in the image (apt-get install {tool[2]}), or ask for a version that has a wheel"
    if re.search(r"command '[^']*(?:gcc|g\+\+|cc|clang|c\+\+)' failed|Python\.h: No such file", text):
        return (
            "the package is compiled from source: install a compiler in the image "
            "(apt-get install build-essential python3-dev), or ask for a version that has a wheel"
        )
    return "try it in the image: pip install -r requirements.txt"


def _missing_tool(text: str) -> tuple[str, str, str] | None:
    """The program whose absence a build names: its name, what it is ("" where the name says it), Debian's package."""
    for found in (match for pattern in _MISSING for match in pattern.finditer(text)):
        name = found[1].rsplit("/", 1)[-1]
        for names, what, package in _TOOLS:
            if re.fullmatch(rf"(?:[\w.]+-linux-(?:gnu|musl)\w*-)?(?:{names})(?:-[\d.]+)?", name):
                return name, what, package or name
    return None


def excerpt(errors: str, output: str) -> str:
    """The part of a failed installation to keep in the report.

    Args:
        errors: what the installer printed to stderr, or all it printed where stderr stayed empty.
        output: what it printed to stdout.
    """
    shown = errors.strip("\n")
    if len(shown) > SHOWN_CHARACTERS:
        lines = [line for line in shown.splitlines() if any(cause.search(line.strip()) for cause in _CAUSES)]
        shown = "\n".join([*(shorten(line, 500) for line in lines[:10]), "...", shown[-SHOWN_CHARACTERS:]])
    last = output.strip("\n").splitlines()[-5:]  # they name the package that pip was at
    if last and output.strip() != errors.strip():
        return "\n".join([*(shorten(line, 300) for line in last), shown])
    return shown
