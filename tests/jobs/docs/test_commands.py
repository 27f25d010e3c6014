"""Every command of the docs does what a reader expects of it: it ends with 0, in a project like the reader's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.doc_commands import Command, commands
from support.offenders import check_each
from support.paths import DOCS, ROOT, TOOLKIT

# tests/images runs first-five-minutes.md, and compares what is printed.
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in DOCS.glob("*.md") if page.stem != "first-five-minutes"),
    *sorted((DOCS / "reference").glob("*.md")),
    *sorted((DOCS / "from").glob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]
# Commands that are not run, by what they need, and where else that is tested.
ELSEWHERE = {
    r"^pip install": "a package index; .ci/run and images/",
    r"^make\b|benchmarks/|tests/faults": "minutes to hours: targets of the Makefile, benchmarks",
    r"^docker\b|--image\b|check-image|^train ": "an image: tests/images",
    r"^kubectl|\| (kubectl|aws) |&& aws ": "another program",
    r"doctor --cluster|meeting_place": "other machines: tests/jobs/roster, ssh, parallel",
    r"^trainshed ui\b|^trainshed watch(?!.*--once)": "does not end by itself: tests/jobs/ui, report",
    r"export mlflow|export tensorboard": "packages of their own: tests/jobs/tracking",
    r"^trainshed (plan|verify)\b": "torch: tests/jobs/parallel",
    r"examples/(trainer|ddp|pipeline|lightning|parameter_server)": "torch: tests/jobs/examples",
    r"^trainshed profile RUN": "a run that runs: tests/jobs/profiler",
    r"--compiler|--find-batch-size|trainshed.checkpoint ": "torch: tests/jobs/compiler, checkpoint",
    r"run image_classification": "torch: tests/jobs/entrypoints",
    r"^trainshed runs rm": "what other commands of the page show: tests/jobs/runner",
    r"^trainshed data bench": "torch: tests/jobs/data",
    r"^trainshed predict RUN": "a model: docs/predict.md trains one",
    r"^trainshed models merge": "an adapter: tests/jobs/entrypoints",
    r"tune stop|steps stop": "something that runs: tests/jobs/tune, steps",
}
CLUSTER = re.compile(r"trainshed run\b.*--on (?!here)")
# Names that pages use for what is the reader's own.
STAND_INS = (
    (r"^trainshed resume$", "trainshed resume --again"),
    (r"RUN \.\.\.", "RUN"),
    (r"RUN RUN", "RUN OTHER"),
    (r"\[(-[^\]]*)\]", r"\1"),
    (r"\b(native|compiled)-\.\.\.", "RUN"),
    (r"\bdigits-2026[-0-9]*", "RUN"),
    (r"\btag a b c\b", "tag RUN OTHER"),
    (r"\bPLACE\b", "data"),
    (r"/shared/team|\bDIR\b", "runs"),
    (r"\bURI\b|\bFILE\b", "made.txt"),
    (r"digits:2", "digits:1"),
    (r"best\(accuracy\)", "best(loss)"),
    (r"--definitions job.yaml", "--definitions measured.yaml"),
    (r"(kubernetes|sagemaker) job.yaml|job.yaml (?=.*kubernetes)", r"\1 image.yaml "),
    (r"\bFOLDER\b", "made"),
    (r"(?<=report )/opt/ml", "RUN"),
)
TUNE = """\
name: digits
job: job.yaml
search: {lr: {low: 0.01, high: 0.2}}
objective: minimize loss
strategy: random
max_jobs: 2
"""
# What a job needs to go to a cluster or to the service.
AWAY = """\
image: example.org/me/training:1
sagemaker:
  role: arn:aws:iam::123456789012:role/training
  instance_type: ml.m5.large
  output: s3://bucket/models
  code: s3://bucket/code.tar.gz
"""


def elsewhere(command: Command) -> bool:
    """Whether a command is not run here."""
    return any(re.search(pattern, command.text) for pattern in ELSEWHERE)


def test_a_shell_reads_every_command() -> None:
    def check(command: Command) -> None:
        done = subprocess.run(["bash", "-n", "-c", command.text], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr.strip()

    check_each([one for page in PAGES for one in commands(page)], check)


def test_what_is_not_run_here_is_still_in_the_docs() -> None:
    every = [one.text for page in PAGES for one in commands(page)]

    def check(pattern: str) -> None:
        assert any(re.search(pattern, text) for text in every), "no command needs it any more"

    check_each(ELSEWHERE, check)


@pytest.fixture(scope="session")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A reader's project: the files of `trainshed init`, some data, runs, a tuning file, steps."""
    home = tmp_path_factory.mktemp("reader")
    project = home / "project"
    (project / "data").mkdir(parents=True)
    (project / "checkpoints").mkdir()
    (project / "data/rows.csv").write_text(
        "age,income\n" + "".join(f"{20 + n},{'low' if n % 3 else 'high'}\n" for n in range(60))
    )
    shutil.copy(project / "data/rows.csv", project / "adult.csv")
    shutil.copytree(ROOT / "examples/steps", project / "steps")
    (project / "tune.yaml").write_text(TUNE)
    (project / "train.log").write_text("loss='loss': 0.69\n" * 300)
    shell("trainshed init", project)
    job = (project / "job.yaml").read_text()
    (project / "image.yaml").write_text(f"{job}\n{AWAY}")
    (project / "measured.yaml").write_text(job + "\nmetric_definitions: [{Name: loss, Regex: \"'loss': ([0-9.]+)\"}]\n")
    shell("trainshed run job.yaml --name digits --tag group=digits --tag draft=yes", project)
    shell("trainshed run job.yaml --name other", project)
    yield project


def environment(project: Path) -> dict[str, str]:
    """A shell's, in which `trainshed` and `python` are those of this checkout, and everything of a user is in a folder."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
    return {**kept, "PATH": path, "HOME": str(project.parent), "PYTHONPATH": str(TOOLKIT), "OMP_NUM_THREADS": "1"}


def folder_of(command: Command, project: Path) -> Path:
    """Where a reader types it: steps have a folder of their own."""
    steps = command.page.parent.name == "steps" or "trainshed steps" in command.text
    return project / "steps" if steps else project


def shell(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command in bash; it must end with 0."""
    done = subprocess.run(
        ["bash", "-c", text],
        cwd=folder,
        env=environment(folder.parent if folder.name == "steps" else folder),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{text}: exit status {done.returncode}\n{(done.stdout + done.stderr)[-1500:]}"
    return done


def typed(command: Command, project: Path) -> str:
    """The command with the reader's names in it."""
    text = command.text
    for pattern, mine in STAND_INS:
        text = re.sub(pattern, mine, text)
    for word, name in (("RUN", "digits"), ("OTHER", "other")):
        (run,) = [path.name for path in (project / "runs").iterdir() if path.name.startswith(f"{name}-2")]
        text = re.sub(rf"\b{word}\b", run, text)
    return f"{text.partition(' #')[0]} --dry-run" if CLUSTER.search(text) and "--dry-run" not in text else text


@pytest.mark.timeout(300)  # many commands, each a process
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(not elsewhere(one) for one in commands(page))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_commands_of_a_page_work_one_after_the_other(page: Path, reader: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(reader, project, symlinks=True)

    check_each(
        [one for one in commands(page) if not elsewhere(one)],
        lambda one: shell(typed(one, project), folder_of(one, project)),
    )
