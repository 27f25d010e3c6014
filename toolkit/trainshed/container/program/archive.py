"""Unpacks archives that may be hostile: nothing leaves the folder, nothing but files, folders and inner links appears."""

from __future__ import annotations

import os
import stat
import tarfile
import zipfile

from trainshed.contract.errors import ProgramError, shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_MEMBERS = 1_000_000


def unpack(archive: str, folder: str) -> None:
    """Unpacks a .tar (plain, gz, bz2, xz) or .zip into an existing folder. The kind is told by content, not by name.

    Raises:
        ProgramError: it is no archive, is damaged, holds members that point outside, devices or other special files,
            or is larger than the free space.
        OSError: writing failed.
    """
    try:
        if zipfile.is_zipfile(archive):
            _unpack_zip(archive, folder)
        else:
            _unpack_tar(archive, folder)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, RuntimeError, NotImplementedError, ValueError) as error:
        raise ProgramError(
            f"{archive} cannot be unpacked: {shorten(str(error), 200) or type(error).__name__}",
            hint="make it with `tar czf sourcedir.tar.gz -C SOURCE_DIR .` or `zip -r`",
        ) from error
    except OSError as error:
        if error.errno is None or "zlib" in str(error) or "CRC" in str(error):  # gzip's own complaints
            raise ProgramError(f"{archive} cannot be unpacked: it is damaged ({shorten(str(error))})") from error
        raise


def _unpack_tar(archive: str, folder: str) -> None:
    with tarfile.open(archive) as tar:
        members = []
        for member in tar:
            members.append(member)
            if len(members) > MOST_MEMBERS:
                raise ProgramError(f"{archive} has more than {MOST_MEMBERS:,} members")
            _check_name(archive, member.name)
            if member.issym():
                _check_link(
                    archive, member.name, os.path.join(os.path.dirname(member.name), member.linkname), member.linkname
                )
            elif member.islnk():
                _check_link(archive, member.name, member.linkname, member.linkname)
            elif not (member.isfile() or member.isdir()):
                raise ProgramError(f"{archive} holds {shorten(member.name)!r}, a device or other special file: refused")
            member.mode = (member.mode | 0o600 if member.isfile() else 0o755) & 0o755
            member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
        _check_space(archive, folder, sum(member.size for member in members))
        _check_no_path_through_links(archive, [m.name for m in members if m.issym()], [m.name for m in members])
        # Checked above, also against the traps that Python's own "data" filter would catch in newer versions.
        options = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
        tar.extractall(folder, members=members, **options)  # type: ignore[arg-type]


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
        _check_space(archive, folder, sum(member.file_size for member in members))
        for member in members:
            path = zipped.extract(member, folder)
            if member.external_attr >> 16 & 0o111 and not member.is_dir():
                os.chmod(path, 0o755)


def _check_name(archive: str, name: str) -> None:
    if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/") or "\0" in name:
        raise ProgramError(f"{archive} holds {shorten(name)!r}, which points outside the code folder: refused")


def _check_link(archive: str, name: str, target: str, written: str) -> None:
    normal = os.path.normpath(target)
    if written.startswith("/") or normal == ".." or normal.startswith("../"):
        raise ProgramError(
            f"{archive} holds the link {shorten(name)!r} to {shorten(written)!r}, which points outside: refused"
        )


def _check_no_path_through_links(archive: str, links: list[str], names: Iterable[str]) -> None:
    """A member below a link could be written wherever the link leads once several links are chained."""
    below = {os.path.normpath(link) for link in links}
    for name in names:
        parent = os.path.dirname(os.path.normpath(name))
        while parent:
            if parent in below:
                raise ProgramError(f"{archive} holds {shorten(name)!r} below a link: refused")
            parent = os.path.dirname(parent)


def _check_space(archive: str, folder: str, size: int) -> None:
    free = os.statvfs(folder)
    available = free.f_bavail * free.f_frsize
    if size > available:
        raise ProgramError(
            f"{archive} unpacks to {size / 1e6:,.0f} MB, but {folder} has {available / 1e6:,.0f} MB free",
            hint="leave data out of the source archive; give it as a channel",
        )
