"""Where readers that have a host's output folder alone look for its profiler files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainshed.observe.place import profiler_folder


def placed(tree: Path, config: Any) -> str:
    (tree / "input/config").mkdir(parents=True, exist_ok=True)
    (tree / "output").mkdir(exist_ok=True)
    text = config if isinstance(config, str) else json.dumps(config)
    (tree / "input/config/profilerconfig.json").write_text(text)
    return profiler_folder(str(tree / "output")).removeprefix(str(tree))


@pytest.mark.parametrize(
    "parameters",
    [
        {"LocalPath": "/opt/ml/output/elsewhere"},
        {"localpath": "/opt/ml/output/elsewhere"},
        '{"LocalPath": "/opt/ml/output/elsewhere"}',
    ],
)
def test_a_folder_in_the_hosts_tree_is_found(parameters: Any, tmp_path: Path) -> None:
    assert placed(tmp_path, {"ProfilingParameters": parameters}) == "/output/elsewhere"


def test_so_is_one_that_a_process_names_by_its_own_path(tmp_path: Path) -> None:
    assert placed(tmp_path, {"ProfilingParameters": {"LocalPath": f"{tmp_path}/p"}}) == "/p"


@pytest.mark.parametrize("path", ["/tmp", "/opt/ml/../../etc", "/opt/ml/out", "/opt/mlx", "relative", "", "/a\0b", 7, None])
def test_what_leads_out_of_the_tree_is_not_followed(path: Any, tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("/tmp")

    assert placed(tmp_path, {"ProfilingParameters": {"LocalPath": path}}) == "/output/profiler"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"ProfilingParameters": "{"}', '{"ProfilingParameters": [1]}'])
def test_a_damaged_file_says_nothing(text: str, tmp_path: Path) -> None:
    assert placed(tmp_path, text) == "/output/profiler"
    (tmp_path / "input/config/profilerconfig.json").unlink()
    assert profiler_folder(str(tmp_path / "output")) == f"{tmp_path}/output/profiler"
