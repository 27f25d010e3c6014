"""Which folders of whole jobs a change reaches: each names the rooms of the toolkit that it is about.

`python -m support.gate.areas COMMIT` prints what the change since that commit reaches, one folder a line.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from support.import_graph import PACKAGE, file_arrows, reverse_closure
from support.paths import ROOT

TESTS = ROOT / "tests"
SUPPORT = TESTS / "support"
# Folders below tests/, and what they are about: rooms and modules below toolkit/trainshed, or files and folders of the
# checkout, which begin with "/". A change reaches a folder when something it is about has changed, or imports what has.
AREAS: dict[str, tuple[str, ...]] = {
    "clients": (
        *("container/main.py", "container/intermediate", "compat/sagemaker_training_api", "studio/tracking"),
        "data/pipe_stream.py",
        *("/images/", "/Dockerfile.cpu"),
    ),
    "faults": (
        *("container/attempts.py", "container/supervisor", "container/hangs", "container/roster", "container/restarts.py"),
        "checkpoint",
    ),
    "frameworks": ("container/launchers", "/.ci/frameworks"),
    "fuzz": ("base/reader.py", "data/formats", "contract"),
    "hostile": ("parallel",),
    "images": (
        *("container/main.py", "container/program", "places"),
        *("/images/", "/Dockerfile.cpu", "/toolkit/train", "/examples/byoc/"),
    ),
    "jobs/algorithms": ("algorithms",),
    "jobs/catalogue": ("studio/catalogue",),
    "jobs/checkpoint": ("checkpoint", "autopatch"),
    "jobs/compiler": ("compiler", "container/compiler"),
    "jobs/core": ("base/wings.py", "cli/commands.py", "/pyproject.toml"),
    "jobs/costs": ("container/main.py", "metrics", "data/formats/lines.py", "/benchmarks/instructions.py"),
    "jobs/data": ("data", "container/data_seen.py"),
    "jobs/docs": ("cli", "studio/commands", "runner/tools", "/docs/", "/README.md", "/examples/"),
    "jobs/elastic": ("container/roster", "container/launchers"),
    "jobs/entrypoints": ("algorithms", "contract/ready_programs.py", "/entrypoints/"),
    "jobs/examples": ("/examples/",),
    "jobs/hangs": ("container/hangs", "container/sampling"),
    "jobs/horovod": ("compat/horovod_api",),
    "jobs/isolation": ("machine/isolation.py", "container/supervisor"),
    "jobs/kubernetes": ("places/kubernetes",),
    "jobs/launchers": ("container/launchers", "container/cluster", "container/drivers", "/examples/plugins/distribution/"),
    "jobs/lineage": ("studio/lineage",),
    "jobs/metrics": ("metrics", "container/metrics_watch.py"),
    "jobs/models": ("studio/models",),
    "jobs/mpi": ("container/launchers",),
    "jobs/notices": ("container/notices",),
    "jobs/parallel": ("parallel", "compat/smdistributed"),
    "jobs/parameter_server": ("container/launchers", "container/cluster"),
    "jobs/profiler": ("observe", "container/sampling", "container/slow_ranks.py", "runner/state/run_goodput.py"),
    "jobs/program": ("container/program", "container/intermediate"),
    "jobs/ray": ("places/ray",),
    "jobs/report": ("container/report", "studio/pages"),
    "jobs/restarts": ("container/restarts.py", "container/shared_restarts.py", "container/attempts.py"),
    "jobs/roster": ("container/roster", "container/doctor"),
    "jobs/rules": ("studio/rules", "container/rules_watch.py", "/examples/plugins/rule/"),
    "jobs/runner": (
        *("runner", "cli", "studio/commands", "container/demo.py", "/examples/plugins/place/", "/examples/plugins/source/"),
    ),
    "jobs/slurm": ("places/slurm",),
    "jobs/ssh": ("places/ssh",),
    "jobs/steps": ("studio/steps", "studio/batches"),
    "jobs/supervisor": ("container/supervisor", "container/parent_death.py", "machine/console.py", "machine/streams.py"),
    "jobs/tracking": ("studio/tracking",),
    "jobs/tune": ("studio/tune", "studio/batches"),
    "jobs/ui": ("studio/ui",),
    "jobs/warm_start": ("container/warm_start", "container/attempts.py", "container/supervisor"),
    "xla": ("compiler/xla.py", "/.ci/xla"),
}  # fmt: skip


def changed_files(commit: str) -> set[Path]:
    """Files that differ from that commit: committed, not yet committed, and new. Raises SystemExit where git refuses."""
    names: set[str] = set()
    for words in (["diff", "--name-only", "--no-renames", commit], ["ls-files", "--others", "--exclude-standard"]):
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"git cannot tell what changed since {commit}: {done.stderr.strip()}")
        names |= set(done.stdout.split("\n")) - {""}
    return {ROOT / name for name in names}


def reached(changed: set[Path]) -> list[str]:
    """The folders that are about something that these files reach, sorted."""
    arrows, ours = file_arrows(), {path for path in changed if PACKAGE in path.parents}
    # Python runs a package's __init__ before any module below it, which no import says.
    inits = [path.parent for path in ours if path.name == "__init__.py" and path.parent != PACKAGE]
    files = reverse_closure(arrows, {*ours, *(path for path in arrows if path.parent in inits)})
    return sorted(about(files | changed))


def helped(changed: set[Path]) -> list[str]:
    """The folders whose tests are helped by one of these files: a helper beside them, or a module of tests/support."""
    helpers = {path for path in changed if not path.name.startswith("test_")}
    beside = {area for area in AREAS if any(TESTS / area in path.parents for path in helpers)}
    return sorted(beside | _of_support(helpers))


def about(files: Iterable[Path]) -> set[str]:
    """The folders that are about one of these files."""
    files = list(files)
    return {area for area, rooms in AREAS.items() if any(within(path, room) for room in rooms for path in files)}


def within(path: Path, room: str) -> bool:
    """Whether a file is this room or lies in it; `room` as in `AREAS`."""
    whole = ROOT / room.strip("/") if room.startswith("/") else PACKAGE / room
    return path == whole or whole in path.parents


def _of_support(changed: set[Path]) -> set[str]:
    """The folders that import a changed module of tests/support, directly or by way of others there."""
    texts = {path: path.read_text() for path in SUPPORT.glob("*.py")}
    found = {path.stem for path in changed if path.parent == SUPPORT}
    while more := {path.stem for path, text in texts.items() if _imports(text, found)} - found:
        found |= more
    return {area for area in AREAS if any(_imports(path.read_text(), found) for path in (TESTS / area).rglob("*.py"))}


def _imports(text: str, names: set[str]) -> bool:
    words = "|".join(map(re.escape, sorted(names)))
    return bool(names) and re.search(rf"\bsupport\.({words})\b|from support import .*\b({words})\b", text) is not None


if __name__ == "__main__":
    print("\n".join(reached(changed_files(*sys.argv[1:]))))
