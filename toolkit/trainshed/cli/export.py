"""`trainshed export`: a job file as Kubernetes manifests or as a request to SageMaker, on standard output."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import tarfile

from trainshed.base.errors import did_you_mean
from trainshed.base.files import write_atomic
from trainshed.runner.job.flags import job_of
from trainshed.runner.job.job import Job
from trainshed.runner.run import code

TARGETS = ("kubernetes", "sagemaker")
USAGE = """\
usage: trainshed export kubernetes JOB.yaml [--jobset] [options of `trainshed run`]
       trainshed export sagemaker JOB.yaml [--code FILE.tar.gz] [options of `trainshed run`]

Prints what another system needs to run the job: manifests for `kubectl apply -f -`, or a CreateTrainingJob
request for `aws sagemaker create-training-job --cli-input-json`. Nothing is sent. What the job says of the
place is in its mappings `kubernetes` and `sagemaker` (docs/exports.md).

  --jobset   a JobSet instead of an Indexed Job with a headless Service
  --code     also pack the job's code, for S3
"""


def main(arguments: list[str]) -> int:
    """`trainshed export`; the exit status. Raises TrainshedError."""
    if not arguments or arguments[0] in ("--help", "-h") or "--help" in arguments or "-h" in arguments:
        print(USAGE, end="")
        return 0 if arguments else 2
    target = arguments[0]
    if target not in TARGETS:
        near = did_you_mean(target, TARGETS) or f"one of {', '.join(TARGETS)}"
        print(f"trainshed: a job cannot be exported to {target!r} ({near})", file=sys.stderr)
        return 2
    own = argparse.ArgumentParser(prog="trainshed export", add_help=False, allow_abbrev=False)
    own.add_argument("--jobset", action="store_true")
    own.add_argument("--code", default="")
    chosen, rest = own.parse_known_args(arguments[1:])
    job = job_of(rest, os.environ).job
    if target == "kubernetes":
        from trainshed.runner.places.kubernetes import manifests

        objects, notes = manifests(job, jobset=chosen.jobset)
        text = to_yaml(objects)
    else:
        from trainshed.runner.places.sagemaker import request

        if chosen.code:
            pack(job, chosen.code)
        made, notes = request(job)
        text = json.dumps(made, indent=2) + "\n"
    for note in notes:
        print(f"trainshed: {note}", file=sys.stderr)
    print(text, end="")
    return 0


def to_yaml(objects: list[dict[str, object]]) -> str:
    """Several objects as one YAML stream, fields in our order, text of several lines as a block."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:  # `&id001` is for machines
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return yaml.dump_all(objects, Dumper=Dumper, sort_keys=False, explicit_start=True, width=120)  # type: ignore[no-any-return]


def pack(job: Job, path: str) -> None:
    """The job's code as a .tar.gz that is the same for the same code: no times, no owners. Raises ProgramError, OSError."""
    import io

    source = code.survey(job.source_dir, [channel.path for channel in job.channels]) if job.source_dir else code.Source("")
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as squeezed, tarfile.open(fileobj=squeezed, mode="w") as archive:
        for file, name in sorted(source.files, key=lambda pair: pair[1]):
            member = tarfile.TarInfo(name)
            member.size, member.mode = os.path.getsize(file), 0o755 if os.access(file, os.X_OK) else 0o644
            with open(file, "rb") as content:
                archive.addfile(member, content)
    write_atomic(path, packed.getvalue())
