"""Unpacks archives that may be hostile: writes only files, folders and links, and only inside the folder."""

from __future__ import annotations

import os
import stat
import tarfile
import zipfile

from trainshed.base.errors import ProgramError, shorten

MOST_MEMBERS = 1_000_000
MOST_LINKS = 40  # on the way to one file, as in the kernel
MOST_AFTER_END = 64 << 20  # bytes after the last member; tar pads with a few thousand


def unpack(archive: str, folder: str, left_out: list[str] | None = None) -> None:
    """Unpacks a .tar (plain, gz, bz2, xz) or .zip into an empty folder. The content tells the kind, not the name.

    Args:
        left_out: gets `name, a pipe` of special files in a .tar, and `name, a link to TARGET` of links that lead
            outside; None to refuse an archive that holds any.

    Raises:
        ProgramError: it is not an archive, is damaged, holds members that point outside, devices or other special
            files, or is larger than the free space.
        OSError: reading or writing failed.
    """
    with open(archive, "rb") as file:  # a tar that ends with a zip would pass for a zip, too
        is_zip = file.read(4) in (b"PK\x03\x04", b"PK\x05\x06")
    try:
        if is_zip:
            _unpack_zip(archive, folder)
        else:
            _unpack_tar(archive, folder, left_out)
    except ProgramError:
        raise
    except Exception as error:  # hostile data makes these libraries raise nearly anything
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = "it is not a .tar, .tar.gz, .tar.bz2, .tar.xz or .zip" if _is_unknown(error) else shorten(str(error), 200)
        raise ProgramError(
            f"{archive} cannot be unpacked: {reason or type(error).__name__}",
            hint="make it with `tar czf sourcedir.tar.gz -C SOURCE_DIR .` or `zip -r`",
        ) from error


def _is_unknown(error: Exception) -> bool:
    return isinstance(error, tarfile.ReadError) and "could not be opened" in str(error)


def _unpack_tar(archive: str, folder: str, left_out: list[str] | None) -> None:
    available = _free_bytes(folder)
    with tarfile.open(archive) as tar:
        members, size = [], 0
        for member in tar:
            members.append(member)
            size += max(0, member.size)
            if len(members) > MOST_MEMBERS:
                raise ProgramError(f"{archive} has more than {MOST_MEMBERS:,} members")
            if size > available:  # refused while reading: reading a bomb to its end takes hours
                raise _too_large(archive, folder, size, available)
            _check_name(archive, member.name)
            if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
                if left_out is not None:
                    left_out.append(f"{shorten(member.name)}, {'a pipe' if member.isfifo() else 'a device'}")
                    members.pop()
                    continue
                raise ProgramError(f"{archive} holds {shorten(member.name)!r}, a device or other special file: refused")
            member.mode = 0o755 if member.isdir() else (member.mode | 0o600) & 0o755
            member.uid = os.getuid()
            member.gid = os.getgid()
            member.uname = ""
            member.gname = ""
        _read_to_the_end(archive, tar)
        if left_out is not None:
            members = _without_links_outside(members, left_out)
        _check_links(archive, members)
        # Checked above, also against the traps that Python's own "data" filter would catch in newer versions.
        options = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
        tar.extractall(folder, members=members, **options)  # type: ignore[arg-type]


def _read_to_the_end(archive: str, tar: tarfile.TarFile) -> None:
    """Reads to the end of the compressed data, whose checksum would otherwise not be compared."""
    assert tar.fileobj is not None
    tar.fileobj.seek(tar.offset)  # type: ignore[attr-defined]
    after = 0
    while data := tar.fileobj.read(1 << 20):
        after += len(data)
        if after > MOST_AFTER_END:
            raise ProgramError(f"{archive} goes on after the end of its last member: refused")


def _unpack_zip(archive: str, folder: str) -> None:
    with zipfile.ZipFile(archive) as zipped:
        members = zipped.infolist()
        if len(members) > MOST_MEMBERS:
            raise ProgramError(f"{archive} has more than {MOST_MEMBERS:,} members")
        for member in members:
            _check_name(archive, member.filename)
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise ProgramError(f"{archive} holds {shorten(member.filename)!r}, a link or special file: refused")
        size, available = sum(member.file_size for member in members), _free_bytes(folder)
        if size > available:
            raise _too_large(archive, folder, size, available)
        for member in members:
            path = zipped.extract(member, folder)
            if member.external_attr >> 16 & 0o111 and not member.is_dir():
                os.chmod(path, 0o755)


def _check_name(archive: str, name: str) -> None:
    if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/") or "\0" in name:
        raise ProgramError(f"{archive} holds {shorten(name)!r}, which points outside its folder: refused")


def _without_links_outside(members: list[tarfile.TarInfo], left_out: list[str]) -> list[tarfile.TarInfo]:
    links = {os.path.normpath(member.name): member.linkname for member in members if member.issym()}
    outside = {name for name in links if not _leads_inside(name, links)}
    left_out += [f"{shorten(name)}, a link to {shorten(links[name])}" for name in sorted(outside)]
    return [member for member in members if not (member.issym() and os.path.normpath(member.name) in outside)]


def _check_links(archive: str, members: list[tarfile.TarInfo]) -> None:
    """Refuses links that lead outside, through however many other links, and members below a link."""
    names = [os.path.normpath(member.name) for member in members]
    links = {name: member.linkname for name, member in zip(names, members, strict=True) if member.issym()}
    files = {name for name, member in zip(names, members, strict=True) if member.isfile()}
    for name, member in zip(names, members, strict=True):
        parent = os.path.dirname(name)
        while parent:
            if parent in links:
                raise ProgramError(f"{archive} holds {shorten(name)!r} below a link: refused")
            parent = os.path.dirname(parent)
        if member.issym() and not _leads_inside(name, links):
            raise ProgramError(
                f"{archive} holds the link {shorten(name)!r} to {shorten(member.linkname)!r}, which points outside: refused"
            )
        if member.islnk() and (os.path.normpath(member.linkname) not in files or ".." in member.linkname.split("/")):
            raise ProgramError(
                f"{archive} holds the hard link {shorten(name)!r} to {shorten(member.linkname)!r}, "
                "which is not a file of the archive: refused"
            )
    if links:
        seen: set[str] = set()
        for name in names:
            if name in seen and name in links:  # the second one would be written to where the first one leads
                raise ProgramError(f"{archive} holds the link {shorten(name)!r} more than once: refused")
            seen.add(name)


def _leads_inside(link: str, links: dict[str, str]) -> bool:
    """Whether a link ends inside the folder, followed as the kernel does: part by part, through links on the way."""
    place: list[str] = os.path.dirname(link).split("/") if os.path.dirname(link) else []
    rest = links[link].split("/")
    followed = 1
    if links[link].startswith("/"):
        return False
    while rest:
        part = rest.pop(0)
        if part in ("", "."):
            continue
        if part == "..":
            if not place:
                return False
            place.pop()
            continue
        place.append(part)
        target = links.get("/".join(place))
        if target is not None:
            followed += 1
            if target.startswith("/") or followed > MOST_LINKS:
                return False
            place.pop()
            rest = target.split("/") + rest
    return True


def _free_bytes(folder: str) -> int:
    free = os.statvfs(folder)
    return free.f_bavail * free.f_frsize


def _too_large(archive: str, folder: str, size: int, available: int) -> ProgramError:
    return ProgramError(
        f"{archive} unpacks to at least {size / 1e6:,.0f} MB, but {folder} has {available / 1e6:,.0f} MB free",
        hint="make room there; data belongs into channels, not into archives of code",
    )
