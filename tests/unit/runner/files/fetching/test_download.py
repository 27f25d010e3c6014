"""What comes is whole, or an error: after breaks, changes, damage, two at once, full disks."""

from __future__ import annotations

import errno
import os
import random
import threading
from pathlib import Path

import pytest

from trainshed.base.errors import TrainshedError
from trainshed.machine import cloning
from trainshed.runner.files.fetching import download as bring
from trainshed.runner.files.fetching import file_cache as kept
from trainshed.runner.files.fetching.file_cache import Cache, find_cache, key_of
from trainshed.runner.files.fetching.items import Item, Passing
from unit.runner.files.fetching.storages import Place, Storage, small_ranges

BODY = random.Random(0).randbytes(105)


@pytest.fixture(autouse=True)
def ranges_of_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    small_ranges(monkeypatch)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def entry(place: Place, storage: Storage, name: str = "a") -> Path:
    """The cache's folder of an object."""
    return Path(place.cache.folder) / key_of(storage.item(name))


def test_ranges_come_in_order_whoever_is_first(place: Place) -> None:
    storage = Storage(a=BODY, b=BODY[::-1], empty=b"")
    late = threading.Event()

    def wait(name: str, start: int, end: int) -> None:
        if start == 0:
            late.wait(10)  # the first range comes when the fourth is there
        elif start == 30:
            late.set()

    storage.before = wait
    target = place.bring(storage)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == storage.objects


@pytest.mark.parametrize("kept", [True, False])
def test_errors_that_pass_are_tried_again_and_others_are_not(place: Place, kept: bool) -> None:
    storage = Storage(a=BODY)
    bad = {20: 2, 70: 1}

    def fail(name: str, start: int, end: int) -> None:
        if bad.get(start, 0) > 0:
            bad[start] -= 1
            raise Passing("503")

    storage.before = fail
    assert (place.bring(storage, kept=kept) / "a").read_bytes() == BODY
    place.cache.prune(0)
    bad[50] = 100
    with pytest.raises(TrainshedError, match=r"s3://bucket/a: 503, 4 times in a row"):
        place.bring(storage, kept=kept)


def test_a_broken_fetch_is_gone_on_with(place: Place) -> None:
    storage = Storage(a=BODY)

    def fail(name: str, start: int, end: int) -> None:
        if start == 60:
            raise TrainshedError("no more")

    storage.before = fail
    with pytest.raises(TrainshedError, match="no more"):
        place.bring(storage)
    part = entry(place, storage) / "part"
    assert part.read_bytes() == BODY[:60]
    storage.before = lambda *_: None
    storage.reads.clear()
    assert (place.bring(storage) / "a").read_bytes() == BODY
    assert storage.reads["a"] == 5, "six ranges were there already"


def test_a_part_that_is_damaged_is_found_and_fetched_anew(place: Place) -> None:
    storage = Storage(a=BODY)
    folder = entry(place, storage)
    folder.mkdir(parents=True)
    (folder / "part").write_bytes(bytes(60))
    assert (place.bring(storage) / "a").read_bytes() == BODY


def test_what_arrives_damaged_again_and_again_is_an_error(place: Place) -> None:
    storage = Storage(a=BODY)
    storage.damage = lambda name, data: data[:-1] + b"!"
    with pytest.raises(TrainshedError, match="arrived 3 times with another checksum than its ETag"):
        place.bring(storage)
    assert not place.cache.entries()[0].whole


def test_an_object_that_changes_meanwhile_comes_as_it_is_then(place: Place) -> None:
    storage = Storage(a=BODY)
    listed = storage.items()

    def change(name: str, start: int, end: int) -> None:
        if start == 50:
            storage.objects["a"] = BODY[::-1]

    storage.before = change
    assert (place.bring(storage, listed) / "a").read_bytes() == BODY[::-1]
    assert [one.whole for one in place.cache.entries()].count(True) == 1


def test_another_content_under_the_same_name_is_fetched(place: Place) -> None:
    assert (place.bring(Storage(a=b"old")) / "a").read_bytes() == b"old"
    assert (place.bring(Storage(a=b"new")) / "a").read_bytes() == b"new"


def test_what_is_kept_is_not_fetched_again(place: Place) -> None:
    storage = Storage(a=BODY, b=b"b")
    place.bring(storage)
    storage.reads.clear()
    assert (place.bring(storage) / "a").read_bytes() == BODY
    assert not storage.reads


@pytest.mark.safety
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("size", [105, 3 << 20])
def test_a_script_that_writes_to_its_data_does_not_change_the_next_runs(place: Place, shared: bool, size: int) -> None:
    storage = Storage(a=(BODY * (size // 100 + 1))[:size])
    if size > 1000:  # in ranges of some size
        bring_ranges = pytest.MonkeyPatch()
        small_ranges(bring_ranges, 1 << 20)
    body = storage.objects["a"]
    first = place.bring(storage, shared=shared) / "a"
    first.chmod(0o644)
    with first.open("r+b") as file:
        file.write(b"overwritten")
    assert (place.bring(storage, shared=shared) / "a").read_bytes() == body
    assert first.read_bytes().startswith(b"overwritten")
    if size > 1000:
        bring_ranges.undo()


def test_two_runs_at_once_fetch_a_file_once(place: Place, tmp_path: Path) -> None:
    storage = Storage(a=BODY)
    begun, go_on = threading.Event(), threading.Event()

    def wait(name: str, start: int, end: int) -> None:
        if start == 0:
            begun.set()
            go_on.wait(30)

    storage.before = wait
    other = Place(tmp_path / "other")
    other.folder.mkdir()
    other.cache = place.cache
    threads = [threading.Thread(target=one.bring, args=(storage,)) for one in (place, other)]
    threads[0].start()
    begun.wait(30)
    threads[1].start()
    assert not place.cache.remove(place.cache.entries()[0]), "what is being fetched is not removed"
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert (place.folder / "run-1/a").read_bytes() == (other.folder / "run-1/a").read_bytes() == BODY
    assert storage.reads["a"] == 11


def test_the_cache_is_bounded_and_what_was_used_last_stays(tmp_path: Path) -> None:
    place = Place(tmp_path, limit=250)
    storage = Storage(a=BODY, b=BODY[1:], c=BODY[2:])
    for number, name in enumerate("abac"):
        place.bring(storage, [storage.item(name)])
        os.utime(entry(place, storage, name), (number, number))
    place.cache.prune()
    assert [one.url[-1] for one in place.cache.entries()] == ["a", "c"]
    assert sum(one.size for one in place.cache.entries()) <= 250


def test_a_channel_that_is_larger_than_the_cache_is_brought_and_not_kept(tmp_path: Path) -> None:
    place = Place(tmp_path, limit=150)
    storage = Storage(a=BODY, b=BODY)
    target = place.bring(storage)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == storage.objects
    assert place.said[0] == "the channel train: 210 B are not kept for other runs: the cache may hold 150 B"
    assert not place.cache.entries()


@pytest.mark.parametrize("home", ["a file", "/proc/nowhere"])
def test_a_home_that_cannot_be_written_to_costs_the_cache_and_no_more(tmp_path: Path, home: str) -> None:
    (tmp_path / "a file").touch()
    place = Place(tmp_path)
    place.cache = Cache(str(tmp_path / home / "channels"), 1 << 30)
    assert (place.bring(Storage(a=BODY)) / "a").read_bytes() == BODY
    assert place.said[0].startswith("warning: the channel train is not kept for other runs: "), place.said


def test_without_room_on_the_disk_nothing_is_fetched(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(a=BODY)
    place.bring(Storage(old=BODY))
    monkeypatch.setenv("TRAINSHED_CHANNEL_CACHE", place.cache.folder)
    monkeypatch.setattr(kept, "free_bytes", lambda folder: 100)
    with pytest.raises(TrainshedError, match=r"the channel train needs 105 B, and the disk of .* has 100 B left"):
        place.bring(storage)
    assert not storage.reads and not place.cache.entries(), "what was kept has made room, as far as it could"


def test_where_there_is_no_room_for_a_copy_nothing_is_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "free_bytes", lambda folder: 150)
    assert (place.bring(Storage(a=BODY), shared=False) / "a").read_bytes() == BODY
    assert place.said[0] == "the channel train is not kept for other runs: the disk has no room for that"
    assert not place.cache.entries()
    assert (place.bring(Storage(a=BODY), shared=True) / "a").read_bytes() == BODY
    assert place.cache.entries(), "another name takes no room"


def test_a_cache_on_another_disk_is_not_emptied_for_this_one(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.bring(Storage(old=BODY))
    monkeypatch.setenv("TRAINSHED_CHANNEL_CACHE", place.cache.folder)
    monkeypatch.setattr(bring, "_same_disk", lambda cache, folder: False)
    monkeypatch.setattr(kept, "free_bytes", lambda folder: 100)
    with pytest.raises(TrainshedError, match="has 100 B left"):
        place.bring(Storage(a=BODY), kept=False)
    assert place.cache.entries()


def test_a_disk_that_is_full_meanwhile_is_an_error_of_the_file(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str, item: Item, *, is_md5: bool) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr(kept, "finish", full)
    with pytest.raises(OSError, match="No space left"):
        place.bring(Storage(a=BODY))


def test_items_without_an_etag_are_fetched_each_time(place: Place) -> None:
    storage = Storage(a=BODY)
    plain = [Item("a", "s3://bucket/a", len(BODY))]
    storage.item = lambda name: plain[0]  # type: ignore[method-assign]
    place.bring(storage, plain)
    storage.reads.clear()
    assert (place.bring(storage, plain) / "a").read_bytes() == BODY
    assert storage.reads["a"] == 11 and not place.cache.entries()


def test_sizes_are_read_as_people_write_them() -> None:
    assert find_cache({"TRAINSHED_CHANNEL_CACHE": "off"}) is None
    environ = {"TRAINSHED_CHANNEL_CACHE": "/nowhere/x", "TRAINSHED_CHANNEL_CACHE_SIZE": "1.5 GB"}
    found = find_cache(environ)
    assert isinstance(found, Cache) and (found.folder, found.limit) == ("/nowhere/x", 3 << 29)
    with pytest.raises(TrainshedError, match="is not a size"):
        find_cache({**environ, "TRAINSHED_CHANNEL_CACHE_SIZE": "much"})
    default = find_cache({"HOME": "/nowhere/home"})
    assert default is not None and default.folder == "/nowhere/home/.cache/trainshed/channels" and default.limit > 0


def test_a_copy_is_the_same_and_never_replaces(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(BODY)
    cloning.copy(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (tmp_path / "b").read_bytes() == BODY
    with pytest.raises(FileExistsError):
        cloning.copy(str(tmp_path / "a"), str(tmp_path / "b"))
