"""A pipeline's checkpoints: whole and verified, or not there. What other numbers of stages make of them: test_runtime."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ranks

import trainshed.parallel as pipe
from support.lazy import Lazy

torch = Lazy("torch")

pytestmark = [pytest.mark.torch, pytest.mark.safety, pytest.mark.usefixtures("no_pipeline")]

# Saves again and again in forked processes, the n-th of which is killed at its n-th change of the disk; after each the
# checkpoint is loaded. Says what was loaded, and what lies in the folder at the end.
KILLED = """\
import json, os, signal, sys
import torch
import trainshed.parallel as pipe
from trainshed.checkpoint import folder

path, exchange = sys.argv[1:]
CHANGES = ("fsync", "link", "mkdir", "open", "remove", "rename", "replace", "rmdir", "unlink")
pipe.init({})
model = pipe.PipelineModel(torch.nn.Linear(2, 2))
pipe.save_checkpoint(path, model, user_content=0)
if exchange == "no":
    folder._exchange = lambda *_: False

def killed_at(last):
    left = [last]
    def counting(change):
        def counted(*args, **kwargs):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return change(*args, **kwargs)
        return counted
    for name in CHANGES:
        setattr(os, name, counting(getattr(os, name)))
    folder._exchange = counting(folder._exchange)
    pipe.save_checkpoint(path, model, user_content=last)
    os._exit(0)

loaded = []
for last in range(1, 1000):
    child = os.fork()
    if not child:
        killed_at(last)
    status = os.waitpid(child, 0)[1]
    loaded.append(pipe.load_checkpoint(path, model))
    if status == 0:
        break
print("RESULT " + json.dumps([loaded, sorted(os.listdir(os.path.dirname(path)))]))
"""


@pytest.mark.parametrize("exchange", [pytest.param("yes", marks=pytest.mark.spine), "no"])
def test_a_kill_at_any_moment_of_a_save_leaves_a_whole_checkpoint(exchange: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "saves/newest"), exchange]
    done = subprocess.run(command, env=alone(), capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    loaded, names = json.loads(done.stdout.split("RESULT ")[1])

    assert len(loaded) > 15 and loaded[-1] == len(loaded)  # the last save was not killed
    for number, content in enumerate(loaded, 1):
        assert content in (number, ([0, *loaded][number - 1]))
    assert names == ["newest"]


def alone() -> dict[str, str]:
    """One process without torchrun's variables."""
    launcher = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return {name: value for name, value in ranks.environment(0, 1, 0).items() if name not in launcher}


def saved(path: Path, content: Any = None) -> pipe.PipelineModel:
    """A model in a pipeline of this process alone, saved."""
    pipe.init({})
    model = pipe.PipelineModel(torch.nn.Linear(4, 4))
    pipe.save_checkpoint(str(path), model, user_content=content)
    return model


def test_a_damaged_checkpoint_is_refused_with_the_file_and_the_model_stays(tmp_path: Path) -> None:
    model = saved(tmp_path / "one")
    (file,) = (tmp_path / "one").glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    before = model.state_dict()
    with pytest.raises(pipe.PipelineError, match=rf"cannot be loaded: .*{file.name} is damaged between bytes"):
        pipe.load_checkpoint(str(tmp_path / "one"), model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_checkpoint_of_version_0_1_is_refused_with_what_to_do(tmp_path: Path) -> None:
    model = saved(tmp_path / "new")
    (tmp_path / "old").mkdir()
    (tmp_path / "old/content.pt").touch()
    with pytest.raises(pipe.PipelineError, match=r"written by trainshed 0\.1 in another format .*load it with") as refused:
        pipe.load_checkpoint(str(tmp_path / "old"), model)
    assert "load_state_dict" in (refused.value.hint or "")


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    saved(tmp_path / "one")
    pipe.shutdown()
    pipe.init({})
    model = pipe.PipelineModel(torch.nn.Sequential(torch.nn.Linear(4, 4)))
    with pytest.raises(pipe.PipelineError, match=r"0\.bias and 1 more of the model are missing"):
        pipe.load_checkpoint(str(tmp_path / "one"), model)
    pipe.load_checkpoint(str(tmp_path / "one"), model, strict=False)
    with pytest.raises(pipe.PipelineError, match="nowhere: No such file"):
        pipe.load_checkpoint(str(tmp_path / "nowhere"), model)


class Odd:
    """What only pickle can store."""


def test_content_that_only_pickle_could_store_is_refused_and_the_older_checkpoint_stays(tmp_path: Path) -> None:
    model = saved(tmp_path / "one", {"epoch": 1, "weights": [1.5, None], "mean": torch.ones(2)})
    with pytest.raises(pipe.PipelineError, match=r"was not saved: .*Odd cannot be stored"):
        pipe.save_checkpoint(str(tmp_path / "one"), model, user_content=Odd())
    content = pipe.load_checkpoint(str(tmp_path / "one"), model)
    assert content["epoch"] == 1 and content["weights"] == [1.5, None] and torch.equal(content["mean"], torch.ones(2))


def test_a_copy_is_fetched_where_the_disk_has_none(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    copies = f"file://{tmp_path}/copies"
    pipe.init({})
    model = pipe.PipelineModel(torch.nn.Linear(4, 4))
    pipe.save_checkpoint(str(tmp_path / "here/one"), model, user_content="copied", copy_to=copies)
    assert pipe.load_checkpoint(str(tmp_path / "there/one"), model, copy_to=copies) == "copied"


def test_pruning_keeps_the_newest_of_a_pattern(tmp_path: Path) -> None:
    model = saved(tmp_path / "epoch-1")
    for name in ("epoch-2", "epoch-3", "best"):
        pipe.save_checkpoint(str(tmp_path / name), model)
    assert pipe.prune_checkpoints(str(tmp_path), 1, "epoch-*") == ["epoch-2", "epoch-1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "epoch-3"]


@pytest.mark.parametrize("value", [{"epoch": 3}, Odd()])
def test_amazons_user_content_may_hold_objects_of_any_class(tmp_path: Path, value: Any) -> None:
    sys.path.insert(0, str(ranks.TOOLKIT / "trainshed/compat"))
    from smdistributed.modelparallel.torch.checkpoint import _plain, _unpickled

    content = _unpickled(_plain(value), str(tmp_path))
    assert isinstance(content, Odd) if isinstance(value, Odd) else content == value
