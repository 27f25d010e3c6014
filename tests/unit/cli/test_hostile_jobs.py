"""Job files and archives of somebody who means ill: each a line of error, and nothing written elsewhere."""

from __future__ import annotations

import io
import json
import re
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from support.finished import Finished
from support.prey import picture
from support.runner_project import Project

pytestmark = pytest.mark.safety

NEST = 5000
REQUEST = {
    "TrainingJobName": "good",
    "AlgorithmSpecification": {"TrainingImage": "image", "TrainingInputMode": "File"},
}


def laughs() -> str:
    """Nine anchors of nine aliases each: 400 million values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    return "\n".join(lines)


# Name -> (job file, what its error says).
JOB_FILES: dict[str, tuple[str | bytes, str]] = {
    "a tag that calls a function": (
        "image: a\nhyperparameters: {a: !!python/object/apply:os.system ['touch PWNED']}",
        "has the tag",
    ),
    "a tag that names an object": ("program: train.py\nname: !!python/name:os.system x", "has the tag"),
    "a tag that includes a file": ("program: !include /etc/passwd", "has the tag"),
    "aliases that unfold to millions": (laughs(), "expands to more than"),
    "an alias inside itself": ("program: train.py\nhyperparameters: {a: &a [*a]}", "contains itself"),
    "an alias of nothing": ("program: *nothing", "is not defined above"),
    "lists in lists in lists": ("hyperparameters: " + "[" * NEST + "]" * NEST, "nested more than 32 levels"),
    "mappings in mappings": ("{a: " * NEST + "1" + "}" * NEST, "nested more than 32 levels"),
    "more values than any job has": ("hyperparameters: [" + "1," * 30_000 + "]", "expands to more than"),
    "a file too large": ("# " + "x" * (1 << 21), "is larger than 1 MiB"),
    "bytes that are no text": (b"program: \xff\xfe\x00", "is not UTF-8"),
    "a NUL character": (b"program: train.py\nname: \"a\\0b\"", "contains characters that are not text"),
    "raw control characters": (b"program: \x1b[2Jtrain.py", "is not YAML"),
    "an escape sequence for the terminal": ('program: train.py\n"\\e]0;owned\\a": 1', "is not a field of a job file"),
    "two jobs in one": ("program: train.py\n---\nprogram: other.py", "a second document"),
    "a field given twice": ("program: train.py\nprogram: other.py", "is given twice"),
    "a merge of mappings": ("program: train.py\nhyperparameters: {<<: {a: 1}}", "`<<` is not supported"),
    "no mapping at all": ("- program", "must be a mapping of names to values"),
    "a name that is a path": ("program: train.py\nname: ../../escaped", "must be letters, digits and hyphens"),
    "a name for the shell": ("program: train.py\nname: $(touch PWNED)", "must be letters, digits and hyphens"),
    "an image that is an option": ("image: --privileged", "is not a valid image name"),
    "an image with options": ("image: good -v /:/host", "is not a valid image name"),
    "an image for the shell": ("image: good;touch PWNED", "is not a valid image name"),
    "a channel that is a path": ("program: train.py\nchannels: {../../escaped: data}", "is not a valid channel name"),
    "a channel that is two dots": ("program: train.py\nchannels: {..: data}", "is not a valid channel name"),
    "a channel with a comma for mounts": (
        'program: train.py\nchannels: {"a,readonly=false": data}',
        "is not a valid channel name",
    ),
    "an s3 channel without a bucket": ("program: train.py\nchannels: {a: s3://../x}", "is not an S3 URI"),
    "a variable for the shell": ('program: train.py\nenvironment: {"A;touch PWNED": 1}', "is not a valid variable name"),
    "a variable with a NUL": ('program: train.py\nenvironment: {A: "x\\0y"}', "must be text"),
    "a secret that is a path": (
        "program: train.py\nenvironment: {A: {secret: ../../etc/shadow}}",
        "is not a valid secret name",
    ),
    "a secret without an end": ("program: train.py\nenvironment: {A: {file: /dev/zero}}", "too long for a variable"),
    "a secret that is a folder": ("program: train.py\nenvironment: {A: {file: /}}", "cannot be read"),
    "more hosts than fit": ("program: train.py\ninstances: 1000000000000000000000", "must be a whole number from 1 to 512"),
    "memory beyond counting": (f"program: train.py\nresources: {{memory: {'9' * 400}g}}", "must be a size"),
    "time without an end": ("program: train.py\nmax_runtime_seconds: 1e999", "must be a number from"),
    "a number of a million digits": ("program: train.py\ninstances: " + "1" * 1_000_000, "must be a whole number"),
    "results over other people's files": ("program: train.py\noutput: precious", "holds 1 other things (thesis.tex)"),
    "results into a file": ("program: train.py\noutput: precious/thesis.tex", "is not a folder"),
    "results below a device": ("program: train.py\noutput: /dev/null/x", "cannot create the run's folder"),
    "checkpoints over the system": ("image: a\ncheckpoints: {local_path: /opt/ml/../../etc}", "a separate folder below"),
    "a program that is an option": ("program: -c import os", "there is no such file"),
    "an expression that is none": ("program: train.py\nmetric_definitions: {a: '(((('}", "not a valid regular expression"),
    "an expression too long": (f"program: train.py\nmetric_definitions: {{a: '({'a?' * 300})'}}", "has 602 characters"),
    "a request with a path for a name": (json.dumps({**REQUEST, "TrainingJobName": "../../up"}), "must be 1 to 63 letters"),
    "a request with nested parameters": (json.dumps({**REQUEST, "HyperParameters": {"a": {"b": 1}}}), "must be a string"),
    "a request that is cut off": (json.dumps(REQUEST)[:-2], "is not YAML"),
}  # fmt: skip


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mode = kind, target, size, 0o755
    return info


def tarred(*members: tarfile.TarInfo, mode: str = "w:gz") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as tar:  # type: ignore[call-overload]
        tar.addfile(member("train.py"))
        for info in members:
            tar.addfile(info, io.BytesIO(b"x" * info.size) if info.isreg() else None)
    return file.getvalue()


def zipped(name: str, attributes: int = 0, data: str = "x") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        info = zipfile.ZipInfo(name)
        info.external_attr = attributes << 16
        archive.writestr(info, data)
    return file.getvalue()


def bomb() -> bytes:
    """Says of itself that it unpacks to an exabyte."""
    header = member("zeros")
    header.size = 1 << 60
    return header.tobuf(tarfile.GNU_FORMAT) + b"\0" * 1024


ARCHIVES: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "a path upwards": ("code.tar.gz", lambda: tarred(member("../escaped", size=1)), "points outside"),
    "a path from the root": ("code.tar.gz", lambda: tarred(member("/tmp/trainshed-escaped", size=1)), "points outside"),
    "a path with detours": ("code.tar.gz", lambda: tarred(member("a/../../escaped", size=1)), "points outside"),
    "a link upwards": ("code.tar.gz", lambda: tarred(member("up", tarfile.SYMTYPE, "../../..")), "points outside"),
    "a link to the root": ("code.tar.gz", lambda: tarred(member("etc", tarfile.SYMTYPE, "/etc")), "points outside"),
    "links that lead out together": (
        "code.tar.gz",
        lambda: tarred(member("a", tarfile.SYMTYPE, "."), member("b", tarfile.SYMTYPE, "a/../..")),
        "points outside",
    ),
    "a file below a link": (
        "code.tar.gz",
        lambda: tarred(member("here", tarfile.SYMTYPE, "."), member("here/escaped", size=1)),
        "below a link",
    ),
    "a hard link to a file outside": (
        "code.tar.gz",
        lambda: tarred(member("p", tarfile.LNKTYPE, "/etc/passwd")),
        "hard link",
    ),
    "a device": ("code.tar.gz", lambda: tarred(member("sda", tarfile.BLKTYPE)), "a device or other special file"),
    "a fifo": ("code.tar.gz", lambda: tarred(member("pipe", tarfile.FIFOTYPE)), "a device or other special file"),
    "more than any disk": ("code.tar", bomb, "unpacks to at least"),
    "a broken end": ("code.tar.gz", lambda: tarred(member("a", size=5000))[:-40], "cannot be unpacked"),
    "no archive": ("code.tar.gz", lambda: b"#!/bin/sh\ntouch PWNED\n", "cannot be unpacked"),
    "a path upwards in a zip": ("code.zip", lambda: zipped("../escaped"), "points outside"),
    "a link in a zip": ("code.zip", lambda: zipped("etc", stat.S_IFLNK | 0o777, "/etc"), "a link or special file"),
}


def assert_one_line(done: Finished, says: str) -> None:
    assert done.status in (1, 2, 69), done.output
    assert says in done.stderr
    lines = done.stderr.splitlines()
    assert lines[0].startswith("trainshed: ")
    assert len(lines) == 1 or (len(lines) == 2 and lines[1].startswith("trainshed: hint: ")), done.stderr
    assert max(map(len, lines)) < 1000
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", done.output), "nothing that a terminal would obey"
    assert done.stdout == ""


def test_there_are_more_than_forty() -> None:
    assert len(JOB_FILES) + len(ARCHIVES) >= 40


@pytest.mark.parametrize("name", JOB_FILES)
def test_a_hostile_job_file_is_one_line_of_error(prey: Project, tmp_path: Path, name: str) -> None:
    text, says = JOB_FILES[name]
    (prey.folder / "job.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    before = picture(tmp_path)
    done = prey.command("run", "job.yaml")
    assert_one_line(done, says)
    assert picture(tmp_path) == before


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_hostile_archive_is_one_line_of_error(prey: Project, tmp_path: Path, name: str) -> None:
    file, make, says = ARCHIVES[name]
    (prey.folder / file).write_bytes(make())
    prey.write({"job.yaml": f"program: train.py\nsource_dir: {file}\n"})
    before = picture(tmp_path)
    done = prey.command("run", "job.yaml")
    assert_one_line(done, says)
    assert picture(tmp_path) == before
