"""Finds the run that a person means among all of the catalogue, without reading ten thousand folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trainshed.base.record import Record
from trainshed.runner.state.stored import Stored, chosen, is_folder
from trainshed.runner.state.stored import find as find_without
from trainshed.runner.state.stored import opened as opened_run

from .index_file import NoSqliteError
from .open_catalogue import opened
from .refresh import path_of


class Known(Record):
    """A run as the catalogue knows it. id: "" for a copy."""

    name: str
    id: str
    folder: str | bytes


def find(text: str, environ: Mapping[str, str], say: Callable[[str], None]) -> Stored:
    """A run by its folder, its name, or the beginning of that or of its id.

    Raises:
        NoRunError: there is none, or several are meant.
    """
    if is_folder(text):
        return find_without(text, environ)
    try:
        connection = opened(environ, (), say)
    except NoSqliteError:
        return find_without(text, environ)
    here = " WHERE run IN temp.here" if connection.execute("SELECT 1 FROM sqlite_temp_master").fetchone() else ""
    rows = connection.execute(f'SELECT name, id, folder FROM runs{here} ORDER BY "started"')
    return opened_run(path_of(chosen(text, [Known(name, run_id or "", folder) for name, run_id, folder in rows])))
