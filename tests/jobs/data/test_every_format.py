"""Every format, any number of ranks and workers, stopped and gone on with others: every sample of an epoch once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from support.data_files import CASES, plain
from support.extras import needs
from trainshed.data.api import folder
from trainshed.data.dataset import Files
from trainshed.data.formats.table import of

needs("pyarrow")
pytestmark = pytest.mark.torch

COUNTS = (90, 0, 1, 41)


@pytest.fixture
def written(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Files, Counter[str]]:
    """A channel of several files, and what its samples are."""
    case = CASES[request.param]
    paths, expected = [], Counter[str]()
    for number, count in enumerate(COUNTS):
        (tmp_path / str(number)).mkdir()
        paths.append(case.written(tmp_path / str(number), count))
        expected.update(samples(case.expected(count)))
    form = of(paths, name=case.form.name)
    return Files("the channel train", paths, str(tmp_path), form), expected


def known(value: Any) -> str:
    """A sample as text; 1 and 1.0 are the same number."""
    if isinstance(value, dict):
        return str({key: known(one) for key, one in value.items()})
    if isinstance(value, list):
        return str(list(map(known, value)))
    return repr(float(value)) if isinstance(value, (int, float)) else repr(value)


def samples(batch: Iterable[Any]) -> list[str]:
    return [known(plain(sample)) for sample in batch]


@pytest.mark.exact
@pytest.mark.matrix
@pytest.mark.parametrize("written", CASES, indirect=True)
@pytest.mark.parametrize(("world", "workers", "then"), [(1, 0, 4), (2, 2, 1), (4, 0, 2)])
def test_every_sample_of_an_epoch_comes_once(
    written: tuple[Files, Counter[str]], world: int, workers: int, then: int, request: pytest.FixtureRequest
) -> None:
    files, expected = written
    draw = random.Random(request.node.name)
    stop = draw.randrange(1, sum(COUNTS) // (4 * world))
    seen: list[str] = []
    states = []
    for rank in range(world):
        loader = files.loader(4, shuffle=True, workers=workers, collate=list, rank=rank, world_size=world)
        for number, batch in enumerate(loader, 1):
            seen += samples(batch)
            if number == stop:
                break
        states.append(loader.state_dict())
    assert all(state == states[0] for state in states) and states[0]["epoch"] == 0
    lengths = set()
    for rank in range(then):
        loader = files.loader(3, shuffle=True, collate=list, rank=rank, world_size=then)
        loader.load_state_dict(states[0])
        lengths.add(len(loader))
        for batch in loader:
            seen += samples(batch)

    assert Counter(seen) == expected and len(lengths) == 1


@pytest.mark.exact
@pytest.mark.spine
@pytest.mark.parametrize("written", CASES, indirect=True)
def test_a_channel_is_told_what_it_holds(written: tuple[Files, Counter[str]]) -> None:
    """By the names and the first bytes of its files."""
    files, expected = written
    found = folder(str(Path(files.paths[0]).parent))
    assert type(found.format) is type(files.format)
    assert Counter(samples(files)) == expected
    assert samples(files[number] for number in (0, 89, 90, -1)) == [samples(files)[number] for number in (0, 89, 90, 131)]


def test_folders_of_images_are_shuffled_one_by_one(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(150):
            (tmp_path / name / f"{number:03}.png").write_bytes(f"{name} {number}".encode())
    images = folder(str(tmp_path))
    batches = [batch for batch in images.loader(30, shuffle=True, collate=list)]

    assert (images.format.name, len(images)) == ("images", 300)
    assert Counter(label for batch in batches for _, label in batch) == {0: 150, 1: 150}
    assert all({label for _, label in batch} == {0, 1} for batch in batches)


def test_an_image_that_comes_later_is_counted(tmp_path: Path) -> None:
    (tmp_path / "cat" / "old").mkdir(parents=True)
    (tmp_path / "cat" / "old" / "1.png").write_bytes(b"1")
    assert len(folder(str(tmp_path))) == 1
    (tmp_path / "cat" / "old" / "2.png").write_bytes(b"2")
    assert [data for data, _ in folder(str(tmp_path))] == [b"1", b"2"]


@pytest.mark.parametrize("name", ["jsonlines", "csv"])
def test_a_record_that_makes_no_sample_is_told_with_its_place(name: str, tmp_path: Path) -> None:
    text = {"jsonlines": '{"a": 1}\n{"a": 2}\n{"a": \n', "csv": "a,b\n1,2\n3,4\n5\n"}[name]
    (tmp_path / f"x.{'jsonl' if name == 'jsonlines' else 'csv'}").write_text(text)
    files = folder(str(tmp_path))
    said = []
    for read in (lambda: files[2], lambda: list(files), lambda: list(files.loader(3, shuffle=True))):
        with pytest.raises(Exception) as raised:
            read()
        said.append(str(raised.value))

    assert all("record 2 at byte" in line and str(tmp_path) in line for line in said), said
