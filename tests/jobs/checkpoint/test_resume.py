"""A resumed run goes on exactly as one that was never interrupted."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from jobs.checkpoint.loops import names, train
from support.lazy import Lazy
from trainshed import checkpoint
from trainshed.contract.wire.notice import Notice, read_answers, write_notice
from trainshed.contract.wire.variables import NOTICE_FILE

torch = Lazy("torch")
pytestmark = pytest.mark.torch


@pytest.mark.exact
@pytest.mark.spine
def test_losses_after_a_resume_are_those_of_an_uninterrupted_run_to_the_last_bit(tmp_path: Path) -> None:
    straight = dict(train(tmp_path / "straight", 60))
    resumed: dict[int, float] = {}
    for stop in (10, 25, 26, 47, 60):  # each run ends between two checkpoints, and loses what came after the last
        resumed |= dict(train(tmp_path / "resumed", stop))
    assert resumed == straight


@pytest.mark.exact
@pytest.mark.spine
def test_sigterm_saves_the_step_at_hand_and_stops_the_loop(tmp_path: Path) -> None:
    straight = dict(train(tmp_path / "straight", 40))
    over = threading.Event()

    def interrupt() -> None:
        while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # the Checkpointer is not there yet
            if over.wait(0.01):
                return
        os.kill(os.getpid(), signal.SIGTERM)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    try:
        done = train(tmp_path / "stopped", 1_000_000, every_steps=None, every_seconds=3600)
    finally:
        over.set()
        interrupter.join()
    last = done[-1][0]
    assert names(tmp_path / "stopped") == [f"step-{last:012d}"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    again = train(tmp_path / "stopped", last + 3)
    assert [step for step, _ in again] == [last + 1, last + 2, last + 3]
    together = dict(done) | dict(again)
    assert all(together[step] == loss for step, loss in straight.items() if step in together)


def test_a_users_own_handler_is_left_alone(tmp_path: Path) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    try:
        with checkpoint.Checkpointer(tmp_path, model=torch.nn.Linear(2, 2)):
            signal.raise_signal(signal.SIGTERM)
        assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.safety
def test_a_notice_of_risk_saves_once_and_the_loop_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run/notice.json"
    monkeypatch.setenv(NOTICE_FILE, str(file))
    write_notice(str(file), Notice(number=1, source="ec2-rebalance", reason="risk", stop=False, received=time.time()))
    done = train(tmp_path / "checkpoints", 12, every_steps=None, every_seconds=3600)
    assert len(done) == 12
    assert names(tmp_path / "checkpoints") == ["step-000000000001"]
    assert read_answers(str(file)) == []


def test_an_answer_tells_the_supervisor_what_was_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run/notice.json"
    monkeypatch.setenv(NOTICE_FILE, str(file))
    write_notice(str(file), Notice(number=1, source="ec2", reason="the end is near", stop=True, received=time.time()))
    assert [step for step, _ in train(tmp_path / "checkpoints", 12)] == [1]
    (answer,) = read_answers(str(file))
    assert (answer.rank, answer.step, answer.reason) == (0, 1, "the end is near")
    assert answer.checkpoint == f"{tmp_path}/checkpoints/step-000000000001"


@pytest.mark.safety
def test_old_checkpoints_go_and_the_asked_for_ones_stay(tmp_path: Path) -> None:
    losses = dict(train(tmp_path, 60, every_steps=5, keep_last=2, keep_every=20, keep_best="loss"))
    saved = range(5, 61, 5)
    best = min(saved, key=lambda step: losses[step])
    assert names(tmp_path) == sorted(f"step-{step:012d}" for step in {20, 40, 55, 60, best})


def test_keeping_a_single_checkpoint_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep_last must be at least 2"):
        checkpoint.Checkpointer(tmp_path, model=torch.nn.Linear(2, 2), keep_last=1)


def test_the_folder_is_the_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SM_CHECKPOINT_DIR", str(tmp_path / "asked"))
    with checkpoint.Checkpointer.for_job(model=torch.nn.Linear(2, 2)) as checkpointer:
        assert checkpointer.folder == str(tmp_path / "asked")
    monkeypatch.delenv("SM_CHECKPOINT_DIR")
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(tmp_path / "base"))
    with checkpoint.Checkpointer.for_job(model=torch.nn.Linear(2, 2)) as checkpointer:
        assert checkpointer.folder == str(tmp_path / "base/checkpoints")


@pytest.mark.exact
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16", "int64", "uint8", "bool", "complex128"])
def test_every_type_of_tensor_comes_back(dtype: str, tmp_path: Path) -> None:
    kind = getattr(torch, dtype)

    def model(fill: int) -> torch.nn.Module:
        one = torch.nn.Module()
        one.register_buffer("odd", (torch.arange(7) * fill % 5).to(kind))
        one.register_buffer("turned", (torch.arange(12).view(3, 4) * fill % 5).to(kind).T)
        one.register_buffer("empty", torch.empty(0, 3, dtype=kind))
        one.register_buffer("scalar", torch.tensor(fill).to(kind))
        return one

    with checkpoint.Checkpointer(tmp_path, model=model(3)) as saver:
        saver.save(1)
    fresh = model(0)
    with checkpoint.Checkpointer(tmp_path, model=fresh) as loader:
        assert loader.restore() == 1
    for name, value in model(3).state_dict().items():
        assert torch.equal(fresh.state_dict()[name], value), name
        assert fresh.state_dict()[name].dtype == kind


@pytest.mark.exact
def test_optimizer_state_keeps_its_own_type(tmp_path: Path) -> None:
    def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = torch.nn.Linear(3, 3).to(torch.bfloat16)
        return model, torch.optim.AdamW(model.parameters())

    model, optimizer = make()
    for parameter in model.parameters():
        optimizer.state[parameter] = {"step": torch.tensor(5.0), "exp_avg": torch.randn(parameter.shape)}
    with checkpoint.Checkpointer(tmp_path, model=model, optimizer=optimizer) as saver:
        saver.save(1)
    fresh, restored = make()
    with checkpoint.Checkpointer(tmp_path, model=fresh, optimizer=restored) as loader:
        loader.restore()
    for old, new in zip(model.parameters(), fresh.parameters(), strict=True):
        assert restored.state[new]["exp_avg"].dtype == torch.float32
        assert torch.equal(restored.state[new]["exp_avg"], optimizer.state[old]["exp_avg"])


@pytest.mark.exact
def test_weights_can_be_read_by_others(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.BatchNorm1d(3))
    with checkpoint.Checkpointer(tmp_path / "checkpoints", model=torch.compile(model)) as checkpointer:
        checkpointer.save(4)
    checkpoint.export_weights(tmp_path / "checkpoints/step-000000000004", tmp_path / "model.safetensors")
    loaded = safetensors.load_file(tmp_path / "model.safetensors")
    assert loaded.keys() == model.state_dict().keys()
    assert all(torch.equal(loaded[name], value) for name, value in model.state_dict().items())
    shard = next((tmp_path / "checkpoints/step-000000000004").glob("*.safetensors"))
    assert safetensors.load_file(shard).keys() == {f"model/{name}" for name in model.state_dict()}


@pytest.mark.exact
@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_goes_on_with_the_next_sample_in_any_epoch(workers: int) -> None:
    def loader() -> checkpoint.ResumableLoader:
        sampler = checkpoint.ResumableSampler(23, seed=9)
        return checkpoint.ResumableLoader(
            torch.utils.data.DataLoader(torch.arange(23), batch_size=3, sampler=sampler, num_workers=workers)
        )

    def endless(one: checkpoint.ResumableLoader, count: int) -> list[list[int]]:
        seen: list[list[int]] = []
        while len(seen) < count:
            for batch in one:
                seen.append(batch.tolist())
                if len(seen) == count:
                    break
        return seen

    straight = endless(loader(), 20)
    assert sorted(x for batch in straight[:8] for x in batch) == list(range(23))
    for stop in (1, 7, 8, 9, 13):
        first = loader()
        before = endless(first, stop)
        second = loader()
        second.load_state_dict(first.state_dict())
        assert before + endless(second, 20 - stop) == straight, stop


@pytest.mark.exact
def test_another_number_of_ranks_continues_at_the_same_place_in_the_data() -> None:
    def take(rank: int, ranks: int, count: int, state: dict[str, int] | None) -> tuple[list[int], dict[str, int]]:
        sampler = checkpoint.ResumableSampler(24, rank=rank, world_size=ranks)
        loader = checkpoint.ResumableLoader(torch.utils.data.DataLoader(torch.arange(24), batch_size=2, sampler=sampler))
        if state:
            loader.load_state_dict(state)
        batches = iter(loader)
        return [x for _ in range(count) for x in next(batches).tolist()], loader.state_dict()

    one, state = take(0, 2, 3, None)
    two, same = take(1, 2, 3, None)
    assert state == same
    rest = [x for rank in range(3) for x in take(rank, 3, 2, state)[0]]
    assert sorted(one + two + rest) == list(range(24))
