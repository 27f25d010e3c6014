"""The programs as modules, and the demo data as channels."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.entrypoints.tables import rows, write_csv
from support.pictures import boxes, drawn, shapes, transformer  # noqa: F401 (fixtures)
from support.programs import Module, module, options, outside_a_job, program, started_here, train  # noqa: F401 (fixtures)
from support.runner_project import project  # noqa: F401 (a fixture)
from support.tuning import data, tune, tuning  # noqa: F401 (fixtures)


@pytest.fixture(scope="session")
def job(tmp_path_factory: pytest.TempPathFactory, module: Module) -> Path:  # noqa: F811
    """A folder with the channels train and test (digits), text/train and text/validation. Not to be written to."""
    root = tmp_path_factory.mktemp("channels")
    demo_data = module("demo_data")
    demo_data.write_digits(root / "digits", "npz")
    demo_data.write_text(root / "text")
    return root


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the channels train (two files) and validation. Not to be written to."""
    root = tmp_path_factory.mktemp("tables")
    features, target = rows()
    write_csv(root / "train" / "a.csv", features[:500], target[:500])
    write_csv(root / "train" / "b.csv", features[500:], target[500:])
    write_csv(root / "validation" / "c.csv", *(part[:300] for part in rows(1)))
    return root
