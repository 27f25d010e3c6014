"""Tensors that Amazon's own writers have written are read equal."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from clients import venvs
from support.extras import needs
from trainshed.data.formats.protobuf import Sparse
from trainshed.data.formats.table import of

needs("numpy")

PROBE = Path(__file__).resolve().parent / "recordio_probe.py"


@pytest.fixture(scope="module", params=["peer", "sdk2"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with files, and what the writers were given."""
    try:
        python = venvs.make(request.param)
    except venvs.VenvError as error:
        pytest.skip(f"pip cannot install {request.param} here: {error}")
    folder = tmp_path_factory.mktemp(request.param)
    environ = {**os.environ, "PYTHONPATH": "", "AWS_DEFAULT_REGION": "us-east-1", "HOME": str(folder)}
    done = subprocess.run([python, PROBE, str(folder)], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("TOLD")]
    return folder, json.loads(line.removeprefix("TOLD"))


def test_what_amazons_writers_have_written_is_read_equal(written: tuple[Path, dict[str, Any]]) -> None:
    folder, told = written
    assert {"dense-float32.pbr", "dense-int64.pbr", "no-label.pbr"} <= told.keys()
    for name, given in told.items():
        path = str(folder / name)
        form = of([path])
        counted = form.count(path)
        records = list(form.read(path, 0, counted))
        found = [form.sample(record) for record in records]

        assert form.name == "recordio-protobuf" and counted.records == len(found) == 7
        for number, sample in enumerate(found):
            features = sample["features"]
            assert isinstance(features, Sparse) == given["sparse"], name
            if isinstance(features, Sparse):
                assert features.shape == (5,)
                features = features.dense()
            assert features.dtype == given["dtype"] and features.tolist() == given["features"][number], name
            if given["label"] is None:
                assert "label" not in sample
            else:
                assert sample["label"].dtype == given["label_dtype"]
                assert sample["label"].tolist() == [given["label"][number]]
        if name == "dense-float32.pbr":  # integers take more bytes where they are negative
            batch = form.batch(records)
            assert batch is not None and batch["features"].tolist() == given["features"]
            assert batch["label"].tolist() == [[label] for label in given["label"]]
