"""Batches of a channel: every sample of an epoch once, whatever stops a run and however many ranks go on with it."""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.lazy import Lazy
from trainshed.data.dataset import Files
from trainshed.data.errors import DataError
from trainshed.data.formats.recordio import MAGIC, RecordIO

torch = Lazy("torch")
pytestmark = pytest.mark.torch

COUNTS = (130, 0, 1, 77, 200)
TOTAL = sum(COUNTS)


def frame(payload: bytes) -> bytes:
    return struct.pack("<II", MAGIC, len(payload)) + payload + bytes(-len(payload) % 4)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Records that are their own numbers, of different lengths."""
    number = 0
    for name, count in enumerate(COUNTS):
        frames = []
        for _ in range(count):
            frames.append(frame(f"{number}".encode() + b" " * (number % 7)))
            number += 1
        (tmp_path / f"part-{name}.rec").write_bytes(b"".join(frames))
    paths = sorted(map(str, tmp_path.iterdir()))
    return Files("the channel train", paths, str(tmp_path), RecordIO())


def numbers(batch: Sequence[bytes]) -> list[int]:
    return [int(record) for record in batch]


def loaders(files: Files, world: int, **options: Any) -> list[Any]:
    return [
        files.loader(options.pop("batch", 8) if not rank else 8, rank=rank, world_size=world, **options)
        for rank in range(world)
    ]


def epoch_of(loaders: list[Any], stop: int | None = None) -> list[int]:
    """What the ranks get in the rest of an epoch, or in some steps of it; all of them take equally many batches."""
    found: list[int] = []
    lengths = set()
    for loader in loaders:
        taken = 0
        for batch in loader:
            found += numbers(batch)
            taken += 1
            if taken == stop:
                break
        lengths.add(taken)
    assert len(lengths) == 1
    return found


def test_a_channel_is_a_dataset_of_its_samples(files: Files) -> None:
    assert len(files) == TOTAL
    assert [int(sample) for sample in files] == list(range(TOTAL))
    assert [int(files[number]) for number in (0, 129, 130, 131, TOTAL - 1, -1, 5)] == [0, 129, 130, 131, 407, 407, 5]
    with pytest.raises(IndexError, match="408 samples, and none with the number 408"):
        files[TOTAL]


@pytest.mark.exact
@pytest.mark.matrix
@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_sample_of_an_epoch_comes_once(files: Files, world: int, workers: int, shuffle: bool) -> None:
    each = loaders(files, world, workers=workers, shuffle=shuffle)
    first, second = epoch_of(each), epoch_of(each)

    assert Counter(first) == Counter(second) == Counter(range(TOTAL))
    assert (first != second) == shuffle
    assert [loader.epoch for loader in each] == [2] * world


def test_what_is_not_shuffled_comes_in_the_order_of_the_files(files: Files) -> None:
    for workers in (0, 2):
        assert epoch_of(loaders(files, 1, workers=workers)) == list(range(TOTAL))


@pytest.mark.exact
@pytest.mark.matrix
@pytest.mark.parametrize("case", range(12))
def test_a_run_that_stops_goes_on_with_other_ranks_and_workers_at_the_next_sample(files: Files, case: int) -> None:
    draw = random.Random(case)
    shuffle, seen, state = draw.random() < 0.7, [], None
    for _ in range(draw.randrange(1, 4)):
        each = loaders(files, draw.choice([1, 2, 3, 4]), workers=draw.choice([0, 0, 2]), shuffle=shuffle, seed=case)
        for loader in each:
            if state is not None:
                loader.load_state_dict(state)
        seen += epoch_of(each, stop=draw.randrange(1, 12))
        states = [loader.state_dict() for loader in each]
        assert all(one == states[0] for one in states)  # any rank's will do
        state = states[0]
        if state["epoch"]:
            break
    last = loaders(files, draw.choice([1, 2, 4]), shuffle=shuffle)
    for loader in last:
        loader.load_state_dict(state)
    if last[0].epoch == 0:
        seen += epoch_of(last)

    assert Counter(seen) == Counter(range(TOTAL))
    assert Counter(epoch_of(last)) == Counter(range(TOTAL))  # the next epoch is whole


@pytest.mark.exact
def test_a_run_that_goes_on_has_the_order_of_one_that_never_stopped(files: Files) -> None:
    [whole], [before], [after] = (loaders(files, 1, shuffle=True, seed=3) for _ in range(3))
    expected = epoch_of([whole]) + epoch_of([whole])

    seen = epoch_of([before], stop=11)
    after.load_state_dict(before.state_dict())
    assert len(after) == len(before) == -(-TOTAL // 8) - 11
    assert seen + epoch_of([after]) + epoch_of([after]) == expected


@pytest.mark.exact
def test_a_loop_that_breaks_goes_on_where_it_was(files: Files) -> None:
    each = loaders(files, 1)
    assert epoch_of(each, stop=3) + epoch_of(each) == list(range(TOTAL))


def test_a_state_of_other_data_is_refused(files: Files, tmp_path: Path) -> None:
    [loader] = loaders(files, 1)
    epoch_of([loader], stop=3)
    state = loader.state_dict()
    (tmp_path / "part-1.rec").write_bytes(frame(b"0"))
    other = Files(files.name, files.paths, str(tmp_path), RecordIO())

    with pytest.raises(DataError, match="it had 408 samples then, and has 409 now"):
        other.loader(8).load_state_dict(state)
    with pytest.raises(DataError, match="is not the state of a loader"):
        loader.load_state_dict({"epoch": 1})
    with pytest.raises(DataError, match="was saved with shuffle=False"):
        files.loader(8, shuffle=True).load_state_dict(state)


@pytest.mark.exact
def test_the_state_survives_a_checkpoint(files: Files, tmp_path: Path) -> None:
    [loader] = loaders(files, 1, shuffle=True)
    epoch_of([loader], stop=3)
    torch.save(loader.state_dict(), tmp_path / "state")
    [again] = loaders(files, 1, shuffle=True)
    again.load_state_dict(torch.load(tmp_path / "state", weights_only=True))

    assert epoch_of([again]) == epoch_of([loader])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_record_is_told_with_its_place(files: Files, workers: int) -> None:
    path = Path(files.paths[4])
    assert len(files) == TOTAL  # they were counted when all was well
    data = bytearray(path.read_bytes())
    data[0] = 0
    path.write_bytes(data)

    with pytest.raises(DataError, match=r"part-4\.rec: record 0 at byte 0 begins with 0xced72300") as raised:
        epoch_of(loaders(files, 1, workers=workers))
    assert "Traceback" not in raised.value.message


def test_a_file_that_has_become_shorter_is_told(files: Files) -> None:
    assert len(files) == TOTAL
    Path(files.paths[0]).write_bytes(frame(b"0"))

    with pytest.raises(DataError, match=r"part-0\.rec had 130 records when it was counted, and has 1 now"):
        epoch_of(loaders(files, 1))


def test_samples_that_make_no_batch_are_told_with_what_to_do(files: Files) -> None:
    loader = files.loader(4, transform=lambda record: torch.zeros(len(record)))
    with pytest.raises(DataError, match="4 samples do not make a batch") as raised:
        next(iter(loader))
    assert "collate" in raised.value.hint


def test_transform_and_collate_make_the_batches(files: Files) -> None:
    loader = files.loader(4, transform=int, collate=sum, workers=1)
    assert next(iter(loader)) == 0 + 1 + 2 + 3
    assert files.loader(4, transform=int).__iter__().__next__().tolist() == [0, 1, 2, 3]


def test_batches_come_to_a_device_one_ahead(files: Files) -> None:
    loader = files.loader(100, transform=int, device="cpu")
    assert [len(batch) for batch in loader] == [100, 100, 100, 100, 8]


def test_torchs_own_loader_takes_a_channel(files: Files) -> None:
    sampler = torch.utils.data.DistributedSampler(files, 2, 1, shuffle=False)  # type: ignore[arg-type]
    found = [numbers(batch) for batch in torch.utils.data.DataLoader(files, 8, sampler=sampler, num_workers=2)]
    assert [number for batch in found for number in batch] == list(range(1, TOTAL, 2))


def test_torchdatas_loader_goes_on_in_a_channel(files: Files) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    before, after = (stateful.StatefulDataLoader(files, 8, num_workers=workers) for workers in (2, 2))
    seen = []
    for number, batch in enumerate(before, 1):
        seen += numbers(batch)
        if number == 11:
            break
    after.load_state_dict(before.state_dict())
    assert seen + [number for batch in after for number in numbers(batch)] == list(range(TOTAL))


@pytest.mark.exact
@pytest.mark.spine
def test_a_checkpointer_keeps_the_place_in_a_channel(files: Files, tmp_path: Path) -> None:
    from trainshed.checkpoint import Checkpointer

    model, seen = torch.nn.Linear(1, 1), []
    for stop in (7, 20, 1000):
        loader = files.loader(8, shuffle=True)
        with Checkpointer(tmp_path / "checkpoints", model=model, data=loader, every_steps=1) as checkpoints:
            step = checkpoints.restore()
            for batch in loader:
                seen += numbers(batch)
                step += 1
                checkpoints.step(step)
                if step == stop:
                    break
    assert Counter(seen) == Counter(range(TOTAL))
