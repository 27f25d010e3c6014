"""What the model store keeps, and what it does when something goes wrong, in a folder and on S3."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainshed.base.errors import TrainshedError
from trainshed.contract.model_reference import reference_of
from trainshed.studio.models.card import card
from trainshed.studio.models.on_disk import OnDisk
from trainshed.studio.models.store import ModelStore, NoModelError
from trainshed.studio.models.version import Version, VersionMetadata

from .conftest import Maker


def numbers(store: ModelStore, model: str = "digits") -> list[int]:
    good, damaged = store.versions(model)
    assert damaged == {}
    return [version.number for version in good]


def damage(store: ModelStore, version: Version, name: str = "weights", text: bytes = b"onf") -> None:
    """Another content of the same size in a file's place."""
    key = f"{version.model}/files/{version.folder}/{name}"
    if isinstance(store.storage, OnDisk):
        os.chmod(store.storage.address(key), 0o644)
    store.storage.replace(key, text)


def test_a_version_comes_back_as_it_was_added(store: ModelStore, maker: Maker, tmp_path: Path) -> None:
    version = maker.add(store, "digits", "one", metrics={"loss": 0.5}, licence="mit")
    store.get(store.find(reference_of("digits")), str(tmp_path / "out"), {"README.md": "card"})

    assert (tmp_path / "out/weights").read_text() == "one" and (tmp_path / "out/config/model").read_text() == "x"
    assert (tmp_path / "out/README.md").read_text() == "card"
    assert store.models() == ["digits"] and store.find(reference_of("digits:1")) == version
    assert version.facts == VersionMetadata({"loss": 0.5}, licence="mit")
    assert store.verify(version) == []


def test_a_readme_of_the_model_stays(store: ModelStore, maker: Maker, tmp_path: Path) -> None:
    version = store.add("digits", maker.files(**{"README.md": "its own"}), VersionMetadata()).version
    store.get(version, str(tmp_path / "out"), {"README.md": "card"})

    assert (tmp_path / "out/README.md").read_text() == "its own"


def test_the_same_content_is_the_same_version_and_leaves_nothing(store: ModelStore, maker: Maker) -> None:
    first = maker.add(store, "digits", "one")
    maker.add(store, "digits", "two")
    again = store.add("digits", maker.files(weights="one", config__model="x"), VersionMetadata({"other": 1.0}))

    assert (again.version, again.new) == (first, False)
    assert len(store.storage.names("digits/files")) == 2


def test_content_that_was_damaged_can_be_added_again(store: ModelStore, maker: Maker) -> None:
    damage(store, maker.add(store, "digits", "one"))

    assert maker.add(store, "digits", "one").number == 2


def test_a_stage_moves_at_once_and_is_what_a_reference_means(store: ModelStore, maker: Maker) -> None:
    one, two = maker.add(store, "digits", "one"), maker.add(store, "digits", "two")
    store.set_stage(two, "champion")
    store.set_stage(one, "champion")

    assert store.find(reference_of("digits@champion")) == one and store.find(reference_of("digits")) == two
    assert store.stages("digits") == {"champion": 1}
    with pytest.raises(NoModelError, match="has no stage 'champ': did you mean 'champion'"):
        store.find(reference_of("digits@champ"))


def test_tags_and_notes_belong_to_one_version(store: ModelStore, maker: Maker) -> None:
    one, two = maker.add(store, "digits", "one", note="first"), maker.add(store, "digits", "two")
    store.set_tag(one, "owner", "ann")
    store.set_tag(one, "owner", "eve")
    store.set_tag(one, "task", "ocr")
    store.drop_tag(one, "task")
    store.set_note(two, "later")

    assert (store.tags(one), store.tags(two)) == ({"owner": "eve"}, {})
    assert (store.note(one), store.note(two)) == ("first", "later")


@pytest.mark.safety
@pytest.mark.parametrize("text", ["onf", "on", "longer", None], ids=["changed", "cut", "longer", "gone"])
def test_a_file_that_is_not_what_was_added_is_found_and_not_given_away(
    store: ModelStore, maker: Maker, tmp_path: Path, text: str | None
) -> None:
    version = maker.add(store, "digits", "one")
    if text is None:
        store.storage.remove(f"digits/files/{version.folder}/weights")
    else:
        damage(store, version, text=text.encode())
    what = "weights is gone" if text is None else "weights is not the file that was added"

    assert len(found := store.verify(version)) == 1 and what in found[0]
    with pytest.raises(TrainshedError, match=what):
        store.get(version, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists() and list(tmp_path.glob(".out*")) == []


def test_a_file_that_was_put_beside_the_others_is_named(store: ModelStore, maker: Maker) -> None:
    version = maker.add(store, "digits", "one")
    store.storage.create(f"digits/files/{version.folder}/more", b"x")

    assert store.verify(version) == ["digits:1 has files that were not added: more"]


@pytest.mark.safety
@pytest.mark.parametrize(
    "change",
    [
        lambda told: told["files"][0].update(sha256="0" * 64),
        lambda told: told["files"][0].update(name="../../escaped"),
        lambda told: told["files"][0].update(name="/escaped"),
        lambda told: told.update(folder="../other"),
        lambda told: told.update(number=7),
        lambda told: told.update(format=99),
        lambda told: told.update(files=[]),
        lambda told: told.update(created=float("nan")),
        lambda told: told.clear(),
    ],
)
def test_a_damaged_version_is_said_and_costs_no_other(store: ModelStore, maker: Maker, change: object) -> None:
    maker.add(store, "digits", "one")
    maker.add(store, "digits", "two")
    told = json.loads(store.storage.read("digits/versions/2.json", 1 << 20) or b"")
    change(told)  # type: ignore[operator]
    store.storage.replace("digits/versions/2.json", json.dumps(told).encode())

    good, damaged = store.versions("digits")
    assert [version.number for version in good] == [1] and list(damaged) == [2]
    with pytest.raises(TrainshedError, match="digits:2 is damaged"):
        store.find(reference_of("digits"))
    assert maker.add(store, "digits", "three").number == 3
    assert store.leftovers("digits", time.time() + 1e6) == [], "the damaged version may own them"


def test_what_is_not_json_is_damaged_too(store: ModelStore, maker: Maker) -> None:
    maker.add(store, "digits", "one")
    store.set_stage(store.find(reference_of("digits:1")), "champion")
    store.storage.replace("digits/versions/1.json", b"\xff{")
    store.storage.replace("digits/stages/champion.json", b"[")

    assert store.versions("digits") == ([], {1: "its file is not JSON"})
    assert store.stages("digits") == {}


def test_a_writer_that_is_interrupted_leaves_no_version(
    store: ModelStore, maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a kill would find it: the moment before the version gets its number, and nothing is cleaned up."""
    monkeypatch.setattr(store.storage, "create", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    monkeypatch.setattr(store.storage, "remove_below", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        maker.add(store, "digits", "one")
    monkeypatch.undo()

    assert store.models() == [] and store.versions("digits") == ([], {})
    assert store.leftovers("digits", time.time()) == [], "it may be running"
    assert maker.add(store, "digits", "one").number == 1
    assert store.remove_leftovers("digits", time.time() + 1e6) == 1
    assert store.verify(store.find(reference_of("digits"))) == []


def test_two_writers_at_once_get_a_number_each_and_the_same_content_one(store: ModelStore, maker: Maker) -> None:
    texts = ["one", "two", "three", "one"]
    files = [maker.files(weights=text) for text in texts]
    barrier = threading.Barrier(len(texts))
    found: list[tuple[int, str]] = []

    def add(number: int) -> None:
        barrier.wait()
        version = store.add("digits", files[number], VersionMetadata()).version
        found.append((version.number, version.content))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 4 and len(set(found)) == 3
    assert numbers(store) == [1, 2, 3]
    assert all(store.verify(version) == [] for version in store.versions("digits")[0])
    assert len(store.storage.names("digits/files")) == 3


def test_a_removed_version_is_gone_and_its_number_is_not_given_again(store: ModelStore, maker: Maker) -> None:
    one, two = maker.add(store, "digits", "one"), maker.add(store, "digits", "two")
    store.set_stage(two, "champion")
    with pytest.raises(TrainshedError, match="digits:2 is champion"):
        store.remove(two)
    assert numbers(store) == [1, 2]
    store.remove(two, force=True)

    assert numbers(store) == [1] and store.stages("digits") == {}
    assert store.storage.names("digits/files") == [one.folder]
    with pytest.raises(NoModelError, match="there is no digits:2"):
        store.find(reference_of("digits:2"))
    assert maker.add(store, "digits", "two").number == 3


def test_a_stage_of_a_version_that_is_gone_says_so(store: ModelStore, maker: Maker) -> None:
    one = maker.add(store, "digits", "one")
    store.remove(one)
    store.set_stage(one, "champion")

    with pytest.raises(NoModelError, match="there is no digits:1, to which the stage 'champion' points"):
        store.find(reference_of("digits@champion"))


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "-x", "a b", "x" * 64, "ä", "a\n"])
def test_a_name_that_is_a_path_or_an_option_is_refused(store: ModelStore, maker: Maker, name: str) -> None:
    with pytest.raises(TrainshedError, match="is not a valid model name"):
        maker.add(store, name, "one")


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "a//b", "./a", "", "a\nb", "x" * 701, "\udcff"])
def test_a_file_whose_name_leads_elsewhere_is_refused(store: ModelStore, maker: Maker, name: str) -> None:
    path = maker.files(weights="x")[0][1]
    with pytest.raises(TrainshedError, match="cannot add"):
        store.add("digits", [(name, path)], VersionMetadata())
    assert store.storage.names("") == []


def test_a_folder_that_is_not_empty_is_not_written_to(store: ModelStore, maker: Maker, tmp_path: Path) -> None:
    version = maker.add(store, "digits", "one")
    (tmp_path / "out").mkdir()
    store.get(version, str(tmp_path / "out"))

    with pytest.raises(TrainshedError, match="is not empty"):
        store.get(version, str(tmp_path / "out"))


def test_a_file_that_changes_while_it_is_added_is_not_added(
    store: ModelStore, maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = maker.files(weights="one")
    put = store.storage.put

    def slow(path: str, key: str) -> tuple[int, str]:
        done = put(path, key)
        with open(path, "a") as file:
            file.write("more")
        return done

    monkeypatch.setattr(store.storage, "put", slow)
    with pytest.raises(TrainshedError, match="it changed while it was copied"):
        store.add("digits", files, VersionMetadata())
    assert store.models() == [] and store.storage.names("digits/files") == []


def test_an_unknown_model_suggests_the_nearest(store: ModelStore, maker: Maker) -> None:
    with pytest.raises(NoModelError, match="there is no model 'digits'"):
        store.find(reference_of("digits"))
    maker.add(store, "digits", "one")
    with pytest.raises(NoModelError, match="did you mean 'digits'"):
        store.find(reference_of("digit"))


def test_of_blocks_one_is_in_memory_at_a_time(store: ModelStore, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(5 << 20))
    version = store.add("digits", [("large", str(tmp_path / "large"))], VersionMetadata()).version
    blocks: Iterator[bytes] = store.blocks(version, version.files[0])

    assert max(len(block) for block in blocks) <= 1 << 20


@pytest.mark.safety
def test_no_secret_is_kept_in_what_is_said_of_a_version(store: ModelStore, maker: Maker, tmp_path: Path) -> None:
    said = "from https://me:hunter2@host/data with Authorization: Bearer abc123def456 and ghp_" + "a1B2" * 9
    run = {"hyperparameters": {"url": said, "epochs": 3}, "code": {"digest": "0123456789abcdef" * 4}}
    version = store.add("digits", maker.files(weights="x"), VersionMetadata({}, run, licence=said, note=said)).version
    store.set_tag(version, "from", said)
    store.set_tag(version, "api_key", "plain")
    shown = [json.dumps(version.plain()), store.note(version), str(store.tags(version))]
    store.set_note(version, said)
    shown += [store.note(version), card(version, tags=store.tags(version), note=said)]
    storage = store.storage
    if isinstance(storage, OnDisk):
        shown += [path.read_text() for path in Path(storage.address("digits")).rglob("*.json")]

    secrets = ("hunter2", "abc123def456", "a1B2", "plain")
    assert [text for text in shown if any(secret in text for secret in secrets)] == []
    assert "0123456789abcdef" in shown[0] and "epochs" in shown[0]
