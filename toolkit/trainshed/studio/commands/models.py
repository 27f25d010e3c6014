"""`trainshed models`: versions of models with their hashes, metrics and stages, in a folder or on S3."""

from __future__ import annotations

import json
import os
import time
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS, EXIT_USER, TrainshedError, one_line, visible
from trainshed.cli import say
from trainshed.cli.parser import Parser, UsageError
from trainshed.cli.which import run_or_none
from trainshed.contract.wire.variables import MODEL_STORE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainshed.studio.models.store import ModelStore
    from trainshed.studio.models.version import Version

_ANY = "NAME (the newest version), NAME:VERSION or NAME@STAGE"


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = (
        "Keeps versions of models: files with SHA-256, metrics, the run that made them, licence, tags, and stages like "
        "`champion` that point to one version each. A job gets one as a channel: model: model://NAME@champion."
    )
    parser.epilog = (
        f"The store is what --store says, else {MODEL_STORE}, else ~/.local/share/trainshed/models. "
        "docs/models.md describes it."
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="add|ls|show|tag|get|rm|verify|merge")

    def action(name: str, what: str) -> Parser:
        made: Parser = actions.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
        made.add_argument("--store", default="", metavar="PLACE", help="folder or s3://bucket/prefix of the store")
        return made

    add = action("add", "add the model of a run, or a folder, as a new version; the same content is the same version")
    add.add_argument("name", metavar="NAME", help="the model")
    add.add_argument("source", metavar="RUN|FOLDER", help="a run by its name or folder, or a folder with files")
    add.add_argument("--any-status", action="store_true", help="also of a run that failed, was stopped or still runs")
    add.add_argument("--licence", "--license", default="", metavar="TEXT", help="licence of the model, like apache-2.0")
    add.add_argument("--metric", action="append", default=[], metavar="NAME=VALUE", help="a metric (more than one: repeat)")
    _add_changes(add)

    listed = action("ls", "list the models, or the versions of one")
    listed.add_argument("name", nargs="?", default="", metavar="NAME", help="the model")
    listed.add_argument("--json", action="store_true", help="print JSON")

    shown = action("show", "show a version")
    shown.add_argument("version", metavar="VERSION", help=_ANY)
    shown.add_argument("--card", action="store_true", help="print its model card, Markdown")
    shown.add_argument("--json", action="store_true", help="print JSON")

    tagged = action("tag", "change stages, tags and the note of a version")
    tagged.add_argument("version", metavar="VERSION", help=_ANY)
    _add_changes(tagged)
    tagged.add_argument("--drop-stage", action="append", default=[], metavar="STAGE", help="remove a stage of the model")
    tagged.add_argument("--drop-tag", action="append", default=[], metavar="NAME", help="remove a tag of the version")

    got = action("get", "copy a version to a folder and compare its files with their hashes")
    got.add_argument("version", metavar="VERSION", help=_ANY)
    got.add_argument("folder", metavar="FOLDER", help="a new or an empty folder")

    removed = action("rm", "remove versions; their numbers are not given again")
    removed.add_argument("versions", nargs="+", metavar="VERSION", help="NAME:VERSION; NAME with --all, --leftovers")
    removed.add_argument("--force", action="store_true", help="also where a stage points to it")
    removed.add_argument("--all", action="store_true", help="remove all versions of the models")
    removed.add_argument(
        "--leftovers", action="store_true", help="remove what `add`s have left that were killed, after a day"
    )

    verified = action("verify", "read all files and compare them with their hashes; status 1 where one differs")
    verified.add_argument("versions", nargs="*", metavar="VERSION", help=f"{_ANY} (default: every version)")

    about = "write an adapter of fine_tune into the model that it belongs to"
    merged = actions.add_parser("merge", help=about, description=f"{about[0].upper()}{about[1:]}.")
    merged.add_argument("source", metavar="RUN|FOLDER", help="a run by its name or folder, or the folder of the adapter")
    merged.add_argument("folder", metavar="FOLDER", help="a new or an empty folder, for the whole model")
    merged.add_argument("--base", default="", metavar="MODEL", help="the model: a folder, or a name on the hub")


def _add_changes(parser: Parser) -> None:
    parser.add_argument("--stage", action="append", default=[], metavar="STAGE", help="have a stage point to it: champion")
    parser.add_argument("--tag", action="append", default=[], metavar="NAME=VALUE", help="a tag")
    parser.add_argument("--note", default=None, metavar="TEXT", help="a note")


def run(options: Namespace) -> int:
    """Does what is asked for; returns the exit status. Raises TrainshedError, UsageError."""
    if options.action == "merge":  # it keeps nothing
        return _merge(options)
    from trainshed.studio.models.storage import storage_at
    from trainshed.studio.models.store import ModelStore

    store = ModelStore(storage_at(options.store, os.environ))
    actions = {
        "add": _add, "ls": _list, "show": _show, "tag": _tag, "get": _get, "rm": _remove, "verify": _verify,
    }  # fmt: skip
    return actions[options.action](store, options)


def _merge(options: Namespace) -> int:
    from trainshed.studio.models.merge import base_of, merge

    made = run_or_none(options.source, os.path.isdir)
    if made is None:
        return merge(options.source, options.base, options.folder, os.environ, options.source)
    from trainshed.runner.control.model_folder import model_folder

    with model_folder(made) as folder:
        return merge(folder, options.base or base_of(made), options.folder, os.environ, options.source)


def _find(store: ModelStore, text: str) -> Version:
    from trainshed.contract.model_reference import reference_of

    try:
        return store.find(reference_of(text))
    except ValueError as error:
        raise UsageError(str(error)) from None


def _add(store: ModelStore, options: Namespace) -> int:
    from dataclasses import replace

    from trainshed.contract.model_reference import RULE, is_name, is_stage
    from trainshed.studio.models.contents import files_in
    from trainshed.studio.models.version import VersionMetadata

    if not is_name(options.name):
        raise UsageError(f"{options.name!r} is not a valid model name: {RULE}")
    wrong = [stage for stage in options.stage if not is_stage(stage)]
    if wrong:
        raise UsageError(f"{wrong[0]!r} is not a valid stage name: a small letter, then letters, digits, '_' and '-'")
    tags = _pairs(options.tag, "--tag")
    licence, note = one_line(options.licence), options.note or ""
    metrics = {name: _number(name, text) for name, text in _pairs(options.metric, "--metric").items()}
    made = run_or_none(options.source, os.path.isdir)
    if made is None:
        added = store.add(options.name, files_in(options.source), VersionMetadata(metrics, licence=licence, note=note))
    else:
        from trainshed.runner.control.model_folder import model_folder
        from trainshed.studio.models.model_of_run import facts_of, require_whole

        if not options.any_status:
            require_whole(made)
        facts = facts_of(made)
        facts = replace(facts, metrics={**facts.metrics, **metrics}, licence=licence, note=note)
        with model_folder(made) as folder:
            added = store.add(options.name, files_in(folder), facts)
    version = added.version
    _change(store, version, options.stage, tags, None if added.new else options.note)
    say(f"{version} {'is new' if added.new else 'has this content already'}, in {store.storage.shown}")
    print(version)
    return EXIT_SUCCESS


def _change(store: ModelStore, version: Version, stages: list[str], tags: dict[str, str], note: str | None) -> None:
    for name, value in tags.items():
        store.set_tag(version, name, value)
    if note is not None:
        store.set_note(version, note)
    for stage in stages:
        store.set_stage(version, stage)


def _tag(store: ModelStore, options: Namespace) -> int:
    tags = _pairs(options.tag, "--tag")
    if not (options.stage or tags or options.note is not None or options.drop_stage or options.drop_tag):
        raise UsageError("nothing to change: use --stage, --tag, --note, --drop-stage or --drop-tag")
    version = _find(store, options.version)
    for name in options.drop_tag:
        store.drop_tag(version, name)
    for stage in options.drop_stage:
        store.drop_stage(version.model, stage)
    _change(store, version, options.stage, tags, options.note)
    print(_line(store, version))
    return EXIT_SUCCESS


def _list(store: ModelStore, options: Namespace) -> int:
    from trainshed.contract.model_reference import RULE, is_name
    from trainshed.studio.models.card import plain

    if options.name and not is_name(options.name):
        raise UsageError(f"{options.name!r} is not a valid model name: {RULE}")
    names = [options.name] if options.name else store.models()
    rows: list[tuple[str, ...]] = []
    told: list[dict[str, Any]] = []
    status = EXIT_SUCCESS
    for name in names:
        good, damaged = store.versions(name)
        if options.name and not good and not damaged:
            _find(store, name)  # says what there is instead
        stages = store.stages(name)
        for number, why in damaged.items():
            say(f"{name}:{number} is damaged: {why}")
            status = EXIT_USER
        newest = good if options.name else good[-1:]
        for version in newest:
            pointing = [stage for stage, number in stages.items() if number == version.number]
            shown = pointing if options.name else [f"{stage}:{number}" for stage, number in stages.items()]
            made = version.facts.run.get("name", "")
            rows.append((str(version), ",".join(shown) or "-", *_facts(version), str(made or "-")))
            told.append(plain(store, version))
    if options.json:
        print(json.dumps(told, indent=2))
    elif rows:
        print(_table([("VERSION", "STAGES", "FILES", "SIZE", "ADDED", "METRICS", "RUN"), *rows]), end="")
    else:
        say(f"there are no models in {store.storage.shown}: trainshed models add NAME RUN adds one")
    return status


def _facts(version: Version) -> tuple[str, ...]:
    from trainshed.base.units import size

    metrics = " ".join(f"{name}={value:.5g}" for name, value in list(version.facts.metrics.items())[:3])
    added = time.strftime("%Y-%m-%d %H:%M", time.gmtime(version.created))
    return str(len(version.files)), size(version.size), added, metrics or "-"


def _table(rows: list[tuple[str, ...]]) -> str:
    shown = [tuple(one_line(cell)[:60] for cell in row) for row in rows]
    widths = [max(len(row[column]) for row in shown) for column in range(len(shown[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown]
    return "".join(f"{line}\n" for line in lines)


def _line(store: ModelStore, version: Version) -> str:
    from trainshed.studio.models.card import plain

    found = plain(store, version)
    parts = [str(version), *(f"@{stage}" for stage in found["stages"]), *(f"{k}={v}" for k, v in found["tags"].items())]
    return one_line(" ".join(parts) + (f" ({found['note']})" if found["note"] else ""))


def _show(store: ModelStore, options: Namespace) -> int:
    if options.card and options.json:
        raise UsageError("use one of --card and --json")
    from trainshed.studio.models.card import card_of, plain

    version = _find(store, options.version)
    if options.json:
        print(json.dumps(plain(store, version), indent=2))
    elif options.card:
        print(visible(card_of(store, version)), end="")
    else:
        from trainshed.base.units import size

        facts = version.facts
        rows = [("version", _line(store, version)), ("content", version.content)]
        rows += [("run", f"{facts.run['name']} ({facts.run.get('id', '')})")] if facts.run.get("name") else []
        rows += [("licence", facts.licence)] if facts.licence else []
        rows += [(f"metric {name}", f"{value:.6g}") for name, value in facts.metrics.items()]
        rows += [(one.name, f"{size(one.size)}  {one.sha256}") for one in version.files[:50]]
        rows += [("...", f"and {len(version.files) - 50:,} more files")] if len(version.files) > 50 else []
        width = min(40, max(len(name) for name, _ in rows))
        print("".join(f"{one_line(name):<{width}}  {one_line(value)}\n" for name, value in rows), end="")
    return EXIT_SUCCESS


def _get(store: ModelStore, options: Namespace) -> int:
    from trainshed.studio.models.card import FILE, card_of

    version = _find(store, options.version)
    store.get(version, options.folder, {FILE: card_of(store, version)})
    say(f"{version}: {_counted(version)}, compared with the hashes, in {options.folder}")
    return EXIT_SUCCESS


def _remove(store: ModelStore, options: Namespace) -> int:
    from trainshed.contract.model_reference import reference_of

    if options.all and options.leftovers:
        raise UsageError("use one of --all and --leftovers")
    try:
        references = [reference_of(text) for text in options.versions]
    except ValueError as error:
        raise UsageError(str(error)) from None
    for reference in references:
        if (options.all or options.leftovers) and (reference.number or reference.stage):
            raise UsageError(f"{reference} is a version: --all and --leftovers take the name of a model")
        if not (options.all or options.leftovers or reference.number):
            raise UsageError(f"{reference} is not one version for ever: name it as {reference.name}:NUMBER, or use --all")
    for reference in references:
        if options.leftovers:
            print(f"{reference}: {store.remove_leftovers(reference.name, time.time())} leftovers removed")
            continue
        versions = store.versions(reference.name)[0] if options.all else [store.find(reference)]
        if not versions:
            store.find(reference)  # says what there is instead
        for version in versions:
            store.remove(version, force=options.force)
            print(f"{version} removed")
    return EXIT_SUCCESS


def _verify(store: ModelStore, options: Namespace) -> int:
    problems: list[str] = []
    versions = [_find(store, text) for text in options.versions]
    models = [] if versions else store.models()
    for name in models:
        good, damaged = store.versions(name)
        versions += good
        problems += [f"{name}:{number} is damaged: {why}" for number, why in damaged.items()]
        known = {version.number for version in good} | damaged.keys()
        problems += [
            f"the stage {stage} of {name} points to {name}:{number}, which is gone"
            for stage, number in store.stages(name).items()
            if number not in known
        ]
    for version in versions:
        found = store.verify(version)
        problems += found
        if not found:
            print(f"{version} is as it was added: {_counted(version)}")
    for problem in problems:
        say(problem)
    for name in models:
        if left := store.leftovers(name, time.time()):
            say(f"{name}: {len(left)} `add`s that were killed have left files: trainshed models rm --leftovers {name}")
    return EXIT_USER if problems else EXIT_SUCCESS


def _counted(version: Version) -> str:
    return "1 file" if len(version.files) == 1 else f"{len(version.files):,} files"


def _pairs(given: list[str], flag: str) -> dict[str, str]:
    from trainshed.contract.model_reference import RULE, is_name

    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{flag} {text}: must be NAME=VALUE")
        if flag == "--tag" and not is_name(name):
            raise UsageError(f"{flag} {text}: {name!r} is not a valid tag name: {RULE}")
        found[name] = value
    return found


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < float("inf"):
        raise TrainshedError(f"--metric {name}={text}: must be a finite number")
    return value
