"""The functions that scripts call."""

from __future__ import annotations

import os

from .channels import facts_of, files_of
from .dataset import Files
from .formats.augmented import Augmented
from .formats.errors import DataError
from .formats.format import Format
from .formats.images import ImageFolder
from .formats.recordio import RecordIO
from .formats.table import by_content_type, named, of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .channels import ChannelFacts
    from .pipe_stream import Stream


def channel(
    name: str = "train",
    *,
    format: str | Format = "",
    attributes: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Files | Stream:
    """The samples of one of the job's channels, however they come.

    File and FastFile channels give `Files`, those in Pipe mode a `Stream`. Both have `loader(batch_size, ...)`.

    Args:
        format: how records lie in its files: a name (`trainshed.data.formats`), or a `Format` of one's own. The channel's
            content type, the files' names and their first bytes tell otherwise.
        environ: variables of the job; this process's otherwise.
        attributes: of an augmented manifest, as the channel's `AttributeNames`; needed where the job does not say them.

    Raises:
        DataError: there is no such channel, it is empty, or nobody knows its format.
    """
    environ = os.environ if environ is None else environ
    facts = facts_of(name, environ)
    if facts.input_mode != "Pipe":
        return _files(f"the channel {name}", facts.path, format, facts.content_type)
    from .pipe_stream import Stream

    return Stream(facts, _of_pipe(facts, format, tuple(attributes) or facts.attributes), environ)


def folder(path: str, *, format: str | Format = "") -> Files:
    """The same for a folder or a file anywhere."""
    return _files(path, path, format, "")


def _files(name: str, path: str, form: str | Format, content_type: str) -> Files:
    images = named(ImageFolder.name)
    if os.path.isdir(path) and (form == images.name or isinstance(form, ImageFolder)):
        return Files(name, (path,), path, images if isinstance(form, str) else form)
    if os.path.isdir(path) and not form and not content_type and images.recognizes(path, b""):
        return Files(name, (path,), path, images)
    paths = files_of(path)
    found = form if isinstance(form, Format) else of(paths, content_type, form)
    return Files(name, paths, path if os.path.isdir(path) else os.path.dirname(path) or ".", found)


def _of_pipe(facts: ChannelFacts, form: str | Format, attributes: tuple[str, ...]) -> Format:
    if isinstance(form, Format):
        return form
    if attributes:
        return Augmented(attributes)
    told = named(form) if form else by_content_type(facts.content_type)
    if facts.record_wrapper == "RecordIO" and not form:
        told = told if isinstance(told, RecordIO) else RecordIO()
    if told is None:
        raise DataError(
            f"the channel {facts.name} does not say what comes through its pipe",
            hint="give it a content type, or name the format: channel(..., format=...)",
        )
    return told
