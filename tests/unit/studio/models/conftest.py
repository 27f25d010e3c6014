"""A model store in a folder and one on an S3 of this machine, with the same tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.own_s3 import BUCKET, own_s3
from trainshed.studio.models.contents import files_in
from trainshed.studio.models.storage import storage_at
from trainshed.studio.models.store import ModelStore
from trainshed.studio.models.version import Version, VersionMetadata


@pytest.fixture(scope="session")
def s3() -> Iterator[dict[str, str]]:
    """The variables that lead to moto's server."""
    with own_s3() as environment:
        yield environment


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelStore:
    """An empty store in each of the places."""
    if request.param == "folder":
        return ModelStore(storage_at(str(tmp_path / "store"), {}))
    environment = request.getfixturevalue("s3")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return ModelStore(storage_at(f"s3://{BUCKET}/{tmp_path.name}/store", environment))


class Maker:
    """Adds versions of a few small files to a store."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "made"
        self.count = 0

    def files(self, **files: str) -> list[tuple[str, str]]:
        """Files in a folder of their own, as `files_in` finds them."""
        self.count += 1
        place = self.folder / str(self.count)
        for name, text in files.items():
            path = place / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return files_in(str(place))

    def add(self, store: ModelStore, model: str, text: str, **facts: object) -> Version:
        """A version whose weights are a text."""
        files = self.files(weights=text, config__model="x")
        return store.add(model, files, VersionMetadata(**facts)).version  # type: ignore[arg-type]


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return Maker(tmp_path)
