"""What a model says about data: a ready program's `--predict`, or `predict` of a script of one's own. Prints JSON lines.

It runs where the model can be loaded, in the image of a run or here: `python -m trainshed.algorithms.predictions PROGRAM
MODEL DATA OUTPUT [--NAME VALUE ...]`. PROGRAM is a ready program's name or the path of a script.
OUTPUT gets files, such as masks.
"""

from __future__ import annotations

import os
import sys

from trainshed.base.errors import TrainshedError

from .looking import environment_for, install, is_ready
from .shelf import find, missing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

MODULE = "trainshed.algorithms.predictions"


def program_of(model: str, environ: Mapping[str, str]) -> str:
    """The ready program that made the files in a folder. A script that lies with them is not run: it may come from anybody.

    Raises:
        TrainshedError: they are of none.
    """
    from trainshed.base.files import read_object

    for name in ("model.json", ".about.json", ".model.json"):
        program = read_object(f"{model}/{name}", 1 << 26, links=False).get("program")
        if isinstance(program, str) and program.isidentifier() and _is_ready(program, environ):
            return program
    raise TrainshedError(
        "the model's model.json names no ready program that made it",
        hint="name the run that made it, whose own script has `predict` (docs/predict.md)",
    )


def _is_ready(program: str, environ: Mapping[str, str]) -> bool:
    try:
        return is_ready(find(program, environ), environ)
    except TrainshedError:
        return False


def predict(program: str, model: str, data: str, output: str, given: list[str], environ: Mapping[str, str]) -> int:
    """Prints the predictions; returns the exit status. Raises TrainshedError. given: hyperparameters, as words."""
    if program.endswith(".py"):
        from .own_script import predict as by_script

        return by_script(program, model, data)
    algorithm = find(program, environ)
    if not is_ready(algorithm, environ):
        raise TrainshedError(f"{program} is not a ready program")
    if absent := missing(algorithm):
        raise TrainshedError(f"{program} needs {', '.join(absent)}, not installed here", hint=install(algorithm))
    words = [sys.executable, algorithm.script, "--predict", data, "--model_dir", model]
    words += ["--output_data_dir", output] if "output_data_dir" in algorithm.hyperparameters else []
    words += given
    sys.stdout.flush()
    os.execve(sys.executable, words, environment_for(environ))


def main(words: list[str]) -> int:
    """The command line of the module."""
    try:
        program, model, data, output, *given = words
        return predict(program, model, data, output, given, os.environ)
    except TrainshedError as error:
        print(": ".join(filter(None, (error.message, error.hint))), file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
