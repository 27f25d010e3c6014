"""`trainshed run --dry-run`: what would be made and started, printed; secrets masked."""

from __future__ import annotations

import json
import os

from trainshed.base.errors import one_line
from trainshed.base.secrets import mask_mapping, mask_text, mask_value
from trainshed.base.units import duration, size

from ..files.code import survey
from ..files.platform_files import config_files
from ..files.run import Run
from ..job.job import Job
from ..job.references import secrets_of
from .summary import shown


def _code(job: Job) -> list[tuple[str, str]]:
    if not os.path.isdir(job.source_dir):  # an archive, or a place on S3
        return [("code", job.source_dir)]
    source = survey(job.source_dir, [*(channel.path for channel in job.channels), job.output, job.checkpoints])
    what = f"{len(source.files)} file(s), {size(source.size)}, copied for each host"
    return [("code", f"{shown(job.source_dir)}, {what}"), *(("warning", note) for note in source.notes)]


def describe(run: Run, interface: str, commands: list[tuple[str, str]], where: str = "") -> str:
    """The run, its files and each host's command line.

    Args:
        interface: network interface that hosts reach each other by.
        commands: (host, command line), secrets masked.
        where: what the hosts are, "" for containers or processes of this machine.
    """
    job = run.job
    where = where or (f"containers of {job.image}" if job.image else "processes of this machine")
    rows = [
        ("job", run.name),
        ("folder", shown(run.folder)),
        ("hosts", f"{', '.join(job.hosts)}, {where}"),
        ("program", job.program or "the first script that `train` finds"),
    ]
    if job.source_dir:
        rows += _code(job)
    else:
        rows.append(("code", "what the image contains"))
    rows += [("channel", f"{item.name}: {item.input_mode}, {shown(item.path)}") for item in job.channels]
    rows.append(("checkpoints", shown(run.checkpoints) + ("" if job.checkpoints else " (of this run alone)")))
    limit = duration(job.max_runtime_seconds) if job.max_runtime_seconds else "none"
    rows.append(("limits", f"time {limit}, grace after a stop signal {duration(job.grace_seconds)}"))
    secrets = secrets_of(job, {})
    rows += [("variable", f"{name}={value}") for name, value in sorted(mask_mapping(job.environment, secrets).items())]
    host = run.hosts[0]
    for name, value in config_files(job, run.name, host.name, host.base, interface).items():
        rows.append(("file", f"{os.path.join('input/config', name)} {json.dumps(mask_value(value, secrets))}"))
    rows += [("start", f"{name}: {command}") for name, command in commands]
    return "".join(f"{name:<12}{one_line(mask_text(text, secrets))}\n" for name, text in rows)
