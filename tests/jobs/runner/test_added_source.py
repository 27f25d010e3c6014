"""A package adds a source of channels: `examples/plugins/source`, installed as a user installs it."""

from __future__ import annotations

import zipfile

import pytest

from support.plugins import search_path
from support.runner_project import Project

SHOW = """\
import os
folder = os.environ["SM_CHANNEL_TRAIN"]
for place, _, names in sorted(os.walk(folder)):
    for name in sorted(names):
        path = os.path.join(place, name)
        print("file", os.path.relpath(path, folder), open(path).read(), flush=True)
"""


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a command for which the example's package is installed."""
    return {"PYTHONPATH": search_path("source", tmp_path_factory.mktemp("source"))}


@pytest.mark.parametrize("mode", ["File", "FastFile"])
def test_a_channel_comes_from_an_added_source(project: Project, there: dict[str, str], mode: str) -> None:
    project.write({"train.py": SHOW})
    archive = project.folder / "data.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("a.txt", "one")
        made.writestr("below/b.txt", "two")
    project.write({"job.yaml": f"program: train.py\nchannels: {{train: {{path: 'zip://{archive}', input_mode: {mode}}}}}\n"})

    done = project.trainshed("run", "job.yaml", **there)

    assert done.status == 0, done.stderr
    assert "file a.txt one" in done.stdout and "file below/b.txt two" in done.stdout
    assert mode == "File" or "fetched first, not streamed: rclone cannot list it" in done.stderr


def test_what_the_source_cannot_read_is_told_and_nothing_is_left(project: Project, there: dict[str, str]) -> None:
    project.write({"train.py": SHOW, "data.zip": "not an archive"})
    address = f"train=zip://{project.folder}/data.zip"

    done = project.trainshed("run", "train.py", "--channel", address, **there)
    assert done.status == 1 and "File is not a zip file" in done.stderr, done.stderr

    without = project.trainshed("run", "train.py", "--channel", address)
    assert without.status == 2 and "cannot be fetched" in without.stderr
    assert not list(project.folder.glob("runs/*"))
