"""What the programs share: arguments as jobs write them, files that appear whole, facts that ranks agree on."""

from __future__ import annotations

import argparse
import errno
import os
import re
from pathlib import Path
from types import ModuleType

import pytest

from support.programs import Module


@pytest.fixture(scope="module")
def common(module: Module) -> ModuleType:
    return module("_common")


DECLARED = """
hyperparameters:
  batch_size: {type: integer, range: [1, null], default: 8}
  rate: {type: number, range: [0, 1], default: 0.5, help: 100 % of it}
  amp: {type: boolean, default: false}
  note: {type: text}
  folder: {type: folder}
channels:
  folder: {aliases: [place]}
"""


@pytest.fixture
def parser(common: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.ArgumentParser:
    monkeypatch.setenv("SM_CHANNEL_PLACE", "here")
    (tmp_path / "some.algorithm.yaml").write_text(DECLARED)
    parser: argparse.ArgumentParser = common.Parser.declared(str(tmp_path / "some.py"))
    return parser


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["--amp", "True"], "amp", True),
        (["--amp", "False"], "amp", False),
        (["--amp", "yes"], "amp", True),
        (["--amp", "0"], "amp", False),
        (["--batch-size", "4"], "batch_size", 4),
        (["--batch-size=4"], "batch_size", 4),
        (["--batch_size", "1000.0"], "batch_size", 1000),
        (["--batch_size", ""], "batch_size", 8),
        (["--batch_size=", "--rate", "0.25"], "rate", 0.25),
        (["--rate", "1e-05"], "rate", 1e-5),
        (["--note", "a=b-c"], "note", "a=b-c"),
        (["--note", "-0.5"], "note", "-0.5"),
        ([], "note", None),
        ([], "folder", "here"),
        (["--folder", "there"], "folder", "there"),
    ],
)
def test_arguments_are_read_as_a_job_writes_them(
    parser: argparse.ArgumentParser, argv: list[str], name: str, value: object
) -> None:
    read = getattr(parser.read(argv), name)
    assert read == value and type(read) is type(value)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--batch_sise", "4"], "there is no hyperparameter --batch_sise 4; did you mean --batch_size?"),
        (["--batch", "4"], "there is no hyperparameter --batch 4"),
        (["--batch_size", "4.5"], "hyperparameter batch_size: '4.5' is not a whole number from 1"),
        (["--batch_size", "0"], "hyperparameter batch_size: '0' is not a whole number from 1"),
        (["--batch_size", "inf"], "hyperparameter batch_size: 'inf' is not a whole number from 1"),
        (["--rate", "nan"], "hyperparameter rate: 'nan' is not a number from 0 to 1"),
        (["--rate", "2"], "hyperparameter rate: '2' is not a number from 0 to 1"),
        (["--amp", "maybe"], "hyperparameter amp: 'maybe' is neither true nor false"),
        (["--rate"], "hyperparameter rate: expected one argument"),
    ],
)
def test_a_wrong_argument_is_one_line(
    common: ModuleType, parser: argparse.ArgumentParser, argv: list[str], message: str
) -> None:
    with pytest.raises(common.Problem, match=rf"^{re.escape(message)}[^\n]*$"):
        parser.read(argv)


def test_help_says_what_each_hyperparameter_may_be(
    parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser.read(["--help"])

    told = " ".join(capsys.readouterr().out.split())
    assert "--rate NUMBER 100 % of it; number from 0 to 1 (default: 0.5)" in told


def test_a_damaged_declaration_is_one_line(common: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "some.algorithm.yaml").write_text("hyperparameters: [")
    with pytest.raises(common.Problem, match=r"some\.algorithm\.yaml: is not valid YAML[^\n]*$"):
        common.Parser.declared(str(tmp_path / "some.py"))


def test_a_file_appears_whole_or_not_at_all(common: ModuleType, tmp_path: Path) -> None:
    target = tmp_path / "folder" / "state"
    with common.whole_file(target) as path:
        path.write_text("first")
        assert not target.exists()
    assert target.read_text() == "first"
    with pytest.raises(KeyboardInterrupt), common.whole_file(target) as path:
        path.write_text("half of the sec")
        raise KeyboardInterrupt
    assert target.read_text() == "first"
    assert os.listdir(target.parent) == ["state"]


def test_a_file_that_cannot_be_written_names_the_folder(common: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(common.Problem, match=r"/file/model cannot be written to: Not a directory$"):
        common.write_json(tmp_path / "file/model/state.json", {})
    full = OSError(errno.ENOSPC, "No space left on device")
    said = pytest.raises(common.Problem, match=r"/model cannot be written to: No space left on device$")
    with said, common.whole_file(tmp_path / "model/state.json") as path:
        path.write_text("half")
        raise full
    assert not os.listdir(tmp_path / "model")


def test_the_checkpoint_folder_is_the_one_asked_for_or_one_that_exists(
    common: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SM_CHECKPOINT_DIR", str(tmp_path / "job"))
    assert common.checkpoint_folder(None) is None
    (tmp_path / "job").mkdir()
    assert common.checkpoint_folder(None) == tmp_path / "job"
    assert common.checkpoint_folder(str(tmp_path / "mine")) == tmp_path / "mine"
    assert (tmp_path / "mine").is_dir()


def test_an_empty_folder_and_one_that_is_not_there_are_named(common: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(common.Problem, match=rf"^the channel train {tmp_path}/none is not a folder$"):
        common.folder(f"{tmp_path}/none", "the channel train")
    with pytest.raises(common.Problem, match=rf"^the channel train {tmp_path} is empty$"):
        common.folder(str(tmp_path), "the channel train")


def test_the_global_batch_is_shared_out_evenly(common: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    world = common.World(0, 3, 0, None)
    assert world.share_of_batch(12) == 4
    assert capsys.readouterr().out == ""
    assert world.share_of_batch(64) == 21
    assert capsys.readouterr().out == "batch_size 64 does not divide by 3: using 63, 21 a rank\n"
    with pytest.raises(common.Problem, match=r"^batch_size 2 is smaller than the world size 3: give 3 or more$"):
        world.share_of_batch(2)
    with pytest.raises(common.Problem, match=r"world size 3 times 2 parts each: give 6 or more$"):
        world.share_of_batch(5, parts=2)


def test_ranks_that_see_different_data_are_told_so(common: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    world = common.World(0, 2, 0, None)
    monkeypatch.setattr(common.World, "gather", lambda self, value: [value, {"images": 7}])
    world.require_same("the ranks see different data", {"images": 7})
    with pytest.raises(common.Problem, match=r"rank 0 has {'images': 8}, rank 1 has {'images': 7}; every host needs"):
        world.require_same("the ranks see different data", {"images": 8})


@pytest.mark.torch
@pytest.mark.parametrize("variable", ["RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_an_incomplete_environment_of_ranks_is_named(
    common: ModuleType, outside_a_job: None, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    complete = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in complete.items():
        if name != variable:
            monkeypatch.setenv(name, value)
    with pytest.raises(common.Problem, match=rf"^WORLD_SIZE is 2, but {variable} is not set"):
        common.World.join("cpu")
