"""Writes what a run notes about where it comes from and what it made: `provenance.json`, and `code.json` beside it.

    provenance.json   code (digest, files, bytes, where it was and where it is kept), git, image, parents, model
    code.json         size and SHA-256 of each file of the code as it was at the start

The rest is in the run record that `train` keeps (packages, data) and in `job.json`; `state/provenance.py` reads all of it.
A disk that takes no more costs these files, never the job.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from trainshed.base.errors import one_line
from trainshed.base.files import read_object, write_atomic
from trainshed.machine.fingerprint import DIGITS, WHOLE, digest_of, of_files, of_folder
from trainshed.machine.hashing import MOST_LISTED, Hashes, hashes_of

from ..job.job import Parent
from .git_state import git_state
from .run import CODE, PROVENANCE, Run

FORMAT = 1
LARGEST = 64 << 20  # bytes of each of the two files
MODEL, RERUN, TUNING = "model", "rerun", "tuning"  # kinds of parents
_TUNING_FILE = "tune.json"


def note_start(run: Run, environ: Mapping[str, str], say: Callable[[str], None] = lambda _: None) -> None:
    """Notes code, git and parents of a run whose folders have just been filled.

    Args:
        environ: whose PATH leads to git.
        say: told where something cannot be noted.
    """
    before = read_object(f"{run.folder}/{PROVENANCE}", LARGEST, links=False)
    kept = f"{run.hosts[0].name}/code"
    code: dict[str, Any] = {}
    git: dict[str, Any] = {}
    files = Hashes("", {}, 0)
    if run.job.source_dir and os.path.isdir(f"{run.folder}/{kept}"):
        files = hashes_of(f"{run.folder}/{kept}")
        code = {
            "digest": files.digest, "files": len(files.files), "bytes": files.bytes,
            "source": run.job.source_dir, "kept": kept,
        }  # fmt: skip
        if files.problems:
            code["note"] = one_line("; ".join(files.problems))
        git = git_state(run.job.source_dir, environ) if os.path.isdir(run.job.source_dir) else {}
    elif run.job.image:
        code = {"note": "the image has the code"}
    earlier = _earlier_codes(before, code)
    made = {
        "format": FORMAT,
        "code": {**code, **({"earlier": earlier} if earlier else {})},
        "git": git,
        "image": _image(run, before),
        "parents": parents_of(run),
    }
    listed = {name: one.plain() for name, one in sorted(files.files.items())}
    try:
        write_atomic(f"{run.folder}/{CODE}", _lines({"format": FORMAT, "digest": files.digest, "files": listed}))
    except OSError as error:
        say(f"warning: the run does not note its code: {error.strerror}")
    _write(run, made, say)


def note_image(run: Run, image: Mapping[str, str], say: Callable[[str], None] = lambda _: None) -> None:
    """Notes the image that the hosts are made of. image: `name`, `id` and `digest`, as the engine says; {} for none."""
    if image:
        _change(run, {"image": dict(image)}, say)


def note_model(run: Run, archive: str, sha256: str) -> None:
    """Notes the hashes of the model that a run has made.

    Args:
        archive: path of model.tar.gz, "" for none; sha256: its hash.
    """
    try:
        empty = not os.listdir(run.model)
    except OSError:
        empty = True
    if empty:
        return
    files = hashes_of(run.model)
    digests = [files.digest, of_folder(run.model).digest]
    if archive and sha256:
        name = os.path.basename(archive)
        digests.append(of_files([(name, archive)]).digest)
        digests.append(digest_of({name: (_size(archive), sha256[:DIGITS])}, WHOLE))
    listed = dict(sorted(files.files.items())[:MOST_LISTED])
    model = {
        "digest": files.digest,
        "files": {name: one.plain() for name, one in listed.items()},
        "bytes": files.bytes,
        # What a fingerprint of a channel that holds this model says: of the folder, and of its archive.
        "digests": [digest for digest in dict.fromkeys(digests) if digest],
    }
    if files.problems:
        model["note"] = one_line("; ".join(files.problems))
    _change(run, {"model": model}, lambda _: None)


def parents_of(run: Run) -> list[dict[str, str]]:
    """The runs that a run comes from, and the tuning job that it is a trial of."""
    found = []
    for kind, parent in ((MODEL, run.job.parent), (RERUN, run.job.rerun_of)):
        if parent is not None:
            found.append(_parent(kind, parent))
    tuning = os.path.dirname(os.path.dirname(run.folder))
    if run.job.tags.get("tuning") and os.path.isfile(f"{tuning}/{_TUNING_FILE}"):
        found.append({"kind": TUNING, "run": run.job.tags["tuning"], "folder": tuning})
    return found


def _parent(kind: str, parent: Parent) -> dict[str, str]:
    made = {"kind": kind, "run": parent.run, "id": parent.id, "folder": parent.folder, "sha256": parent.sha256}
    return {name: value for name, value in made.items() if value}


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return -1


def _image(run: Run, before: Mapping[str, Any]) -> dict[str, Any]:
    """The image's name, and what an earlier attempt knew of it."""
    known = before.get("image")
    if not run.job.image:
        return {}
    return known if isinstance(known, dict) and known.get("name") == run.job.image else {"name": run.job.image}


def _earlier_codes(before: Mapping[str, Any], code: Mapping[str, Any]) -> list[str]:
    """Digests of the code that earlier attempts ran, where it was another one."""
    said = before.get("code")
    if not isinstance(said, dict):
        return []
    earlier = [str(one) for one in said.get("earlier") or [] if isinstance(one, str)]
    now, last = code.get("digest"), said.get("digest")
    return list(dict.fromkeys([*earlier, *([last] if isinstance(last, str) and last and last != now else [])]))


def _change(run: Run, changes: dict[str, Any], say: Callable[[str], None]) -> None:
    _write(run, {**read_object(f"{run.folder}/{PROVENANCE}", LARGEST, links=False), **changes}, say)


def _write(run: Run, what: dict[str, Any], say: Callable[[str], None]) -> None:
    try:
        write_atomic(f"{run.folder}/{PROVENANCE}", json.dumps(what, indent=1) + "\n")
    except OSError as error:
        say(f"warning: the run does not note where it comes from: {error.strerror}")


def _lines(what: dict[str, Any]) -> str:
    """JSON with one line a file."""
    files = ",\n".join(f"{json.dumps(name)}: {json.dumps(one)}" for name, one in what["files"].items())
    return f'{{"format": {what["format"]}, "digest": {json.dumps(what["digest"])}, "files": {{\n{files}\n}}}}\n'
