"""What git says of the code's folder, of repositories that nobody should trust."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from trainshed.runner.files.git_state import git_state

ENVIRON = {"PATH": os.environ["PATH"]}
pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder: Path, *words: str) -> str:
    """Runs git as somebody; what it prints."""
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", os.fspath(folder), *who, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit."""
    folder = tmp_path / "repository"
    (folder / "src").mkdir(parents=True)
    (folder / "src/train.py").write_text("1\n")
    (folder / "notes.txt").write_text("1\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def test_commit_branch_and_changes_of_the_folder_that_is_copied(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    (repository / "notes.txt").write_text("2\n")  # not below src

    clean = git_state(f"{repository}/src", ENVIRON)
    (repository / "src/train.py").write_text("2\n")
    (repository / "src/new file.py").write_text("3\n")
    dirty = git_state(f"{repository}/src", ENVIRON)

    assert clean == {
        "commit": commit, "branch": "main", "dirty": False, "changes": 0, "changed": [], "repository": os.fspath(repository),
    }  # fmt: skip
    assert dirty["dirty"] is True and dirty["changes"] == 2 and dirty["changed"] == ["src/train.py", "src/new file.py"]


@pytest.mark.safety
def test_a_login_in_a_remote_is_masked(repository: Path) -> None:
    git(repository, "remote", "add", "origin", "https://x:ghp_0123456789@example.org/a.git?private_token=abcdef")

    found = git_state(os.fspath(repository), ENVIRON)

    assert found["remote"] == "https://******@example.org/a.git"


@pytest.mark.safety
def test_nothing_that_a_repository_names_is_run(repository: Path, tmp_path: Path) -> None:
    evidence = tmp_path / "was-run"
    evil = tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\necho $0 >> {evidence}\ncat\n")
    evil.chmod(0o755)
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("post-index-change", "reference-transaction", "fsmonitor-watchman"):
        shutil.copy(evil, hooks / name)
    more = tmp_path / "more.config"
    more.write_text(f'[filter "a=b"]\n\tprocess = {evil}\n\trequired = true\n')
    with (repository / ".git/config").open("a") as file:
        file.write(f"[core]\n\tfsmonitor = {evil}\n\thooksPath = {hooks}\n\tsshCommand = {evil}\n\tpager = {evil}\n")
        file.write(
            f'[filter "x"]\n\tclean = {evil}\n\trequired = true\n[include]\n\tpath = {more}\n[alias]\n\tstatus = !{evil}\n'
        )
    (repository / ".gitattributes").write_text("*.py filter=x\n*.txt filter=a=b\n")
    for name in ("src/train.py", "notes.txt"):
        (repository / name).write_text("22222\n")
        os.utime(repository / name, (1, 1))

    found = git_state(os.fspath(repository), ENVIRON)

    assert "note" not in found and found["dirty"]
    assert not evidence.exists()
    # The same repository does run them where nothing is switched off: the check above can fail.
    subprocess.run(["git", "-C", os.fspath(repository), "status", "-s"], capture_output=True)
    assert evidence.exists()


def test_what_is_damaged_new_or_absent_is_said_not_raised(repository: Path, tmp_path: Path) -> None:
    assert git_state(os.fspath(tmp_path), ENVIRON) == {}
    without = git_state(os.fspath(repository), {"PATH": os.fspath(tmp_path)})
    assert without["note"] == "git is not installed: commit and changes are not known"

    new = tmp_path / "new"
    new.mkdir()
    git(new, "init", "-q", "-b", "main")
    assert git_state(os.fspath(new), ENVIRON)["commit"] == ""

    (repository / ".git/HEAD").write_bytes(b"\0\xff" * 100)
    damaged = git_state(os.fspath(repository), ENVIRON)
    assert damaged["note"].startswith("git cannot read the repository: ") and "commit" not in damaged


def test_a_git_that_takes_too_long_is_not_waited_for(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainshed.runner.files.git_state.SECONDS", 0.2)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/git").write_text("#!/bin/sh\nexec sleep 1000\n")
    (tmp_path / "bin/git").chmod(0o755)

    found = git_state(os.fspath(repository), {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"})

    assert found["note"] == "git took more than 0.2 s: commit and changes are not known"
