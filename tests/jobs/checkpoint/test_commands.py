"""`python -m trainshed.checkpoint`: looking after a folder of checkpoints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jobs.checkpoint.loops import names, train
from trainshed.checkpoint import foreign_manifest as sealed
from trainshed.checkpoint.__main__ import main
from trainshed.checkpoint.ranks import Ranks

pytestmark = pytest.mark.torch


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    train(tmp_path / "checkpoints", 22, keep_last=5)
    return tmp_path / "checkpoints"


def test_list_shows_all_newest_first_with_what_is_wrong(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (trained / "step-000000000014").joinpath("x").touch()
    next((trained / "step-000000000007").glob("*.objects")).unlink()
    assert main(["list", str(trained)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [f"step-{step:012d}" for step in (21, 14, 7)]
    assert "MB" in lines[1]
    assert "not whole: " in lines[2]
    assert "is missing" in lines[2]


@pytest.mark.spine
def test_verify_reads_everything_and_fails_for_a_flipped_bit(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(trained)]) == 0
    assert capsys.readouterr().out.count("verified") == 3
    file = next((trained / "step-000000000014").glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 128
    file.write_bytes(data)
    assert main(["verify", str(trained)]) == 1
    assert "is damaged between bytes 0 and" in capsys.readouterr().out


def test_prune_keeps_what_it_is_told_to(trained: Path) -> None:
    assert main(["prune", str(trained)]) == 2
    assert main(["prune", str(trained), "--keep-last", "1", "--keep-every", "7"]) == 0
    assert len(names(trained)) == 3
    assert main(["prune", str(trained), "--keep-last", "1"]) == 0
    assert names(trained) == ["step-000000000021"]


def test_convert_writes_the_models_weights_alone(trained: Path, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    assert main(["convert", str(trained / "step-000000000021"), str(tmp_path / "model.safetensors")]) == 0
    loaded = safetensors.load_file(tmp_path / "model.safetensors")
    assert {"0.weight", "3.bias", "2.running_mean"} <= loaded.keys()
    assert not [name for name in loaded if "exp_avg" in name]
    assert main(["convert", str(trained / "step-000000000021"), str(tmp_path / "x"), "--model", "other"]) == 2


def test_looking_needs_no_torch(trained: Path) -> None:
    code = "import sys; from trainshed.checkpoint.__main__ import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, "verify", str(trained)], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False", done.stderr


def test_what_a_library_has_saved_and_we_have_sealed_is_listed_and_verified_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (9, 30, 200):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}/model.safetensors").write_bytes(bytes(1000))
    for step in (30, 200):
        sealed.seal(str(tmp_path / f"checkpoint-{step}"), step, Ranks(), {})
    assert main(["list", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["checkpoint-200", "checkpoint-30", "checkpoint-9"]
    assert "it was not finished" in lines[2]
    (tmp_path / "checkpoint-200/model.safetensors").write_bytes(bytes(999) + b"x")
    assert main(["verify", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "model.safetensors is damaged" in lines[0] and lines[1].endswith("verified")
