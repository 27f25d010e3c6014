"""Plays a script as several ranks and as one process, and compares the two."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO

import torch

from trainshed.base.errors import TrainshedError, shorten
from trainshed.contract.paths import FOLDER_VARIABLES
from trainshed.contract.wire.variables import PREFIX
from trainshed.machine.network import free_port

from .evidence import ACCELERATE, Evidence, load
from .global_batch import Fed, GivenBatches, Kept, KeptBatches
from .judgement import Verdict, judge, told
from .script_hooks import ScriptRecorder
from .surroundings import looking

ALONE = "alone.json"
_WEIGHTS, _PAUSE, _AFTER, _LONGEST = "weights.pt", 0.05, 10.0, 600.0
_TAIL = 2000  # characters of what a process without a traceback said last
_CHECKPOINTS = "SM_CHECKPOINT_DIR"
_WRITTEN = (*FOLDER_VARIABLES, "SAGEMAKER_METRICS_DIRECTORY")
_AGENTS = "TORCHELASTIC"  # variables that lead to the store of a torchrun that these ranks do not have


@contextmanager
def as_rank(folder: Path, steps: int, *, ends: bool = True) -> Iterator[ScriptRecorder]:
    """Within this context the script is one of the ranks, by the variables of torchrun."""
    rank, world = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
    kept = Kept(folder, rank)

    def save() -> None:
        kept.open = False
        recorder.evidence.loaders = kept.loaders
        if any(type(one).__name__ == "AcceleratedScheduler" for one in gc.get_objects()):
            recorder.evidence.ways.append(ACCELERATE)
        if rank == 0:
            torch.save(recorder.initial, folder / _WEIGHTS)
        recorder.evidence.save(folder / f"rank-{rank}.json")

    recorder = ScriptRecorder(rank, world, steps, ends=ends, done=save, batches=KeptBatches(folder, kept))
    try:
        with _ending(recorder), looking(recorder, kept, None):
            yield recorder
    finally:
        if kept.open:
            save()


@contextmanager
def as_one(folder: Path, steps: int) -> Iterator[ScriptRecorder]:
    """Within this context the script is one process, and gets what all ranks got."""
    ranks = evidence_of(folder)
    replicas = [one for one in ranks if one.rank == min([one.rank, *one.twins])]
    weights = torch.load(folder / _WEIGHTS, weights_only=True)
    first = [one.updates[0].passes[0].rows for one in ranks if one.updates and one.updates[0].passes]
    sources = [one.rank for one in replicas]
    fed, given = Fed(folder, sources, ranks[0].loaders), GivenBatches(folder, sources, _all_rows(replicas))
    rows_of = partial(_places, ranks=first, replicas=replicas)
    recorder = ScriptRecorder(0, 1, steps, weights=weights, rows_of=rows_of, batches=given)
    try:
        with _ending(recorder), looking(recorder, Kept(None, 0), fed):
            yield recorder
    finally:
        recorder.evidence.given = given.made
        recorder.evidence.save(folder / ALONE)


@contextmanager
def _ending(recorder: ScriptRecorder) -> Iterator[None]:
    """Notes an error of the script. One that exits well, or after its steps, is as one that has no more lines."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if not (isinstance(error, SystemExit) and (recorder.over or not error.code)):
            recorder.evidence.error = _told(error)
            raise


def _all_rows(replicas: Sequence[Evidence]) -> dict[tuple[int, int], list[str]]:
    """Step and number of a forward -> the rows of all ranks."""
    found: dict[tuple[int, int], list[str]] = {}
    for one in replicas:
        for step, update in enumerate(one.updates):
            for number, passing in enumerate(update.passes):
                found.setdefault((step, number), []).extend(passing.rows)
    return found


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {shorten(str(error))}"


def _places(rows: list[str], ranks: Sequence[list[str]], replicas: Sequence[Evidence]) -> list[list[int]]:
    """Where each rank's rows are among all; as they come, where they are not the same to the bit (they were filled up)."""
    counts = [len(one) for one in ranks]
    where: dict[str, list[int]] = {}
    for at, row in reversed(list(enumerate(rows))):
        where.setdefault(row, []).append(at)
    if len(replicas) == len(ranks) and not all(row in where for one in ranks for row in one):
        starts = [sum(counts[:at]) for at in range(len(counts))]
        return [list(range(start, start + count)) for start, count in zip(starts, counts, strict=True)]
    found = []
    for one in ranks:
        taken = {row: list(places) for row, places in where.items()} if len(replicas) < len(ranks) else where
        found.append([taken[row].pop() if taken.get(row) else 0 for row in one])
    return found


def evidence_of(folder: Path) -> list[Evidence]:
    """Of all ranks that have left some, in order."""
    found = [load(path) for path in folder.glob("rank-*.json")]
    return sorted(found, key=lambda one: one.rank)


def compare(folder: Path) -> Verdict:
    """What the evidence of a folder says."""
    alone = load(folder / ALONE) if (folder / ALONE).exists() else None
    return judge(evidence_of(folder), alone)


# Processes -----------------------------------------------------------------------------------------------------------


def verify(script: str, arguments: Sequence[str], ranks: int, steps: int, environ: dict[str, str], limit: float) -> Verdict:
    """Runs a script as so many ranks, and as one process.

    Args:
        limit: seconds that either may take.

    Raises:
        TrainshedError: no step was taken.
    """
    with tempfile.TemporaryDirectory(prefix="trainshed-verify-") as name:
        folder = Path(name)
        words = [script, *arguments]
        ended = _played([_command("rank", folder, steps, words)] * ranks, _apart(environ, folder / "of-ranks"), limit)
        found = evidence_of(folder)
        if not any(one.updates or one.error for one in found):
            raise TrainshedError(
                f"the script did not get through {steps} steps of an optimizer as {ranks} ranks "
                f"({ended or 'it ended before'})",
                hint="it may not train, want another -n, or hang where its ranks have other numbers of batches",
            )
        if all(one.updates for one in found) and len(found) == ranks:
            _played([_command("alone", folder, steps, words)], _apart(environ, folder / "of-one"), limit)
        return compare(folder)


def _apart(environ: dict[str, str], folder: Path) -> dict[str, str]:
    """With new folders for what the script writes: the one process must not go on from the ranks' checkpoints."""
    places = {name: folder / name.lower() for name in (_CHECKPOINTS, *_WRITTEN)}
    for place in places.values():
        place.mkdir(parents=True)
    return {**environ, **{name: os.fspath(place) for name, place in places.items()}}


def _command(role: str, folder: Path, steps: int, words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", f"{__package__}.rank", role, str(folder), str(steps), *words]


def _played(commands: Sequence[list[str]], environ: dict[str, str], limit: float, output: IO[bytes] | None = None) -> str:
    """Runs the ranks of one job to their end; one that fails ends the others. Returns what went wrong.

    Args:
        output: where they print to, if not to where this process does.
    """
    world, port = len(commands), free_port(0)
    environ = {name: value for name, value in environ.items() if not name.startswith(_AGENTS)}
    with ExitStack() as stack:
        processes = []
        for rank, command in enumerate(commands):
            own = {**environ, **_variables(rank, world, port)}
            processes.append(stack.enter_context(subprocess.Popen(command, env=own, stdout=output, stderr=output)))
            stack.callback(_end, processes[-1])
        deadline = time.monotonic() + limit
        while any(one.poll() is None for one in processes):
            failed = next((at for at, one in enumerate(processes) if one.poll()), None)
            if failed is not None:
                deadline = min(deadline, time.monotonic() + _AFTER)
            if time.monotonic() > deadline:
                return f"rank {failed} failed" if failed is not None else f"it took more than {limit:g} s"
            time.sleep(_PAUSE)
    return next((f"rank {at} failed" for at, one in enumerate(processes) if one.returncode), "")


def _variables(rank: int, world: int, port: int) -> dict[str, str]:
    """torchrun's, of which a rank has to be one."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "TORCHDYNAMO_DISABLE": "1",  # what is compiled is not seen
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        process.kill()
    process.wait()


# Two lines in a script -----------------------------------------------------------------------------------------------


def watch_here(steps: int) -> None:
    """See `trainshed.parallel.verify.watch`."""
    if f"{__package__}.rank" in sys.orig_argv:
        return  # it is being verified
    folder = _shared_folder()
    alone = _outside_of_job(folder / "of-one") if os.environ.get("RANK", "0") == "0" else {}
    stack = ExitStack()
    recorder = stack.enter_context(as_rank(folder, steps, ends=False))
    save = recorder.done

    def finished() -> None:
        save()
        if recorder.evidence.rank == 0:
            _wait_for(folder, recorder.evidence.world)
            _play_quietly(_command("alone", folder, steps, sys.argv), alone)
            print(told(compare(folder)), flush=True)
            shutil.rmtree(folder, ignore_errors=True)

    recorder.done, recorder.release = finished, stack.close


def _play_quietly(command: list[str], environ: dict[str, str]) -> None:
    """The one process, whose lines would be metrics in the job's log. Where it fails, its traceback is told."""
    with tempfile.TemporaryFile() as output:
        if not _played([command], environ, _LONGEST, output):
            return
        output.seek(0)
        said = output.read().decode(errors="replace")
        start = said.rfind("Traceback (most recent call last)")
        last = said[start:] if start >= 0 else said[-_TAIL:]
        print(f"verify: the one process failed:\n{last}", file=sys.stderr, flush=True)


def _outside_of_job(folder: Path) -> dict[str, str]:
    """Variables of the one process: it finds the checkpoints that the ranks find now, and writes nothing of the job's."""
    shutil.rmtree(folder, ignore_errors=True)
    own = _apart({name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}, folder)
    if os.path.isdir(before := os.environ.get(_CHECKPOINTS, "")):
        # No links: many scripts write into the same file.
        shutil.copytree(before, own[_CHECKPOINTS], ignore_dangling_symlinks=True, dirs_exist_ok=True)
    return own


def _shared_folder() -> Path:
    """The same for all ranks of this start on this host."""
    own = f"{os.environ.get('MASTER_PORT', '0')}-{os.environ.get('TORCHELASTIC_RUN_ID', os.getppid())}"
    folder = Path(tempfile.gettempdir(), f"trainshed-verify-{os.getuid()}-{own}")
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise TrainshedError(f"{folder} is somebody else's", hint="remove it, or set TMPDIR")
    return folder


def _wait_for(folder: Path, world: int) -> None:
    deadline = time.monotonic() + 6 * _AFTER
    while len(list(folder.glob("rank-*.json"))) < world and time.monotonic() < deadline:
        time.sleep(_PAUSE)
