"""What data a run saw: from the folder to the record, the status, and the comparison of two runs."""

from __future__ import annotations

import json
import os
from pathlib import Path

from support.runner_project import Project
from trainshed.machine.fingerprint import of_folder

READ = """\
import os
folder = os.environ["SM_CHANNEL_PIPED"]
print(len(open(folder + "_0", "rb").read()), flush=True)
"""
JOB = """\
program: train.py
source_dir: src
channels:
  train: data
  piped: {path: data, input_mode: Pipe}
  fast: {path: data, input_mode: FastFile}
  found: data/*.csv
"""


def run(project: Project, name: str, *options: str) -> Path:
    done = project.trainshed("run", "job.yaml", "--output", name, *options)
    assert done.status == 0, done.output
    return project.folder / name


def test_a_run_tells_what_data_it_saw_however_the_data_came(project: Project) -> None:
    project.write({"src/train.py": READ, "job.yaml": JOB, "data/a.csv": "1\n", "data/b.csv": "2\n"})
    digest = of_folder(str(project.folder / "data")).digest

    first, second = run(project, "first"), run(project, "second", "--instances", "2")
    project.write({"data/b.csv": "3\n"})
    third = run(project, "third")
    fourth = run(project, "fourth", "--fingerprint", "whole")
    off = run(project, "off", "--fingerprint", "off")

    for folder, hosts in ((first, ["algo-1"]), (second, ["algo-1", "algo-2"])):
        data = json.loads((folder / "status.json").read_text())["Trainshed"]["Data"]
        assert {name: list(held) for name, held in data.items()} == dict.fromkeys(("train", "piped", "fast", "found"), hosts)
        assert {one["digest"] for held in data.values() for one in held.values()} == {digest}
    assert f"  data       piped: {digest} (2 files, 4 B)\n" in project.command("status", os.fspath(second)).stdout
    assert "Data" not in json.loads((off / "status.json").read_text())["Trainshed"]

    told = project.command("compare", *map(os.fspath, (first, second, third, fourth, off)), "--json")
    rows = {row["name"]: row["gains"] for row in json.loads(told.stdout)["rows"]}
    assert [rows[f"data, {name}"] for name in ("train", "piped")] == [["the same", "other data", "not comparable", ""]] * 2
    page = project.command("report", os.fspath(first))
    assert page.status == 0 and digest in (first / "report.html").read_text()
