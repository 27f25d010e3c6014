"""The files of a run's model, wherever the run has left them."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from trainshed.base.archive import unpack
from trainshed.base.errors import TrainshedError
from trainshed.base.files import open_plain

from ..state.stored import Stored
from .parent import model_sha256

ARCHIVE = "model.tar.gz"
BLOCK = 1 << 20  # bytes


@contextmanager
def model_folder(run: Stored) -> Iterator[str]:
    """A folder with the files of a run's model: those of its archive, compared with the hash that the run has kept.

    Where there is no archive (the run has not ended, or has uploaded it), its model folder.

    Raises:
        TrainshedError: it has no model, or the archive is damaged, hostile, or not the one that the run has made.
    """
    archive = f"{run.folder}/output/{ARCHIVE}"
    if not os.path.lexists(archive):
        folder = f"{run.folder}/model"
        if not os.path.isdir(folder) or not os.listdir(folder):
            hint = "a run has one when its script has written to SM_MODEL_DIR"
            raise TrainshedError(f"the run {run.name} has no model: there is no {archive}", hint=hint)
        yield folder
        return
    said = model_sha256(run)
    try:
        if said and (found := _sha256(archive)) != said:
            raise TrainshedError(
                f"{archive} is not what the run has made: its SHA-256 is {found[:12]}..., and was {said[:12]}...",
                hint="restore it; or add the folder with its files instead of the run",
            )
        with tempfile.TemporaryDirectory(prefix="trainshed-model-") as folder:
            unpack(archive, folder)
            yield folder
    except OSError as error:
        raise TrainshedError(
            f"the model of the run {run.name} cannot be unpacked: {error.filename or archive}: {error.strerror}",
            hint=f"TMPDIR names a folder with more room than {tempfile.gettempdir()} has",
        ) from error


def _sha256(path: str) -> str:
    found = hashlib.sha256()
    with open_plain(path) as file:
        while block := file.read(BLOCK):
            found.update(block)
    return found.hexdigest()
