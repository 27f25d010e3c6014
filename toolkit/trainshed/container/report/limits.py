"""Errors of `train` itself that mean a limit of the machine or the container: which limit, and how it is raised."""

from __future__ import annotations

import errno
import os

from trainshed.base.errors import LimitError


def limit_of(error: BaseException) -> LimitError | None:
    """The limit that an error, or the one that it comes from, tells of; None where it tells of none."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, MemoryError):
            return _memory()
        if isinstance(seen, RuntimeError) and "can't start new thread" in str(seen):
            return _processes()
        if isinstance(seen, OSError) and seen.errno is not None:
            return of_number(seen.errno, str(seen.filename or ""))
        seen = seen.__cause__ or seen.__context__
    return None


def of_number(number: int, path: str = "") -> LimitError | None:
    """The limit that an error number of the kernel tells of.

    Args:
        path: the file that could not be opened or written, "" if none is known.
    """
    if number == errno.EMFILE:
        return LimitError(
            f"the limit of {os.sysconf('SC_OPEN_MAX')} open files is reached: train needs three for each rank",
            hint="raise it: docker run --ulimit nofile=65536, or `ulimit -n 65536`",
        )
    if number == errno.ENFILE:
        return LimitError(
            "the limit of open files of the whole machine is reached",
            hint="end what keeps so many open, or raise it: sysctl fs.file-max",
        )
    if number == errno.ENOMEM:
        return _memory()
    if number == errno.EAGAIN:
        return _processes()
    if number in (errno.ENOSPC, errno.EDQUOT):
        what = "the disk quota of this user is used up" if number == errno.EDQUOT else "the disk is full"
        return LimitError(f"{what}{f': {path}' if path else ''}", hint="free some space there, or mount a larger disk")
    if number == errno.EFBIG:
        return LimitError(
            f"the limit of the size of a file is reached{f': {path}' if path else ''}", hint="raise `ulimit -f`"
        )
    return None


def _memory() -> LimitError:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    limited = soft != resource.RLIM_INFINITY
    return LimitError(
        "there is no memory left for train itself" + (f": it may have {soft >> 20} MiB of addresses" if limited else ""),
        hint="raise `ulimit -v`" if limited else "give the container more memory: docker run --memory; or train with less",
    )


def _processes() -> LimitError:
    return LimitError(
        "the limit of processes and threads is reached",
        hint="raise it: docker run --pids-limit, or `ulimit -u`; or end what else runs there",
    )
