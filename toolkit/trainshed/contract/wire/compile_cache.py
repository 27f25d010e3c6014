"""The compile cache as one file: a folder of small files, packed for a slow place and unpacked from it again.

The live folder belongs to torch's inductor (TORCHINDUCTOR_CACHE_DIR), which names each file by a hash of what it was
made from and writes it aside first. So files never change, names decide what is missing, and a folder that others are
writing to can be packed at any time. A checkpoint folder may be an object store that is mounted or synchronised: there
one file appears whole, hundreds would not.
"""

from __future__ import annotations

import os
import tarfile

from trainshed.base.files import remove

# Folders of the live cache that stay where they are.
LOCKS = "locks"
HEADERS = "headers"  # precompiled: large, and quickly made again
# Written aside by inductor and Triton (`*.tmp`, `.<pid>.<thread>.tmp`, `tmp.*`), and by us.
_ASIDE = ".tmp"


def files_of(live: str) -> dict[str, str]:
    """Name in the archive -> path, of every finished file below the live folder."""
    found = {}
    for folder, folders, names in os.walk(live):
        if folder == live:
            folders[:] = [name for name in folders if name not in (LOCKS, HEADERS)]
        folders[:] = [name for name in folders if not name.startswith("tmp.")]
        for name in names:
            path = f"{folder}/{name}"
            if not name.endswith((_ASIDE, ".lock")) and not os.path.islink(path):
                found[os.path.relpath(path, live)] = path
    return found


def packed_names(store: str) -> set[str]:
    """Names in the archive; none where it is missing or damaged."""
    try:
        with tarfile.open(store, "r:") as archive:
            return set(archive.getnames())
    except (OSError, tarfile.TarError):
        return set()


def pack(live: str, store: str) -> int:
    """Puts all finished files of the live folder into one archive, which appears whole.

    Returns:
        How many files it holds; 0 where it had them all already.

    Raises:
        OSError: it cannot be written.
    """
    files = files_of(live)
    if not files or files.keys() <= packed_names(store):
        return 0
    folder = os.path.dirname(store)
    os.makedirs(folder, exist_ok=True)
    aside = f"{folder}/.{os.path.basename(store)}.{os.getpid()}{_ASIDE}"
    count = 0
    try:
        with open(aside, "wb") as file:
            with tarfile.open(fileobj=file, mode="w:", format=tarfile.PAX_FORMAT) as archive:
                for name, path in sorted(files.items()):
                    count += _add(archive, name, path)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, store)
    except BaseException:
        remove(aside)
        raise
    return count


def _add(archive: tarfile.TarFile, name: str, path: str) -> int:
    try:
        with open(path, "rb") as file:
            entry = tarfile.TarInfo(name)
            stat = os.fstat(file.fileno())
            entry.size, entry.mtime, entry.mode = stat.st_size, stat.st_mtime, stat.st_mode & 0o700
            archive.addfile(entry, file)
    except FileNotFoundError:  # inductor removes what it finds stale
        return 0
    return 1


def unpack(store: str, live: str) -> int:
    """Puts what the archive holds, and the live folder does not, into the live folder.

    Returns:
        How many files were added.

    Raises:
        OSError: the archive cannot be read, or the folder not be written.
        ValueError: it is damaged, or names files outside the folder; what was added until then is whole.
    """
    count = 0
    try:
        with tarfile.open(store, "r:") as archive:
            for entry in archive:
                path = os.path.normpath(f"{live}/{entry.name}")
                if not entry.isfile() or entry.name.startswith("/") or not path.startswith(f"{live}/"):
                    raise ValueError(f"{store} names {entry.name!r}, which is not a file of the compile cache")
                if os.path.exists(path):
                    continue
                content = archive.extractfile(entry)
                data = content.read() if content else b""
                if len(data) != entry.size:
                    raise ValueError(f"{store} ends early")
                _put(path, data, entry.mode & 0o700 | 0o600)
                count += 1
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(f"{store} is damaged: {error}") from error
    return count


def _put(path: str, data: bytes, mode: int) -> None:
    """No fsync: the cache is local and can be made again."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    aside = f"{path}.{os.getpid()}{_ASIDE}"
    with open(aside, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(data)
    os.replace(aside, path)
