"""Which packages of an earlier run stand for a requirements.txt, and which do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainshed.container.program.kept_packages import KeptPackages, find
from trainshed.contract.wire.variables import OWN_PACKAGES_STAY, PACKAGES


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "pool").mkdir()
    return tmp_path


def kept(place: Path, text: str, **environ: str) -> KeptPackages | None:
    (place / "requirements.txt").write_text(text)
    variables = {PACKAGES: str(place / "pool"), **environ}
    return find(str(place / "requirements.txt"), variables, [str(place / "pip.conf")], True, lambda _: None)


def prefix(place: Path, text: str, **environ: str) -> str:
    found = kept(place, text, **environ)
    assert found is not None, text
    return found.prefix


@pytest.mark.parametrize(
    "text",
    [
        "numpy\n",
        "numpy>=1.26,<3 ; python_version > '3'  # a comment\n",
        "numpy[extra]==2.0 --hash=sha256:12\n",
        "--index-url https://index.example/simple\nnumpy\n",
        "--no-binary :all:\n--pre\n",
        "numpy \\\n  ==1\n",
        "",
    ],
)
def test_names_and_versions_are_kept(place: Path, text: str) -> None:
    assert prefix(place, text) == prefix(place, text)


@pytest.mark.parametrize(
    "text",
    [
        "./wheel-1.0-py3-none-any.whl",
        "wheel-1.0-py3-none-any.whl",
        "source-1.0.tar.gz",
        "-e .",
        "file:///tmp/x",
        "git+https://git.example/x@main",
        "x @ https://files.example/x.whl",
        "x @ file:///x",
        "-f wheels",
        "--find-links=./wheels",
        "-r https://files.example/requirements.txt",
        "-r ${HOME}/other.txt",
        "-r requirements.txt",
        "--new-option of-pip",
    ],
)
def test_what_can_change_under_the_same_words_is_not_kept(place: Path, text: str) -> None:
    assert kept(place, f"numpy\n{text}\n") is None


def test_whatever_decides_what_is_installed_makes_another_set(place: Path) -> None:
    first = prefix(place, "numpy==1\n")
    assert prefix(place, "numpy==2\n") != first
    assert prefix(place, "numpy==1\n", PIP_INDEX_URL="https://index.example") != first
    assert prefix(place, "numpy==1\n", UV_INDEX="https://index.example") != first
    assert prefix(place, "numpy==1\n", OTHER="x") == first == prefix(place, "# why\nnumpy==1   # this\n\n")
    (place / "pip.conf").write_text("[global]\n")
    assert prefix(place, "numpy==1\n") != first


def test_a_change_in_a_file_that_is_named_makes_another_set(place: Path) -> None:
    for name in ("-r base.txt\n", "-cbase.txt\n", "--constraint=base.txt\n"):
        (place / "base.txt").write_text("numpy<2\n")
        first = prefix(place, name)
        (place / "base.txt").write_text("numpy<3\n")
        assert prefix(place, name) != first
    assert prefix(place, "-r base.txt\n") != prefix(place, "-c base.txt\n")
    (place / "base.txt").write_text("-e .\n")
    assert kept(place, "-r base.txt\n") is None


def test_packages_count_while_they_are_as_the_installer_left_them(place: Path) -> None:
    found = kept(place, "numpy\n")
    assert found is not None and not found.is_whole()
    assert found.begin()
    module = Path(found.prefix, "lib/numpy.py")
    module.parent.mkdir()
    module.write_text("one")
    assert not found.is_whole()  # as when the installer is killed
    found.finish(print)
    assert found.is_whole()
    (module.parent / "__pycache__").mkdir()
    (module.parent / "__pycache__/numpy.pyc").write_text("compiled")
    assert found.is_whole()
    module.write_text("two")
    assert not found.is_whole()
    assert found.begin() and not module.exists()


def test_of_an_interpreter_that_stays_its_packages_are_noted(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(place / "site"))
    (place / "site/numpy-1.dist-info").mkdir(parents=True)
    found = kept(place, "numpy\n", **{OWN_PACKAGES_STAY: "1"})
    assert found is not None and found.prefix == "" and not found.is_whole()
    assert found.begin()
    (place / "site/numpy-2.dist-info").mkdir()  # as the installer does
    found.finish(print)
    again = kept(place, "numpy\n", **{OWN_PACKAGES_STAY: "1"})
    assert again is not None and again.is_whole()
    (place / "site/numpy-2.dist-info").rmdir()  # as somebody does
    assert not again.is_whole()


@pytest.mark.parametrize("change", ["more", "less", "record"])
def test_more_or_less_than_the_installer_left_does_not_count(place: Path, change: str) -> None:
    found = kept(place, "numpy\n")
    assert found is not None and found.begin()
    module = Path(found.prefix, "numpy.py")
    module.write_text("one")
    found.finish(print)
    if change == "more":
        Path(found.prefix, "sitecustomize.py").write_text("")
    elif change == "less":
        module.unlink()
    else:
        (Path(found.prefix).parent / "whole.json").write_text("{")
    assert not found.is_whole()


def test_a_folder_that_cannot_be_written_to_is_told_and_left_alone(place: Path) -> None:
    said: list[str] = []
    (place / "requirements.txt").write_text("numpy\n")
    gone = {PACKAGES: str(place / "gone")}
    assert find(str(place / "requirements.txt"), gone, [], True, said.append) is None
    assert "for this run alone" in said[0]
    assert find(str(place / "requirements.txt"), {}, [], True, said.append) is None and len(said) == 1
