"""The job's `checkpoint_copy_to`: copies of what libraries save, and a host with an empty disk that goes on from them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.checkpoint import test_autopatch, test_lightning
from jobs.checkpoint.loops import Forge, names, train
from support.extras import needs
from support.lazy import Lazy
from support.notice_jobs import TRAINING, Train
from support.own_s3 import BUCKET, keys, own_s3
from trainshed.checkpoint import CheckpointError
from trainshed.checkpoint.guard import Guard, usual_copies
from trainshed.checkpoint.remote import Remote
from trainshed.contract.settings import COPY_TO_VARIABLE

needs("fsspec")
fsspec = Lazy("fsspec")
pytestmark = [pytest.mark.safety, pytest.mark.torch]


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    """Variables that lead to an S3 of this machine's own."""
    with own_s3() as environment:
        yield environment


@pytest.fixture
def in_s3(s3: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A prefix there, for code that runs in this process."""
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{tmp_path.name}"


@pytest.fixture(params=["s3", "memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty prefix on each kind of storage."""
    if request.param == "s3":
        yield request.getfixturevalue("in_s3")
        return
    place = f"memory://{tmp_path.name}/run" if request.param == "memory" else f"file://{tmp_path}/elsewhere/run"
    yield place
    system, root = fsspec.core.url_to_fs(place)
    if system.exists(root):
        system.rm(root, recursive=True)


# --- jobs: what the user sees -----------------------------------------------------------------------------------------

# Script, its settings, its variables until it is stopped, and what it has printed by then. None ends before it is stopped.
WAYS = {
    "plain PyTorch": (TRAINING, {}, {}, "loss rank=0 step=10 "),
    "transformers": (test_autopatch.SCRIPT, {"checkpoint": "auto"}, test_autopatch.ENDLESS, "done 12\n"),
    "lightning": (
        test_lightning.SCRIPT,
        {"checkpoint": "auto"},
        {"EPOCHS": "10000", "PAUSE": "0.05"},
        "loss rank=0 step=13 ",
    ),
}


@pytest.mark.parametrize("way", ["plain PyTorch", *(pytest.param(way, marks=pytest.mark.heavy) for way in list(WAYS)[1:])])
def test_a_host_with_an_empty_disk_goes_on_where_an_interrupted_one_was(
    way: str, s3: dict[str, str], tmp_path: Path
) -> None:
    script, settings, variables, sign = WAYS[way]
    if way == "lightning":
        needs("lightning")
    prefix = way.replace(" ", "-")
    settings = {**settings, "checkpoint_copy_to": f"s3://{BUCKET}/{prefix}"}
    with Train(tmp_path / "first", script, env={**s3, **variables}, **settings) as job:
        job.until(sign)
        job.signal(signal.SIGTERM)
        assert job.end() == 0, job.output
    step = job.record()["interruption"]["step"]
    saved = Path(job.record()["interruption"]["checkpoint"])
    below = {str(path.relative_to(saved.parent)) for path in saved.parent.rglob("*") if path.is_file()}
    assert {path for path in below if path.startswith(f"{saved.name}/")}
    assert set(keys(s3, f"{prefix}/")) == below, "everything was there before the job ended"
    variables = {"STEPS": str(step + 5), "EPOCHS": str(step // 10 + 1)}
    with Train(tmp_path / "second", script, env={**s3, **variables}, **settings) as job:
        assert job.end() == 0, job.output
    assert f"fetched s3://{BUCKET}/{prefix}/{saved.name}" in job.output
    word = "resumed" if way == "plain PyTorch" else "resuming"
    assert f"{word} from {tmp_path}/second/checkpoints/{saved.name}" in job.output
    if way == "transformers":
        assert len(test_autopatch.final_losses(job)) == step + 5, "those of the first host came with its checkpoint"
    elif way == "lightning":
        assert test_lightning.losses(job)[0][:2] == (0, step + 1)
    else:
        assert f"start rank=0 step={step}" in job.output


@pytest.mark.spine
def test_a_script_that_simply_ends_still_gets_its_last_copy(in_s3: str, tmp_path: Path) -> None:
    """Python starts no threads any more by then, and boto3 would like some."""
    script = TRAINING.replace("every_seconds=3600", "every_steps=5").replace("checkpointer.close()\n", "")
    with Train(tmp_path, script, env={**os.environ, "STEPS": "5"}, checkpoint_copy_to=in_s3) as job:
        assert job.end() == 0, job.output
    assert "is here alone" not in job.output, job.output
    assert keys(dict(os.environ), f"{tmp_path.name}/") == [
        f"step-000000000005/{name}" for name in sorted(os.listdir(tmp_path / "checkpoints/step-000000000005"))
    ]


def test_the_script_wins_over_the_job(s3: dict[str, str], tmp_path: Path) -> None:
    script = TRAINING.replace("every_seconds=3600", "every_steps=5, copy_to=''")
    with Train(tmp_path, script, env={**s3, "STEPS": "5"}, checkpoint_copy_to=f"s3://{BUCKET}/unwanted") as job:
        assert job.end() == 0, job.output
    assert keys(s3, "unwanted/") == []


def test_a_bucket_that_does_not_exist_ends_the_job_at_the_start(s3: dict[str, str], tmp_path: Path) -> None:
    with Train(tmp_path, TRAINING, env={**s3, "STEPS": "5"}, checkpoint_copy_to="s3://bukket/run") as job:
        assert job.end() == 1
    assert "no copy can be put to s3://bukket/run: " in (tmp_path / "output/failure").read_text()
    assert "bucket does not exist" in job.output and "start rank" not in job.output


def test_saves_below_the_jobs_folder_are_copied_to_the_same_place_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SM_CHECKPOINT_DIR", "/opt/ml/checkpoints")
    assert usual_copies("/opt/ml/checkpoints") == ""
    monkeypatch.setenv(COPY_TO_VARIABLE, "s3://bucket/run/")
    assert usual_copies("/opt/ml/checkpoints").rstrip("/") == "s3://bucket/run"
    assert usual_copies("/opt/ml/checkpoints/small/one") == "s3://bucket/run/small/one"
    assert usual_copies("/elsewhere").rstrip("/") == "s3://bucket/run"


# --- what a library saves, whichever it is ----------------------------------------------------------------------------


@contextlib.contextmanager
def guarded(folder: Path, url: str) -> Iterator[Guard]:
    guard = Guard(str(folder), url)
    try:
        yield guard
    finally:
        guard.close()


def save(guard: Guard, step: int, reason: str = "interval", limit: int | None = None, best: str = "") -> None:
    """As a library does: two files, one of them in a folder of its own."""

    def write() -> None:
        path = Path(guard.path(step))
        (path / "shards").mkdir(parents=True)
        (path / "model.bin").write_bytes(b"model %d" % step)
        (path / "shards/0.bin").write_bytes(b"shard %d" % step * 1000)

    guard.save(step, reason, write, limit, best)


def there(url: str) -> list[str]:
    """The steps that have a copy."""
    if url.startswith("s3://"):
        found = keys(dict(os.environ), url.removeprefix(f"s3://{BUCKET}/") + "/")
        return sorted({key.partition("/")[0] for key in found})
    system, root = fsspec.core.url_to_fs(url)
    system.invalidate_cache()
    return sorted(path.rpartition("/")[2] for path in system.ls(root, detail=False))


def change(url: str, name: str, damage: str) -> None:
    """Damages a file of a copy."""
    system, root = fsspec.core.url_to_fs(url)
    path = f"{root}/{name}"
    content = bytearray(system.cat_file(path))
    if damage == "missing":
        system.rm_file(path)
    elif damage == "shorter":
        system.pipe_file(path, bytes(content[:-9]))
    else:
        content[-3] ^= 16
        system.pipe_file(path, bytes(content))


def test_copies_come_and_go_as_the_saves_do(url: str, tmp_path: Path) -> None:
    with guarded(tmp_path / "here", url) as guard:
        for step in (1, 2, 3, 4):
            save(guard, step)
    assert there(url) == ["checkpoint-3", "checkpoint-4"] == names(tmp_path / "here")
    with guarded(tmp_path / "new", url) as guard:
        assert guard.newest() == f"{tmp_path}/new/checkpoint-4"
        save(guard, 5, reason="")  # the script's own wish: it stays
        for step in (6, 7, 8):
            save(guard, step)
    assert there(url) == ["checkpoint-5", "checkpoint-7", "checkpoint-8"], "3 and 4 went too, though 3 was never here"
    with guarded(tmp_path / "new", url) as guard:
        save(guard, 9, limit=3, best=guard.path(7))
        save(guard, 10, limit=3, best=guard.path(7))
        save(guard, 11, limit=3, best=guard.path(7))
    assert there(url) == [f"checkpoint-{step}" for step in ("10", "11", "7", "9")] == names(tmp_path / "new")


def test_what_is_fetched_is_what_was_saved_and_is_sealed_again(url: str, tmp_path: Path) -> None:
    with guarded(tmp_path / "here", url) as guard:
        save(guard, 5)
    with guarded(tmp_path / "new", url) as guard:
        assert guard.newest() == f"{tmp_path}/new/checkpoint-5"
        assert guard.policy.history.interruptions == 1
    assert Path(tmp_path, "new/checkpoint-5/model.bin").read_bytes() == b"model 5"
    assert Path(tmp_path, "new/checkpoint-5/shards/0.bin").read_bytes() == b"shard 5" * 1000
    assert names(tmp_path / "new") == ["checkpoint-5"]
    with guarded(tmp_path / "new", "") as guard:
        assert guard.newest() == f"{tmp_path}/new/checkpoint-5", "without the storage as well"


def test_the_disk_here_counts_where_it_is_as_new(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"file://{tmp_path}/elsewhere"
    with guarded(tmp_path / "here", url) as guard:
        save(guard, 5)
    with guarded(tmp_path / "here", url) as guard:
        assert guard.newest() == f"{tmp_path}/here/checkpoint-5"
    assert "fetched" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["model.bin", "shards/0.bin"])
def test_what_is_damaged_here_is_fetched_again(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"file://{tmp_path}/elsewhere"
    with guarded(tmp_path / "here", url) as guard:
        save(guard, 5)
    change(f"file://{tmp_path}/here", f"checkpoint-5/{name}", "other bits")
    with guarded(tmp_path / "here", url) as guard:
        assert guard.newest() == f"{tmp_path}/here/checkpoint-5"
    assert f"checkpoint-5 is not whole here, fetching its copy: {name} is damaged" in capsys.readouterr().err
    assert names(tmp_path / "here") == ["checkpoint-5"]
    with guarded(tmp_path / "here", "") as guard:
        assert guard.newest() == f"{tmp_path}/here/checkpoint-5"


@pytest.mark.parametrize(
    ("name", "damage", "says"),
    [
        ("{manifest}", "missing", "it was not uploaded to its end"),
        ("{manifest}", "shorter", "is damaged (its checksum is wrong)"),
        ("model.bin", "missing", "model.bin is missing"),
        ("shards/0.bin", "shorter", "shards/0.bin has 6991 bytes instead of 7000"),
        ("shards/0.bin", "other bits", "shards/0.bin is damaged"),
    ],
)
def test_a_copy_that_is_not_whole_is_passed_over(
    name: str, damage: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"file://{tmp_path}/elsewhere"
    with guarded(tmp_path / "here", url) as guard:
        save(guard, 4)
        save(guard, 5)
    (manifest,) = (path.name for path in (tmp_path / "here/checkpoint-5").glob("*.manifest"))
    change(url, f"checkpoint-5/{name.format(manifest=manifest)}", damage)
    with guarded(tmp_path / "new", url) as guard:
        assert guard.newest() == f"{tmp_path}/new/checkpoint-4"
    assert re.search(f"checkpoint-5 passed over: .*{re.escape(says)}", capsys.readouterr().err)
    assert names(tmp_path / "new") == ["checkpoint-4"], "nothing half-fetched stays"


def test_a_copy_writes_nowhere_but_into_its_own_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"file://{tmp_path}/elsewhere"
    with guarded(tmp_path / "here", url) as guard:
        save(guard, 5)
    from trainshed.checkpoint import manifest as manifests

    copy = tmp_path / "elsewhere/checkpoint-5"
    (path,) = copy.glob("*.manifest")
    one = manifests.read(str(path))
    files = tuple(file.replace(name="../../../evil") if file.name == "model.bin" else file for file in one.files)
    manifests.write(str(copy), one.replace(files=files))
    shutil.copy(copy / "model.bin", tmp_path / "evil-source")
    with guarded(tmp_path / "deep/new", url) as guard:
        assert guard.newest() is None
    assert "would be written outside its folder" in capsys.readouterr().err
    assert not (tmp_path / "evil").exists() and not (tmp_path / "deep/evil").exists()


def test_a_storage_that_cannot_be_written_costs_the_copy_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with guarded(tmp_path / "here", f"file://{tmp_path}/bucket/run") as guard:
        (tmp_path / "bucket").touch()  # a file where a folder should be
        save(guard, 5)
    assert f"WARNING: the checkpoint of step 5 is here alone: file://{tmp_path}/bucket/run" in capsys.readouterr().err
    with guarded(tmp_path / "here", "") as guard:
        assert guard.newest() == f"{tmp_path}/here/checkpoint-5"


def test_a_storage_that_cannot_be_read_is_an_error_and_not_a_fresh_start(in_s3: str, tmp_path: Path) -> None:
    with guarded(tmp_path / "here", "s3://bukket/run") as guard, pytest.raises(CheckpointError, match="s3://bukket/run: "):
        guard.newest()


@pytest.mark.exact
def test_a_checkpointers_copies_on_s3(in_s3: str, tmp_path: Path) -> None:
    straight = train(tmp_path / "straight", 30)
    train(tmp_path / "first", 23, copy_to=in_s3, keep_last=2)
    assert there(in_s3) == ["step-000000000014", "step-000000000021"]
    assert train(tmp_path / "second", 30, copy_to=in_s3, keep_last=2) == straight[21:]
    assert there(in_s3) == ["step-000000000021", "step-000000000028"]


def test_a_storage_without_its_package_is_named_with_what_to_install() -> None:
    with pytest.raises(CheckpointError, match=r"nowhere://x: .*install trainshed\[fsspec\]"):
        Remote("nowhere://me:secret@x".replace("me:secret@", ""))
    with pytest.raises(CheckpointError) as caught:
        Remote("nowhere://me:hunter22@x")
    assert "hunter22" not in str(caught.value)


# --- several hosts ----------------------------------------------------------------------------------------------------

# Arguments: checkpoint folder ({rank} is filled in), URL, step to save or 0. The model is written by the first rank alone.
HOSTS = """\
import json, os, sys
import torch.distributed as dist
from trainshed.checkpoint.guard import Guard

place, url, step = sys.argv[1], sys.argv[2], int(sys.argv[3])
rank = int(os.environ["RANK"])
os.environ["SM_CURRENT_HOST"] = os.environ["HOST_PREFIX"] + str(rank)
if int(os.environ["WORLD_SIZE"]) > 1:
    dist.init_process_group("gloo")
guard = Guard(place.replace("{rank}", str(rank)), url)

def write():
    path = guard.path(step)
    os.makedirs(path, exist_ok=True)
    if rank == 0:
        open(path + "/model.bin", "w").write("the model")
    open(path + f"/random-{rank}.bin", "w").write(f"rank {rank}")
    open(path + "/arguments.bin", "w").write(f"those of rank {rank}")

if step:
    guard.save(step, "interval", write)
path = guard.newest()
found = {name: open(f"{path}/{name}").read() for name in os.listdir(path) if name.endswith(".bin")} if path else None
print("found " + json.dumps(found), flush=True)
guard.close()
"""


def on_hosts(forge: Forge, place: str, url: str, step: int, ranks: int, prefix: str) -> list[dict[str, str] | None]:
    """What each rank found in the newest checkpoint, after saving one where a step is given."""
    outputs = forge.run(HOSTS, [place, url, str(step)], ranks, [{"HOST_PREFIX": prefix}] * ranks)
    return [json.loads(re.findall("^found (.*)$", output, re.M)[0]) for output in outputs]


def test_new_hosts_with_disks_of_their_own_get_their_part_and_what_the_first_host_alone_had(
    forge: Forge, tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/elsewhere"
    on_hosts(forge, f"{tmp_path}/old-{{rank}}", url, 5, 2, "algo-")
    assert not (tmp_path / "elsewhere/checkpoint-5/part1/model.bin").exists()
    every = {"model.bin": "the model", "random-0.bin": "rank 0", "random-1.bin": "rank 1"}
    found = on_hosts(forge, f"{tmp_path}/new-{{rank}}", url, 0, 2, "other-")
    assert found == [{**every, "arguments.bin": f"those of rank {rank}"} for rank in (0, 1)]
    (alone,) = on_hosts(forge, f"{tmp_path}/alone", url, 0, 1, "third-")
    assert alone == {**every, "arguments.bin": "those of rank 0"}
    shutil.rmtree(tmp_path / "new-1")  # one host is replaced
    found = on_hosts(forge, f"{tmp_path}/new-{{rank}}", url, 0, 2, "other-")
    assert found == [{**every, "arguments.bin": f"those of rank {rank}"} for rank in (0, 1)]


def test_a_copy_that_one_host_has_not_finished_is_passed_over_by_all(forge: Forge, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/elsewhere"
    on_hosts(forge, f"{tmp_path}/old-{{rank}}", url, 5, 2, "algo-")
    on_hosts(forge, f"{tmp_path}/old-{{rank}}", url, 6, 2, "algo-")
    (manifest,) = (tmp_path / "elsewhere/checkpoint-6/part1").glob("*.manifest")
    manifest.unlink()
    on_hosts(forge, f"{tmp_path}/new-{{rank}}", url, 0, 2, "other-")
    assert names(tmp_path / "new-0") == names(tmp_path / "new-1") == ["checkpoint-5"]


def test_hosts_that_share_a_folder_make_one_copy(forge: Forge, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/elsewhere"
    on_hosts(forge, f"{tmp_path}/shared", url, 5, 2, "algo-")
    assert names(tmp_path / "elsewhere/checkpoint-5") == names(tmp_path / "shared/checkpoint-5")
    (alone,) = on_hosts(forge, f"{tmp_path}/alone", url, 0, 1, "algo-")
    assert alone is not None and alone["random-1.bin"] == "rank 1"
