"""`trainshed export`: a job or a program for Kubernetes or SageMaker; runs for spreadsheets, TensorBoard or MLflow."""

from __future__ import annotations

import json
import os
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS
from trainshed.base.wings import module_of_wing

from . import say
from .parser import Parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from trainshed.runner.job.job import Job


def add_arguments(parser: Parser) -> None:
    """The command line: the place, then what `trainshed run` takes for the job."""
    from trainshed.runner.job.flags import add_flags, add_groups

    parser.description = (
        "kubernetes, sagemaker: prints what another system needs to run a job; nothing is sent (docs/exports.md). "
        "algorithm: the same for a ready program (docs/algorithms.md). "
        "csv, tensorboard, mlflow: hands on what runs have measured (docs/tracking.md)."
    )
    places = parser.add_subparsers(dest="place", metavar="PLACE", required=True)
    kubernetes = places.add_parser(
        "kubernetes", help="manifests for `kubectl apply -f -`",
        usage="trainshed export kubernetes JOB.yaml [options]",
    )  # fmt: skip
    kubernetes.set_defaults(act=_print_manifests)
    add_flags(add_groups(kubernetes))
    kubernetes.add_argument(
        "--jobset", action="store_true",
        help="a JobSet instead of an Indexed Job with a headless Service",
    )  # fmt: skip
    sagemaker = places.add_parser(
        "sagemaker",
        help="a request for `aws sagemaker create-training-job --cli-input-json`",
        usage="trainshed export sagemaker JOB.yaml [options]",
    )
    sagemaker.set_defaults(act=_print_request)
    add_flags(add_groups(sagemaker))
    sagemaker.add_argument("--code", default="", metavar="FILE.tar.gz", help="also pack the job's code, for S3")
    algorithm = places.add_parser(
        "algorithm", help="a request for `aws sagemaker create-algorithm --cli-input-json`",
        usage="trainshed export algorithm NAME --image URI [options]",
    )  # fmt: skip
    algorithm.set_defaults(act=_print_algorithm)
    algorithm.add_argument("name", metavar="NAME|PROGRAM.py", help="of `trainshed algorithms`, or a path")
    algorithm.add_argument("--image", required=True, metavar="URI", help="registry path of the image that has the program")
    algorithm.add_argument(
        "--instance-type", nargs="+", default=["ml.m5.xlarge"], metavar="TYPE", help="on which it trains",
    )  # fmt: skip
    _add_runs(places)


def _add_runs(places: Any) -> None:
    """Places that take runs."""
    table = places.add_parser("csv", help="metrics of runs as a table", usage="trainshed export csv RUN ... [options]")
    table.add_argument("--wide", action="store_true", help="one row a step, one column a metric (default: one row a value)")
    table.add_argument("-o", "--output", default="", metavar="FILE", help="where to (default: standard output)")
    events = places.add_parser(
        "tensorboard", help="metrics of runs as event files",
        usage="trainshed export tensorboard RUN ... -o FOLDER",
    )  # fmt: skip
    events.add_argument("-o", "--output", required=True, metavar="FOLDER", help="gets a folder for each run")
    mlflow = places.add_parser(
        "mlflow", help="runs as runs in MLflow; again, for what is missing there",
        usage="trainshed export mlflow RUN ... [options]",
    )  # fmt: skip
    mlflow.add_argument("--to", default="", metavar="URI", help="MLflow's tracking URI (default: MLFLOW_TRACKING_URI)")
    mlflow.add_argument(
        "--experiment", default="", metavar="NAME", help="default: MLFLOW_EXPERIMENT_NAME, else the job's name"
    )
    mlflow.add_argument("--model", action="store_true", help="also the files of the model, as the artifact `model`")
    for each in (table, events, mlflow):
        each.set_defaults(act=_hand_on)
        each.add_argument("runs", nargs="+", metavar="RUN", help="names of runs, beginnings of names, or folders")


def run(options: Namespace) -> int:
    """Prints the job for the place, or hands on runs; returns the exit status. Raises TrainshedError."""
    act: Callable[[Namespace], int] = options.act
    return act(options)


def _hand_on(options: Namespace) -> int:
    status: int = module_of_wing("studio.commands.export_runs", f"export {options.place}").run(options)
    return status


def _print_algorithm(options: Namespace) -> int:
    from trainshed.algorithms.request import create_algorithm
    from trainshed.algorithms.shelf import find

    algorithm = find(options.name, os.environ)
    print(json.dumps(create_algorithm(algorithm, options.image, options.instance_type), indent=2))
    return EXIT_SUCCESS


def _print_manifests(options: Namespace) -> int:
    from trainshed.places.kubernetes.manifests import manifests, to_yaml

    objects, notes = manifests(_job(options), jobset=options.jobset)
    return _told(to_yaml(objects), notes)


def _print_request(options: Namespace) -> int:
    from trainshed.places.sagemaker import request

    job = _job(options)
    if options.code:
        pack(job, options.code)
    made, notes = request(job)
    return _told(json.dumps(made, indent=2) + "\n", notes)


def _job(options: Namespace) -> Job:
    from trainshed.runner.control.parent import with_parent
    from trainshed.runner.job.flags import job_of

    return with_parent(job_of(options, os.environ), os.environ)


def _told(text: str, notes: list[str]) -> int:
    for note in notes:
        say(note)
    print(text, end="")
    return EXIT_SUCCESS


def pack(job: Job, path: str) -> None:
    """The job's code as a .tar.gz that is the same for the same code: no times, no owners. Raises ProgramError, OSError."""
    import gzip
    import io
    import tarfile

    from trainshed.base.files import write_atomic
    from trainshed.runner.files import code

    source = (
        code.survey(job.source_dir, [channel.path for channel in job.channels]) if job.source_dir else code.CodeFiles("")
    )
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as squeezed, tarfile.open(fileobj=squeezed, mode="w") as archive:
        for file, name in sorted(source.files, key=lambda pair: pair[1]):
            member = tarfile.TarInfo(name)
            member.size, member.mode = os.path.getsize(file), 0o755 if os.access(file, os.X_OK) else 0o644
            with open(file, "rb") as content:
                archive.addfile(member, content)
    write_atomic(path, packed.getvalue())
