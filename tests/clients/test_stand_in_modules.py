"""`sagemaker_training.modules` of the stand-in where no `train` has brought the code: it does so itself, as the original."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

from support.own_s3 import BUCKET, own_s3, put
from support.paths import TOOLKIT
from trainshed.container.launchers.rank_environment import PEERS_MODULES

SCRIPT = """\
import sys
from sagemaker_training import errors, modules
try:
    print("imported", modules.import_module(sys.argv[1], "mine").VALUE)
except errors.ClientError as error:
    print("refused", error)
"""


def archive() -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        info = tarfile.TarInfo("mine.py")
        text = b"VALUE = 'of an archive'"
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text))
    return content.getvalue()


def imported(base: Path, uri: str, **variables: str) -> str:
    """What a script prints that imports the module `mine` from there, in a job folder that is empty."""
    environ = {"SAGEMAKER_BASE_DIR": str(base), "PYTHONPATH": f"{TOOLKIT}:{PEERS_MODULES}", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", SCRIPT, uri]
    done = subprocess.run(command, env={**environ, **variables}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_code_is_brought_from_a_folder_an_archive_or_s3(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/mine.py").write_text("VALUE = 'of a folder'")
    (tmp_path / "code.tar.gz").write_bytes(archive())

    assert imported(tmp_path / "1", str(tmp_path / "code")) == "imported of a folder\n"
    assert imported(tmp_path / "2", str(tmp_path / "code.tar.gz")) == "imported of an archive\n"
    assert "nowhere is neither a folder nor a file" in imported(tmp_path / "3", f"{tmp_path}/nowhere")
    (tmp_path / "code.tar.gz").write_text("no archive")
    assert imported(tmp_path / "4", str(tmp_path / "code.tar.gz")).startswith("refused")
    (tmp_path / "5/code").mkdir(parents=True)
    (tmp_path / "5/code/mine.py").write_text("VALUE = 'of train'")
    assert imported(tmp_path / "5", str(tmp_path / "code")) == "imported of train\n", "what is there stays"


def test_the_code_is_brought_from_s3(tmp_path: Path) -> None:
    with own_s3() as environment:
        put(environment, {"code/sourcedir.tar.gz": archive()})
        printed = imported(tmp_path / "1", f"s3://{BUCKET}/code/sourcedir.tar.gz", **environment)

    assert printed == "imported of an archive\n"
