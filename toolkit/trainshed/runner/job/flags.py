"""`trainshed run`: the command line, alone or on top of a job file."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

from trainshed.base.errors import JobError, Problem, did_you_mean
from trainshed.contract.hyperparameters import SpelledFloat, decode_value

from .fields import Field, every
from .job import Job
from .nodes import Node, scalar

_ENDINGS = (".yaml", ".yml", ".json")
_GROUPS = {"job": "the job", "place": "where it runs", "course": "how it goes"}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, with the nearest flag for one that does not exist."""
        self.exit(2, f"trainshed run: {message}; see `trainshed run --help`\n")


def parser() -> argparse.ArgumentParser:
    """The parser of `trainshed run`."""
    made = _Parser(
        prog="trainshed run",
        usage="trainshed run JOB.yaml|SCRIPT [options]",
        description="Runs a training job here: as processes of this machine, or as containers of an image (--image).",
        epilog="Flags win over the job file. Results, logs and status.json go to runs/NAME-TIME/. Exit status: the "
        "job's own; 130 after Ctrl-C, 124 when --max-runtime is over, 2 if the job cannot be read, 69 without Docker.",
        allow_abbrev=False,
    )
    made.add_argument("what", nargs="?", default="", metavar="JOB.yaml|SCRIPT", help="a job file, or the training script")
    groups = {name: made.add_argument_group(title) for name, title in _GROUPS.items()}
    for field, row in every():
        if row.flags:
            more: dict[str, Any] = {"action": "append", "default": []} if row.kind == "mapping" else {}
            name = row.metavar or row.name.upper()
            groups[row.group].add_argument(*row.flags, dest=field, metavar=name, help=row.flag_help or row.help, **more)
    where, rest = groups["place"], groups["course"]
    where.add_argument("--on", metavar="PLACE", help="here (default), or slurm: submit it with sbatch, and follow it")
    slurm = "with --on slurm: one more option of sbatch, like partition=gpu; --detach submits and returns"
    where.add_argument("--sbatch", metavar="NAME=VALUE", help=slurm)
    where.add_argument("--no-image", action="store_true", help="processes, although the job file names an image")
    largest = "first find the largest value of this hyperparameter that fits into memory, by short runs of the job"
    rest.add_argument("--find-batch-size", metavar="NAME", help=largest)
    rest.add_argument("--scale-lr", metavar="NAME", help="with it: scale this hyperparameter, the learning rate, linearly")
    rest.add_argument("--detach", action="store_true", help="go on in the background; see trainshed ps, logs, attach, stop")
    rest.add_argument("--dry-run", action="store_true", help="print what would be run, and make nothing")
    return made


class Asked(NamedTuple):
    """What a command line asks for."""

    job: Job
    dry_run: bool = False
    detach: bool = False


def job_of(arguments: list[str], environ: Mapping[str, str]) -> Asked:
    """What a command line asks for.

    Raises:
        JobError: something is wrong in the job file or the flags.
        SystemExit: the command line itself is wrong, or asks for help.
    """
    made = parser()
    options, unknown = made.parse_known_args(arguments)
    if unknown:
        known = [flag for action in made._actions for flag in action.option_strings]
        near = did_you_mean(unknown[0].partition("=")[0], known)
        made.error(f"does not take {unknown[0]!r}" + (f" ({near})" if near else ""))
    from . import read  # after --help

    problems: list[Problem] = []
    values: dict[str, Node] = {}
    origin, name = "trainshed run", ""
    extra: dict[str, Any] = {}
    if options.what.endswith(_ENDINGS):
        from .yamlfile import read_nodes

        origin = options.what
        name = os.path.splitext(os.path.basename(options.what))[0]
        root = read_nodes(options.what, problems)
        values = dict(root.value) if root else {}
        if root is None:
            raise JobError(problems)
        from .request import is_request, translate

        if is_request(values):
            values, extra = translate(values, problems)
    elif options.what:
        values["program"] = _node(options.what, "the command line")
    if options.no_image:
        values = {field: node for field, node in values.items() if field not in ("image", "entrypoint", "arguments")}
    if options.name:
        extra.pop("full_name", None)
    values = read.expanded(values)
    _add_flags(values, vars(options), environ, problems)
    job = read.check(values, environ, origin, name, problems)
    if problems:
        raise JobError(read.in_order(problems))
    return Asked(replace(job, **extra), options.dry_run, options.detach)


def _add_flags(
    values: dict[str, Node],
    options: dict[str, Any],
    environ: Mapping[str, str],
    problems: list[Problem],
) -> None:
    """Puts what the flags say over what the file says."""
    for field, row in every():
        if not row.flags:
            continue
        if row.kind == "mapping":
            for pair in options[field]:
                _add_pair(values, row, pair, environ, problems)
        elif options[field] is not None:
            _put(values, field, _node(str(options[field]), row.flags[0]))


def _add_pair(
    values: dict[str, Node],
    row: Field,
    pair: str,
    environ: Mapping[str, str],
    problems: list[Problem],
) -> None:
    """Sets one entry of a mapping from NAME=VALUE."""
    flag = row.flags[0]
    name, equals, text = pair.partition("=")
    if not equals and row.name == "environment" and name in environ:
        equals, text = "=", environ[name]
    if not equals or not name:
        problems.append(Problem(flag, "must be NAME=VALUE", value=pair))
        return
    if row.of == "any":
        value = _hyperparameter(text)
    elif row.of == "text":
        value = Node(text, flag, os.getcwd(), text)
    else:
        value = _node(text, flag)
    _put(values, f"{row.name}.{name}", value)


def _put(values: dict[str, Node], field: str, node: Node) -> None:
    outer, dot, inner = field.partition(".")
    if not dot:
        values[outer] = node
        return
    present = values.get(outer)
    held = dict(present.value) if present is not None and isinstance(present.value, dict) else {}
    if present is not None and present.value is not None and not isinstance(present.value, dict):
        return  # the file has something else there, which is a problem of its own
    if outer == "channels" and inner in held and isinstance(held[inner].value, dict):
        node = Node({**held[inner].value, "path": node}, node.where, node.folder)
    held[inner] = node
    where = present.where if present is not None else node.where
    values[outer] = Node(held, where, node.folder)


def _node(text: str, flag: str) -> Node:
    return Node(scalar(text), flag, os.getcwd(), text)


def hyperparameter_of(text: str) -> Any:
    """The value that `--hp K=text` gives."""
    return _hyperparameter(text).plain()


def _hyperparameter(text: str) -> Node:
    """JSON where it is JSON (so `"07"` in quotes is text, `[1, 2]` a list), else text."""
    value = decode_value(text)
    if isinstance(value, (dict, list)) or (isinstance(value, str) and value != text):
        return _tree(value)
    return Node(value if isinstance(value, (bool, int, SpelledFloat)) or value is None else text, "--hp", text=text)


def _tree(value: object) -> Node:
    if isinstance(value, dict):
        return Node({name: _tree(item) for name, item in value.items()}, "--hp")
    if isinstance(value, list):
        return Node([_tree(item) for item in value], "--hp")
    return Node(value, "--hp", text=str(value))


def main(arguments: list[str]) -> int:
    """`trainshed run`."""
    batch = rate = ""
    if any(word.startswith(("--find-batch-size", "--scale-lr")) for word in arguments):
        from ..tools.batch_size import flags_of

        batch, rate, arguments = flags_of(arguments)
    asked = job_of(arguments, os.environ)
    if batch and not asked.dry_run:
        from ..tools.batch_size import run_fitted

        return run_fitted(asked.job, batch, rate)
    if asked.detach and not asked.dry_run:
        from ..control.detached import start

        print(start(asked.job, os.environ).name)
        return 0
    from ..control.execution import run_job

    return run_job(asked.job, os.environ, dry_run=asked.dry_run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
