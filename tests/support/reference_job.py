"""Tables of docs/reference/job.md: the fields of jobs, tuning jobs, pipelines of steps, and what a job says of a place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from trainshed.contract.wire.pipeline import PipelineSettings
from trainshed.places import sagemaker
from trainshed.places.kubernetes import cluster_wishes, manifests
from trainshed.places.ray import wishes as ray
from trainshed.places.slurm import script as slurm
from trainshed.places.ssh import wishes as ssh
from trainshed.runner.job.fields import FIELDS, Field
from trainshed.studio.steps import steps_file
from trainshed.studio.tune import tuning_file

Row = tuple[str, ...]
_KINDS = {
    "text": "text", "size": "size, like 8g", "duration": "time, like 10m or 90s", "durations": "durations, like 20s,1.5m",
    "switch": "true or false", "words": "list of texts", "path": "path",
    "folder": "folder", "mapping": "mapping", "record": "mapping",
}  # fmt: skip
# What becomes manifests, beside what `cluster_wishes` reads.
_MANIFESTS = {
    "volumes": "PersistentVolumeClaims by channel: a name, or `{claim, path}`; `code` for large code",
    "output": "claim for the model, below the job's name",
    "checkpoints": "claim for checkpoints (default: the claim of `output`)",
    "secrets": "variables from Secrets of the cluster: `{NAME: {name: SECRET, key: KEY}}`",
    "retries": "starts of the whole job beyond the first (default: the job's `retries`; 3 in an export)",
    "labels": "labels of all objects",
    "annotations": "annotations of the pods",
    "pod": "anything of a pod's spec: merged with ours, lists of named things by name",
    "gpu_resource": "the resource that GPUs are (default: nvidia.com/gpu)",
}
_SAGEMAKER = {
    "role": "ARN of the role that runs the job; needed",
    "instance_type": "type of the hosts; needed",
    "output": "s3:// address for the model; needed",
    "code": "s3:// address of the packed code (`--code` packs it)",
    "channels": "s3:// addresses by channel",
    "checkpoints": "s3:// address for checkpoints",
    "volume_gb": f"disk of each host (default: {sagemaker.DEFAULT_VOLUME})",
    "spot": "whether spot capacity is used",
    "max_wait_seconds": "bound on a spot job with its interruptions (default: twice its own time)",
    "subnets": "of the VPC; with `security_groups`",
    "security_groups": "of the VPC; with `subnets`",
    "tags": "tags of the training job, beside the job's own",
    "keep_alive_seconds": "how long hosts stay for the next job (default: the job's `keep_alive`)",
    "encrypt_traffic": "whether traffic between hosts is encrypted",
    "network_isolation": "whether hosts reach nothing else",
}


def table(heads: Row, rows: Iterable[Row]) -> str:
    """A Markdown table."""
    lines = [heads, ("---",) * len(heads), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def job_table() -> str:
    """The fields of a job file, with their flags and paths in a CreateTrainingJob request."""

    def row(name: str, one: Field) -> Row:
        flags = ", ".join(f"`{flag}`" for flag in one.flags)
        return f"`{name}`", value_of(one), flags, f"`{one.request}`" if one.request else "", _linked(one.help)

    heads = ("field", "value", "flag", "CreateTrainingJob", "meaning")
    return table(heads, (row(name, one) for name, one in _all(FIELDS)))


def fields_table(rows: tuple[Field, ...]) -> str:
    """Fields of another file."""
    return table(("field", "value", "meaning"), ((f"`{name}`", value_of(one), one.help) for name, one in _all(rows)))


def options_table(place: type[Any], more: Mapping[str, str] | None = None, without: Iterable[str] = ()) -> str:
    """What a place's mapping takes: its options as their docstring gives them, and others."""
    texts = {name: text for name, text in item_texts(place.__doc__ or "").items() if name not in without}
    assert texts.keys() == {name for name in default_of(place) if name not in without}, f"{place} has to name all fields"
    rows = [(f"`{name}`", _spelled(default_of(place)[name]), _clean(text)) for name, text in texts.items()]
    return table(
        ("option", "default", "meaning"), [*rows, *((f"`{name}`", "", text) for name, text in (more or {}).items())]
    )


def plain_options_table(texts: Mapping[str, str], known: Iterable[str]) -> str:
    """The same, of a place without defaults."""
    assert texts.keys() == set(known), set(known) ^ texts.keys()
    return table(("option", "meaning"), ((f"`{name}`", text) for name, text in texts.items()))


def kubernetes_table() -> str:
    """Options of `kubernetes`."""
    assert _MANIFESTS.keys() | default_of(cluster_wishes.Options).keys() == set(manifests.FIELDS)
    return options_table(cluster_wishes.Options, _MANIFESTS)


def item_texts(docstring: str) -> dict[str, str]:
    """The `name: text` paragraphs of a docstring, on one line each; `a, b: text` is of both."""
    texts: dict[str, str] = {}
    names: list[str] = []
    for line in docstring.splitlines():
        if re.match(r" {4}\w+(, \w+)*: ", line):
            # `keep: a. drop: b.` are two on one line.
            for match in re.finditer(r"(?:^ {4}|(?<=\. ))(\w+(?:, \w+)*): (.*?)(?=(?<=\. )\w+: |$)", line):
                names = match[1].split(", ")
                texts |= dict.fromkeys(names, match[2])
        elif names and line.startswith(" " * 8):
            texts |= {name: f"{texts[name]} {line.strip()}" for name in names}
    return texts


def default_of(kind: type[Any]) -> dict[str, Any]:
    """The fields of a record or dataclass with their defaults."""
    if not is_dataclass(kind):
        return {name: getattr(kind, name, "") for name in kind._fields}  # type: ignore[attr-defined]
    made = {one.name: one.default_factory() for one in fields(kind) if one.default_factory is not MISSING}
    return {one.name: made.get(one.name, "" if one.default is MISSING else one.default) for one in fields(kind)}


def _all(rows: tuple[Field, ...], prefix: str = "") -> Iterator[tuple[str, Field]]:
    for row in rows:
        yield f"{prefix}{row.name}", row
        between = "NAME." if row.kind == "mapping" else ""
        yield from _all(row.rows, f"{prefix}{row.name}.{between}")


def value_of(row: Field) -> str:
    """What a field may be."""
    if row.kind == "choice":
        return ", ".join(f"`{word}`" for word in row.choices)
    if row.kind in ("whole", "number"):
        words = "".join(f"`{word}` or " for word in row.choices)
        kind = "whole number" if row.kind == "whole" else "number"
        return f"{words}{kind}" + (f", {_bound(row.low)} to {_bound(row.high)}" if row.high < 1e100 else "")
    limit = f", at most {row.most}" if row.most else ""
    if row.short:
        plain = "`true`" if row.short == "true" else f"`{row.short}`"
        return f"{plain}, or a mapping{limit}" if row.kind == "record" else f"mapping{limit}"
    if row.kind == "mapping" and row.pair:
        key, value = row.pair
        return f"mapping{limit}, or a list of `{key}` and `{value}`"
    return _KINDS[row.kind] + (f"{limit} characters" if row.kind == "text" and limit else limit)


def _bound(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _spelled(value: Any) -> str:
    if value in ("", None, (), {}):
        return ""
    return f"`{value:g}`" if isinstance(value, float) else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _clean(text: str) -> str:
    return _linked(text.strip().removesuffix(".")).replace("*", "\\*").replace("<", "&lt;")


def _linked(text: str) -> str:
    return re.sub(r"docs/([\w-]+)\.md", r"[\1.md](../\1.md)", text)


TABLES: dict[str, Callable[[], str]] = {
    "job_fields": job_table,
    "tune_fields": lambda: fields_table(tuning_file.FIELDS),
    "steps_fields": lambda: fields_table(steps_file.FIELDS),
    "slurm_options": lambda: options_table(
        slurm.Options, {"NAME": "an option of sbatch by its long name, like partition: gpu; true for one without a value"},
        without=("sbatch",),
    ),
    "ssh_options": lambda: options_table(ssh.Options),
    "ray_options": lambda: options_table(ray.Options),
    "kubernetes_options": kubernetes_table,
    "sagemaker_options": lambda: plain_options_table(_SAGEMAKER, sagemaker.FIELDS),
    "pipeline_settings": lambda: options_table(PipelineSettings, without=("open",)),
}  # fmt: skip
