"""What a failed installation is reported with: its reason, a hint, and the installer's own words."""

from __future__ import annotations

import pytest

from trainshed.container.program.install_errors import SHOWN_CHARACTERS, excerpt, hint, reason

BUILD = """\
  error: subprocess-exited-with-error

  × Building wheel for fast (pyproject.toml) did not run successfully.
  │ exit code: 1
  ╰─> [3 lines of output]
      creating build
      fast.c:1:10: fatal error: Python.h: No such file or directory
      error: command '/usr/bin/gcc' failed with exit code 1
      [end of output]

  note: This error originates from a subprocess, and is likely not a problem with pip.
ERROR: Failed building wheel for fast
"""


@pytest.mark.parametrize(
    ("output", "said", "advice"),
    [
        (
            "Collecting x\nERROR: Could not find a version that satisfies x\nERROR: No matching distribution found for x\n",
            "ERROR: Could not find a version that satisfies x",
            "check the name and version",
        ),
        (
            "error: subprocess-exited-with-error\n\n× python setup.py egg_info did not run\n",
            "× python setup.py",
            "try it in the image",
        ),
        (
            "  × No solution found when resolving dependencies:\n  ╰─▶ no version of x==9",
            "× No solution found",
            "check the name",
        ),
        ("ERROR: [Errno 28] No space left on device\n", "No space left", "the container's disk is full"),
        ("ERROR: HTTPSConnectionPool: Connection refused\n", "Connection refused", "is not reachable from this container"),
        ("Traceback ...\nImportError: No module named pip\n", "No module named pip", "python3 -m ensurepip"),
        ("ERROR: Invalid requirement: 'six=1' (from line 1 of /x/requirements.txt)\n", "'six=1'", "mend that line"),
        (
            "ERROR: Could not open requirements file: [Errno 2] No such file or directory: '/x/more.txt'\n",
            "'/x/more.txt'",
            "names a file that is not beside it",
        ),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 2] No such file or directory: '/x/a.whl'\n",
            "'/x/a.whl'",
            "names a file that is not beside it",
        ),
        ("something else\nlast words\n", "last words", "try it in the image"),
        ("", "no reason given", "try it in the image"),
    ],
)
def test_the_line_that_says_why_is_found(output: str, said: str, advice: str) -> None:
    assert said in reason(output) and advice in hint(output)


def test_a_package_that_does_not_compile_is_reported_with_the_compilers_error_and_what_to_install() -> None:
    assert reason(BUILD) == "fast.c:1:10: fatal error: Python.h: No such file or directory"
    assert "apt-get install build-essential" in hint(BUILD)
    without_compiler = (
        "  error: subprocess-exited-with-error\n      error: command 'gcc' failed: No such file or directory\n"
    )
    assert reason(without_compiler) == "a package is built from source, and this image has no C compiler (gcc)"
    assert "apt-get install build-essential python3-dev" in hint(without_compiler)


MISSING = {  # what builds print: what the first line says, what is to be installed
    "error: command 'x86_64-linux-gnu-gcc' failed: No such file or directory": (
        "C compiler (x86_64-linux-gnu-gcc)",
        "build-",
    ),
    "unable to execute '/usr/bin/g++-12': No such file or directory": ("C++ compiler (g++-12)", "build-essential"),
    "FileNotFoundError: [Errno 2] No such file or directory: 'cmake'": ("no cmake", "install cmake"),
    "/bin/sh: 1: gfortran: not found": ("Fortran compiler (gfortran)", "install gfortran"),
    "sh: line 1: cc: command not found": ("C compiler (cc)", "build-essential"),
    "make[1]: g++: No such file or directory": ("C++ compiler (g++)", "build-essential"),
    "  No CMAKE_CXX_COMPILER could be found.": ("C++ compiler", "build-essential"),
    "../meson.build:1:0: ERROR: Unknown compiler(s): [['cc'], ['gcc'], ['clang']]": ("C compiler (cc)", "build-essential"),
    "error: linker `cc` not found": ("C compiler (cc)", "build-essential"),
    "error: can't find Rust compiler": ("Rust compiler", "install cargo"),
    "Cargo, the Rust package manager, is not installed or is not on PATH.": ("Rust compiler", "install cargo"),
    "ERROR: Cannot find command 'git' - do you have 'git' installed and in your PATH?": ("no git", "install git"),
    "FileNotFoundError: [Errno 2] No such file or directory: 'ninja'": ("no ninja", "install ninja-build"),
}
BUILDERS = {
    "pip": (
        "  Building wheel for fast (pyproject.toml) did not run successfully.\n",
        "ERROR: Failed building wheel for fast\n",
    ),
    "uv": ("  × Failed to build `fast==1.0`\n  ├─▶ The build backend returned an error\n", ""),
}


def test_a_missing_compiler_is_named_in_the_first_line() -> None:
    wrong = []
    for builder, (before, after) in BUILDERS.items():
        for printed, (named, package) in MISSING.items():
            text = f"{before}      {printed}\n{after}"
            said, advice = reason(text), hint(text)
            if not said.startswith("fast is built from source, and this image has no ") or named not in said:
                wrong.append((builder, printed, said))
            if f"apt-get install {package}" not in advice and package not in advice:
                wrong.append((builder, printed, advice))
    assert not wrong


def test_files_that_are_missing_are_not_taken_for_compilers() -> None:
    for printed in (
        "[Errno 2] No such file or directory: 'README.md'",
        "fast.c:1:10: fatal error: x.h: No such file",
        BUILD,
    ):
        assert "built from source" not in reason(printed)


def test_a_long_error_keeps_the_compilers_words_and_its_end() -> None:
    noise = "".join(f"      gcc -c file{number}.c\n" for number in range(2000))
    shown = excerpt(BUILD + noise + "ERROR: last words\n", "Collecting slow\nCollecting fast\n" * 500)

    assert "fast.c:1:10: fatal error: Python.h: No such file or directory" in shown
    assert shown.endswith("ERROR: last words")
    assert "Collecting fast" in shown and len(shown) < SHOWN_CHARACTERS + 2000


def test_what_was_printed_to_one_stream_is_shown_once() -> None:
    assert excerpt("ERROR: a\n", "ERROR: a\n") == "ERROR: a"
    assert excerpt("ERROR: a\n", "Collecting b\n") == "Collecting b\nERROR: a"
