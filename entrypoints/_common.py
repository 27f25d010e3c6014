"""What the training programs of this folder share: arguments, one-line errors, ranks, files that appear whole.

Imports the standard library alone; torch is imported by the functions that need it, so that a program can say what is
wrong with its hyperparameters before torch is loaded.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import difflib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from trainshed.algorithms.values import Hyperparameter
    from trainshed.data.channels import ChannelFacts


CHECK = "--check_data"
LEAVE_OUT = "ignore_columns leaves a column out"


class Problem(Exception):
    """Something that the person who started the job can mend; the program prints it as one line and exits with 1."""


def run(main: Callable[[], None]) -> NoReturn:
    """Runs a program: status 0, or 1 with one line on stderr for a `Problem`; other errors keep their traceback."""
    try:
        main()
    except Looked:
        say_first("the data is plausible")
    except Problem as problem:
        # The line comes last: a problem found in a DataLoader worker arrives with the worker's traceback before it.
        line = str(problem).strip().splitlines()[-1].removeprefix(f"{type(problem).__module__}.Problem: ")
        print(f"{Path(sys.argv[0]).stem}: error: {line}", file=sys.stderr)
        _end(1)
    _end(0)


def note(text: str) -> None:
    """Says on rank 0 what a program found in the data: in a job's log, else on stderr, as stdout may have predictions."""
    if os.environ.get("RANK", "0") in ("", "0"):
        print(f"note: {text}", file=sys.stdout if in_job() else sys.stderr, flush=True)


def say_first(line: str) -> None:
    """Prints a line on rank 0: on stdout where a job trains or data is looked at."""
    if os.environ.get("RANK", "0") in ("", "0"):
        print(line, flush=True)


class Looked(Exception):
    """The data was read and is plausible, and nobody asks for more (`trainshed data check`)."""


def looked(hp: argparse.Namespace) -> None:
    """Ends a program here, with status 0, if it was started to look at its data alone. Raises Looked."""
    if hp.check_data:
        raise Looked


def need(program: str) -> None:
    """Ends a program with one line that says what to install, where modules are absent that it declares to need."""
    from trainshed.algorithms.declaration import beside, read
    from trainshed.algorithms.shelf import missing

    algorithm = read(beside(program))
    absent = missing(algorithm)
    if absent:
        what = f"'trainshed[{algorithm.extra}]'" if algorithm.extra else " ".join(absent)
        run(lambda: _raise(Problem(f"needs {', '.join(absent)}, not installed here: pip install {what}")))


def _raise(problem: Problem) -> NoReturn:
    raise problem


def _end(status: int) -> NoReturn:
    """Ends the process without taking the interpreter apart.

    Seen without this: 2 of 17 runs of two ranks were aborted after all their work was done (SIGABRT, "terminate called
    without an active exception"), as happens to C++ threads that still want the interpreter while it is taken apart.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


# --- arguments --------------------------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """Reads `--key value` as a training job writes it.

    `--batch-size` and `--batch_size` are the same; an empty value (a null hyperparameter) leaves the default; names are
    not abbreviated, so that a mistyped hyperparameter is an error and not another one.
    """

    def __init__(self, description: str) -> None:
        self.declaration: list[Hyperparameter] = []
        super().__init__(
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )

    @classmethod
    def declared(cls, program: str) -> Parser:
        """What the declaration beside a program says that it takes; folders are those of the job, if there is one.

        Args:
            program: path of the script.
        """
        from trainshed.algorithms.declaration import DeclarationError, beside, read

        try:
            algorithm = read(beside(program))
        except DeclarationError as error:
            raise Problem(error.message) from error
        parser = cls(f"Trains {algorithm.description}. In a training job the folders come from SM_* variables.")
        parser.declaration = list(algorithm.hyperparameters.values())
        for one in algorithm.hyperparameters.values():
            about = one.help if one.type in ("text", "folder") else f"{one.help}{'; ' * bool(one.help)}{one.kind()}"
            about = about.replace("%", "%%")
            # Jobs give names of one letter as `-k`.
            names = [f"--{one.name}", *([f"-{one.name}"] if len(one.name) == 1 else [])]
            parser.add_argument(*names, type=_reader(one), default=one.default, help=about, metavar=one.type.upper())
        given = {one.name: channel(one.name, *one.aliases) for one in algorithm.channels.values()}
        given["model_dir"] = os.environ.get("SM_MODEL_DIR") or "model"
        given["output_data_dir"] = os.environ.get("SM_OUTPUT_DATA_DIR") or "output"
        folders = {one.name for one in algorithm.hyperparameters.values() if one.type == "folder"}
        parser.set_defaults(**{name: path for name, path in given.items() if name in folders})
        parser.add_argument(CHECK, action="store_true", help=argparse.SUPPRESS)  # for `trainshed data check`
        return parser

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """The namespace of `argv`; raises Problem."""
        known, unknown = self.parse_known_args(_normalised(argv))
        if unknown:
            names = [option for action in self._actions for option in action.option_strings]
            near = difflib.get_close_matches(unknown[0], names, n=1)
            hint = f"; did you mean {near[0]}?" if near else "; --help lists them"
            raise Problem(f"there is no hyperparameter {' '.join(unknown[:2])}{hint}")
        in_vain: dict[str, list[str]] = {}
        for one in self.declaration:
            if said := one.said_of(getattr(known, one.name)):
                if one.refused:
                    raise Problem(said)
                in_vain.setdefault(one.changes_nothing, []).append(one.name)
        for why, names in in_vain.items():
            note(f"{', '.join(names)} change{'s' * (len(names) == 1)} nothing: {why}")
        return known

    def error(self, message: str) -> NoReturn:
        """argparse's own complaints, as one line."""
        raise Problem(message.replace("argument --", "hyperparameter ", 1))


def require_libraries(program: str) -> None:
    """Raises Problem unless all modules are installed that the declaration beside a program says it needs."""
    from trainshed.algorithms.declaration import beside, read
    from trainshed.algorithms.shelf import missing

    algorithm = read(beside(program))
    if lacks := missing(algorithm):
        install = f"'trainshed[{algorithm.extra}]'" if algorithm.extra else " ".join(lacks)
        raise Problem(f"{algorithm.name} needs {', '.join(lacks)}, not installed here: pip install {install}")


def _reader(one: Hyperparameter) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return one.read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def _normalised(argv: Sequence[str]) -> list[str]:
    """`argv` with underscores in names, `--key=value` taken apart, and pairs with an empty value left out."""
    result: list[str] = []
    for token in argv:
        if token.startswith("--"):
            name, equals, value = token.partition("=")
            result.append(name.replace("-", "_").replace("__", "--", 1))
            if equals:
                result.append(value)
        else:
            result.append(token)
        if result[-1] == "" and len(result) > 1:
            del result[-2:]
    return result


# --- the job's folders ------------------------------------------------------------------------------------------------


def in_job() -> bool:
    """Whether a launcher of training jobs started this process (then a missing channel is an error, not a demo)."""
    return bool(os.environ.get("SM_CHANNELS") or os.environ.get("SM_MODEL_DIR"))


def channel(*names: str) -> str | None:
    """Folder of the first of these channels that the job has."""
    return next((path for name in names if (path := os.environ.get(f"SM_CHANNEL_{name.upper()}"))), None)


def said_of(*names: str) -> dict[str, str]:
    """What the job says of the first of these channels that it has: its ContentType, its S3DistributionType."""
    config = json.loads(os.environ.get("SM_INPUT_DATA_CONFIG") or "{}")
    return next((config[name] for name in names if isinstance(config.get(name), dict)), {})


def piped(path: str, *names: str) -> ChannelFacts | None:
    """What the job says of the channel with one of these names and this path, if it comes through a pipe; else None."""
    if not in_job():
        return None
    from trainshed.data.channels import facts_of

    given = json.loads(os.environ.get("SM_CHANNELS") or "[]")
    every = [facts_of(name, os.environ) for name in names if name in given]
    return next((facts for facts in every if facts.path == path and facts.input_mode == "Pipe"), None)


def folder(path: str, what: str) -> Path:
    """`path`, which must be a folder with something in it; `what` names it in errors."""
    if not os.path.isdir(path):
        raise Problem(f"{what} {path} is not a folder")
    if not any(not entry.name.startswith(".") for entry in os.scandir(path)):
        raise Problem(f"{what} {path} is empty")
    return Path(path)


def previous_model(asked: str | None) -> Path | None:
    """Folder of the model to go on from: as asked, else what the job's channel `model` has; raises Problem."""
    from trainshed.data import DataError, has_previous_model
    from trainshed.data import previous_model as of_channel

    if asked:
        return folder(asked, "the previous model")
    if not has_previous_model():
        return None
    try:
        return Path(of_channel())
    except DataError as error:
        raise Problem(": ".join(filter(None, (error.message, error.hint)))) from error


def checkpoint_folder(asked: str | None) -> Path | None:
    """Where checkpoints go: the folder asked for (made if need be), else the job's own if it exists, else None."""
    if asked:
        Path(asked).mkdir(parents=True, exist_ok=True)
        return Path(asked)
    usual = Path(os.environ.get("SM_CHECKPOINT_DIR") or "/opt/ml/checkpoints")
    return usual if usual.is_dir() else None


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Gives a path to write to; when the block ends well, the file is on disk and appears as `path` at once.

    Raises Problem where it cannot be written.
    """
    with writing_to(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            yield temporary
            _sync(temporary)
            os.replace(temporary, path)
            _sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Raises Problem, which names the folder, where the block cannot write: on a full disk, say."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, OSError) and type(error).__name__ != "SafetensorError":  # which is no OSError
            raise
        raise Problem(f"{folder} cannot be written to: {getattr(error, 'strerror', None) or error}") from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: object) -> None:
    """`value` as an indented JSON file that appears whole."""
    with whole_file(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


# --- ranks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """This process among those of the job, by torchrun's variables; one process alone needs none of them."""

    rank: int
    size: int
    local_rank: int
    device: Any
    """torch.device that this rank computes on."""

    @staticmethod
    def join(device: str) -> World:
        """Joins the process group if there is more than one rank; `device` is auto, cpu or cuda.

        On GPUs the group carries gloo beside NCCL, so that small facts travel without waiting for the GPU.
        """
        import torch

        try:
            size, rank, local_rank = (
                int(os.environ.get(name) or default) for name, default in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0))
            )
        except ValueError as error:
            raise Problem(f"WORLD_SIZE, RANK or LOCAL_RANK is not a number: {error}") from error
        if device == "cuda" and not torch.cuda.is_available():
            raise Problem("device is cuda, but torch sees no GPU here; use device cpu or auto")
        on_gpu = device != "cpu" and torch.cuda.is_available()
        here = torch.device("cpu")
        if on_gpu:
            visible = torch.cuda.device_count()
            if local_rank >= visible > 1:
                raise Problem(f"LOCAL_RANK is {local_rank}, but {visible} GPUs are visible: start one process per GPU")
            here = torch.device("cuda", local_rank % visible)
            torch.cuda.set_device(here)
        if size > 1:
            for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
                if not os.environ.get(name):
                    raise Problem(f"WORLD_SIZE is {size}, but {name} is not set: start the ranks with train or torchrun")
            torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
        return World(rank, size, local_rank, here)

    def bfloat16(self, asked: bool) -> bool:
        """Whether to compute in bfloat16: if asked to, unless the GPU would only emulate it (then says so)."""
        import torch

        if asked and self.device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
            self.say("amp: this GPU has no bfloat16; computing in float32")
            return False
        return asked

    def leave(self) -> None:
        """Leaves the process group, if there is one."""
        import torch

        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    def say(self, *words: object) -> None:
        """Prints a line on rank 0, at once."""
        if self.rank == 0:
            print(*words, flush=True)

    def metric(self, name: str, value: float, epoch: float, step: int) -> None:
        """One measurement, as the line that metric definitions look for: `metric train_loss=0.12 epoch=3 step=120`."""
        self.say(f"metric {name}={value:.6g} epoch={epoch:.6g} step={step}")

    def gather(self, value: Any) -> list[Any]:
        """The (picklable) `value` of every rank, in the order of ranks."""
        if self.size == 1:
            return [value]
        import torch

        values = [None] * self.size
        torch.distributed.all_gather_object(values, value)
        return values

    def from_first(self, value: Any) -> Any:
        """Rank 0's (picklable) `value`, on every rank."""
        if self.size == 1:
            return value
        import torch

        values = [value]
        torch.distributed.broadcast_object_list(values, src=0)
        return values[0]

    def array_from_first(self, make: Callable[[], Any]) -> Any:
        """What `make` gives on rank 0, a row of int32, on every rank; its Problem, too."""
        import numpy
        import torch

        array, problem = numpy.zeros(0, numpy.int32), ""
        if self.rank == 0:
            try:
                array = make()
            except Problem as error:
                problem = str(error)
        size, problem = self.from_first((len(array), problem))
        if problem:
            raise Problem(problem)
        if self.size > 1:
            values = torch.from_numpy(array) if self.rank == 0 else torch.empty(size, dtype=torch.int32)
            torch.distributed.broadcast(values, src=0)
            array = values.numpy()
        return array

    def require_same(self, what: str, value: object) -> None:
        """Raises Problem on every rank if `value` is not the same on all; `what` begins the message."""
        values = self.gather(value)
        for rank, other in enumerate(values):
            if other != values[0]:
                raise Problem(
                    f"{what}: rank 0 has {values[0]}, rank {rank} has {other}; every host needs the whole data "
                    "(S3DataDistributionType FullyReplicated)"
                )

    def share_of_batch(self, batch_size: int, parts: int = 1) -> int:
        """Examples of one global batch for each of this job's ranks (and `parts` of a rank, if it takes several)."""
        shares = self.size * parts
        if batch_size < shares:
            per_rank = f" times {parts} parts each" if parts > 1 else ""
            raise Problem(
                f"batch_size {batch_size} is smaller than the world size {self.size}{per_rank}: give {shares} or more"
            )
        share = batch_size // shares
        if share * shares != batch_size:
            self.say(f"batch_size {batch_size} does not divide by {shares}: using {share * shares}, {share} a rank")
        return share
