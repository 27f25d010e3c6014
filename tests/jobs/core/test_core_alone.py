"""The core without the other wings: its wheel alone, in an environment that has psutil and pyyaml and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import psutil
import pytest
import yaml

from support.paths import ROOT
from support.wheels import CORE_TESTS, own_wheel
from trainshed.base.wings import WINGS

SCRIPT = (
    "import os, json\nprint('lr is', json.loads(os.environ['SM_HPS'])['lr'])\nopen(os.environ['SM_MODEL_DIR'] + '/m', 'w')\n"
)


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with the core's wheel."""
    folder = tmp_path_factory.mktemp("core")
    wheel = own_wheel(folder, without=WINGS)
    venv.create(folder / "venv", symlinks=True)
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    for module in (psutil, yaml):
        home = Path(module.__file__).parent
        (packages / home.name).symlink_to(home)
    words = ["--python", f"{folder}/venv/bin/python", "install", "--quiet", "--no-deps", "--no-index", str(folder / wheel)]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    assert not (packages / "trainshed/studio").exists()
    return folder / "venv/bin"


def trainshed(core: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": f"{core}:{os.environ['PATH']}", "HOME": str(folder)}
    return subprocess.run([core / "trainshed", *words], cwd=folder, env=environ, capture_output=True, text=True)


@pytest.mark.timeout(300)  # the wheel and its environment are made first
@pytest.mark.spine
def test_the_core_alone_runs_a_job_and_shows_it(core: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = trainshed(core, tmp_path, "run", "train.py", "--hp", "lr=0.1", "--name", "first")

    assert done.returncode == 0, done.stderr
    assert "lr is 0.1" in done.stdout + done.stderr
    assert trainshed(core, tmp_path, "status").stdout.startswith("completed")
    assert "lr is 0.1" in trainshed(core, tmp_path, "logs").stdout
    shown = trainshed(core, tmp_path, "--help").stdout
    assert "resume" in shown and "tune" not in shown


def test_what_another_wing_has_is_refused_with_its_name(core: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = trainshed(core, tmp_path, "run", "train.py", "--hp", "lr=1", "--channel", "train=model://digits")

    assert done.returncode == 1
    assert "a channel from model:// needs trainshed.studio" in done.stderr


@pytest.mark.heavy
@pytest.mark.parametrize("part", CORE_TESTS)
def test_the_cores_unit_tests_pass_without_the_other_wings(core: Path, part: str) -> None:
    ours = sysconfig.get_path("purelib")  # of pytest; what it says of trainshed itself is not read there
    code = (
        f"import sys; sys.path.append({ours!r}); import pytest; "
        f"sys.exit(pytest.main(['-q', '-n0', '-p', 'no:cacheprovider', '-o', 'pythonpath=tests', 'tests/unit/{part}']))"
    )
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([core / "python", "-c", code], cwd=ROOT, env=environ, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout[-3000:]
