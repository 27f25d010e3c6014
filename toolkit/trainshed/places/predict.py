"""`trainshed predict`: a model says what it makes of data, in the image of its run, or here."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, Any

from trainshed.algorithms.looking import environment_for
from trainshed.algorithms.predictions import MODULE, program_of
from trainshed.base.archive import unpack
from trainshed.base.errors import TrainshedError
from trainshed.base.wings import module_of_wing
from trainshed.contract.model_reference import SCHEME
from trainshed.runner.control.model_folder import model_folder
from trainshed.runner.state.provenance import provenance_of
from trainshed.runner.state.stored import Stored, find, is_runs_folder

from .container_command import mount
from .container_engine import find_engine

Row = dict[str, Any]


@dataclass(frozen=True)
class ModelSource:
    """What predicts. name: for people. model: its folder. program: a ready program's name, or the path of a script.

    code: the folder of that script, "" for none. image: where it runs, "" for here, by the interpreter `python`.
    """

    name: str
    model: str
    program: str
    code: str = ""
    image: str = ""
    python: str = ""


@contextmanager
def source_of(what: str, environ: Mapping[str, str]) -> Iterator[ModelSource]:
    """What predicts with a run (its name or folder), a model's folder or archive, `model://NAME`. Raises TrainshedError."""
    with ExitStack() as stack:
        if what.startswith(SCHEME) or (os.path.exists(what) and not is_runs_folder(what)):
            folder = stack.enter_context(_model_at(what, environ))
            yield ModelSource(what, folder, program_of(folder, environ))
            return
        run = find(what, environ)
        yield _of_run(run, stack.enter_context(model_folder(run)), environ)


@contextmanager
def _model_at(what: str, environ: Mapping[str, str]) -> Iterator[str]:
    if os.path.isdir(what):
        yield os.path.abspath(what)
        return
    with tempfile.TemporaryDirectory(prefix="trainshed-model-") as above:
        folder = f"{above}/model"
        if what.startswith(SCHEME):
            version = module_of_wing("studio.models.channel_source", f"a model from {SCHEME}").source_of(what, environ)
            version.store.get(version.version, folder)
        else:
            os.mkdir(folder)
            unpack(what, folder)
        yield folder


def _of_run(run: Stored, model: str, environ: Mapping[str, str]) -> ModelSource:
    """The program of a run's model: the ready one that made it, else the run's own script. Raises TrainshedError."""
    job, code = run.run().job, f"{run.folder}/algo-1/code"
    image = provenance_of(run).image
    exact = str(image.get("digest") or image.get("id") or job.image) if job.image else ""
    try:
        return ModelSource(run.name, model, program_of(model, environ), "", exact, job.python)
    except TrainshedError:
        module = job.program.removeprefix("-m ").strip()
        name = module if module == job.program else f"{module.replace('.', '/')}.py"
        if os.path.isfile(script := f"{code}/{name}"):
            return ModelSource(run.name, model, script, code, exact, job.python)
        if exact and not job.source_dir:  # the image has it
            return ModelSource(run.name, model, name, "", exact)
        raise


def predictions(
    source: ModelSource, data: str, output: str, environ: Mapping[str, str], given: Mapping[str, str]
) -> Iterator[Row]:
    """Each row's prediction, or its `error`, as they are made. Raises TrainshedError where there is none.

    output: folder for files that the program writes, such as masks. given: hyperparameters.
    """
    if given and source.program.endswith(".py"):
        raise TrainshedError("hyperparameters are for ready programs: a script's predict has none")
    if not os.path.exists(data):
        raise TrainshedError(f"there is no file or folder {data}")
    paths = (source.model, os.path.abspath(data), output)
    words = [MODULE, source.program, *paths, *(word for name, value in given.items() for word in (f"--{name}", value))]
    if source.image:
        command, variables = _in_image(source, paths, words, environ), dict(environ)
    else:
        command, variables = [source.python or sys.executable, "-m", *words], environment_for(environ)
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, (source.code, variables["PYTHONPATH"])))
    yield from _lines_of(command, variables, source.name)


def _in_image(source: ModelSource, paths: Iterable[str], words: list[str], environ: Mapping[str, str]) -> list[str]:
    """The command that runs them in the run's image; folders have the names that they have here."""
    engine = find_engine(environ)
    if engine.elsewhere:
        raise TrainshedError(f"{engine.place} is on another machine, whose containers do not see this one's folders")
    user = [] if engine.rootless else ["--user", f"{os.getuid()}:{os.getgid()}"]
    *fixed, output = (path for path in (source.code, *paths) if path)
    places = {**dict.fromkeys(fixed, True), output: False}
    mounts = [part for path, read_only in places.items() for part in ("--mount", mount(path, path, read_only))]
    options = ["--rm", *user, "--security-opt", "label=disable", "--network", "none", "--env", "HOME=/tmp", *mounts]
    return [*engine.command, "run", *options, "--entrypoint", "python3", source.image, "-m", *words]


def _lines_of(command: list[str], variables: Mapping[str, str], name: str) -> Iterator[Row]:
    """The JSON lines of a command; what it says on stderr goes to ours. Raises TrainshedError with its last words."""
    process = subprocess.Popen(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    assert process.stdout is not None and process.stderr is not None
    last: list[str] = []
    reader = threading.Thread(target=_pass_on, args=(process.stderr, last), daemon=True)
    reader.start()
    try:
        for line in process.stdout:
            row = _row(line)
            if row is None:
                print(line, end="", file=sys.stderr)
            else:
                yield row
        status = process.wait()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        reader.join()
        process.stdout.close()
        process.stderr.close()
    if status:
        raise TrainshedError(f"{name} could not predict: {last[0] if last else f'status {status}'}")
    if last:
        print(last[0], file=sys.stderr)


def _pass_on(stream: IO[str], last: list[str]) -> None:
    """Prints lines, each when the next one comes: the last one says why a program has failed."""
    for line in filter(str.strip, stream):
        if last:
            print(last.pop(), file=sys.stderr, flush=True)
        last.append(line.rstrip())


def _row(line: str) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def predict(
    what: str,
    data: str,
    output: str,
    environ: Mapping[str, str],
    hyperparameters: Mapping[str, str] | None = None,
    seen: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """What a model makes of data; also written to the file `output`, "" for none. Raises TrainshedError.

    seen: is told each row as it is made.
    """
    if output:
        require_writable(output)
    with source_of(what, environ) as source, tempfile.TemporaryDirectory(prefix="trainshed-predict-") as folder:
        beside = f"{os.path.splitext(os.path.abspath(output))[0]}_files" if output else ""
        rows = []
        for row in predictions(source, data, folder, environ, hyperparameters or {}):
            row = {name: _moved(value, folder, beside) for name, value in row.items()}
            seen(row)
            rows.append(row)
        if beside and os.listdir(folder):
            shutil.copytree(folder, beside, dirs_exist_ok=True)
    if output:
        write_rows(rows, output)
    return rows


def _moved(value: Any, folder: str, beside: str) -> Any:
    """The path of a file that a program has written, where it is kept; "" where it is not."""
    if not isinstance(value, str) or not value.startswith(f"{folder}/"):
        return value
    return beside + value.removeprefix(folder) if beside else ""


def require_writable(path: str) -> None:
    """Raises TrainshedError where no file of that name can be written, before anything is predicted."""
    if ending_of(path) not in WRITERS:
        raise TrainshedError(f"{path}: predictions are written as {', '.join(sorted(WRITERS))}", hint="name the file so")
    if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise TrainshedError(f"{path}: there is no such folder")
    if ending_of(path) == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise TrainshedError(f"{path} needs pyarrow", hint="pip install 'trainshed[data]'; or name a .csv") from error


def write_rows(rows: Iterable[Row], path: str) -> None:
    """Writes rows as the ending says. Raises TrainshedError."""
    aside = f"{os.path.dirname(os.path.abspath(path))}/.{os.path.basename(path)}.{os.getpid()}"
    try:
        WRITERS[ending_of(path)](list(rows), aside)
        os.replace(aside, path)
    except OSError as error:
        raise TrainshedError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        if os.path.exists(aside):
            os.unlink(aside)


def ending_of(path: str) -> str:
    """`.csv` of a path."""
    return os.path.splitext(path)[1].lower()


def _lines(rows: list[Row], path: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)


def _csv(rows: list[Row], path: str) -> None:
    names = columns(rows)
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows([_cell(row.get(name)) for name in names] for row in rows)


def columns(rows: Iterable[Row]) -> list[str]:
    """All names, in the order in which they come; `error` last."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return sorted(names, key=lambda name: name == "error")


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list, bool)) else value


def _parquet(rows: list[Row], path: str) -> None:
    import pyarrow
    from pyarrow import parquet

    made = {}
    for name in columns(rows):
        values = [row.get(name) for row in rows]
        try:
            made[name] = pyarrow.array(values)
        except (pyarrow.ArrowException, OverflowError):  # values of several kinds
            made[name] = pyarrow.array([None if value is None else str(_cell(value)) for value in values])
    parquet.write_table(pyarrow.table(made), path)


WRITERS: dict[str, Callable[[list[Row], str], None]] = {
    ".csv": _csv,
    ".json": _lines,
    ".jsonl": _lines,
    ".parquet": _parquet,
}
