"""The tables in docs/ and of the ready programs, made from the code; `python tests/support/doc_tables.py` writes them anew.

A table stands between `<!-- table: NAME -->` and `<!-- end of table -->`; tests/unit/test_doc_tables.py compares it with
what is made here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "toolkit"), str(ROOT / "tests")]

from support import combinations, reference_job  # noqa: E402 (after the path is set)
from support.peer_differences import DIFFERENCES  # noqa: E402
from support.reference_api import api_text  # noqa: E402
from support.reference_commands import commands_text  # noqa: E402
from support.spine import place_rows, rows  # noqa: E402
from support.stub import PATH as STUB  # noqa: E402
from support.stub import stub_text  # noqa: E402
from support.tutorials import TUTORIALS, shown  # noqa: E402
from trainshed.algorithms import ENDING  # noqa: E402
from trainshed.algorithms.about import hyperparameter_table  # noqa: E402
from trainshed.algorithms.built_in import BUILT_IN  # noqa: E402
from trainshed.algorithms.declaration import read  # noqa: E402
from trainshed.base.errors import EXIT_TABLE  # noqa: E402 (after the path is set)
from trainshed.contract.settings import CHOICES, RANGES, Settings  # noqa: E402
from trainshed.contract.wire import variables  # noqa: E402
from trainshed.contract.wire.rules import ON_MACHINE, ON_METRICS, ON_TENSORS  # noqa: E402
from trainshed.runner.job.places import BUILT_IN as BUILT_IN_PLACES  # noqa: E402
from trainshed.runner.job.places import Can  # noqa: E402
from trainshed.runner.job.schema_json import KINDS  # noqa: E402
from trainshed.runner.job.schema_json import text as schema_text  # noqa: E402
from trainshed.runner.tools import chaos  # noqa: E402
from trainshed.studio.catalogue.tables import FACTS  # noqa: E402
from trainshed.studio.rules.watching import OURS  # noqa: E402

BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end of table -->\n)", re.DOTALL)


PAGE = re.compile(r"docs/([\w-]+)\.md")


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def variables_table() -> str:
    """The variables that pass between the programs of trainshed."""
    rows = ((f"`{name}`", *rest) for name, *rest in variables.TABLE)
    return table(("variable", "set by", "read by", "holds"), rows)


def settings_table() -> str:
    """The settings of a job: values, default, and the meaning that their docstring gives them."""
    rows = []
    for name, meaning in field_texts(Settings.__doc__ or "").items():
        choices = ", ".join(f"`{choice}`" for choice in CHOICES.get(name, ()) if choice)
        low, high = RANGES.get(name, ("", ""))
        default = getattr(Settings, name)
        shown = f"`{default:g}`" if isinstance(default, float) else f"`{default}`" if default != "" else ""
        values = choices or (f"{low} to {high}" if name in RANGES else "text")
        rows.append((f"`{name}`", values, shown, PAGE.sub(r"[\1.md](\1.md)", meaning.removesuffix("."))))
    assert [row[0] for row in rows] == [f"`{name}`" for name in Settings._fields], "the docstring has to name all fields"
    return table(("name", "values", "default", "meaning"), rows)


def rules_table() -> str:
    """The rules: what each looks at, its parameters, and when it fires, as its docstring says it."""
    rows = []
    for looks_at, rules in (("metrics", ON_METRICS), ("the machine", ON_MACHINE), ("tensors", ON_TENSORS)):
        for name, parameters in rules.items():
            text = " ".join((OURS[name].__doc__ or "").split()).removesuffix(".")
            rows.append((f"`{name}`", looks_at, text, ", ".join(f"`{key}` {value:g}" for key, value in parameters.items())))
    return table(("rule", "looks at", "fires when", "parameters"), rows)


def field_texts(docstring: str) -> dict[str, str]:
    """The `name: text` paragraphs of a docstring, on one line each."""
    texts: dict[str, str] = {}
    for line in docstring.splitlines():
        if match := re.match(r" {4}(\w+): (.+)", line):
            name = match[1]
            texts[name] = match[2]
        elif texts and line.startswith(" " * 8):
            texts[name] += f" {line.strip()}"
    return texts


def places_table() -> str:
    """What each place can do."""
    places = [place for place in BUILT_IN_PLACES.values() if place.acts]
    rows = [
        (f"`{name}`", meaning, *("yes" if getattr(place.can, name) else "" for place in places))
        for name, meaning in field_texts(Can.__doc__ or "").items()
    ]
    assert [row[0] for row in rows] == [f"`{name}`" for name in Can._fields], "the docstring has to name all abilities"
    return table(("ability", "what it is", *(f"`{place.name}`" for place in places)), rows)


def exit_status_table() -> str:
    """The exit statuses of `train`."""
    return table(("status", "meaning", "kind"), EXIT_TABLE)


def peer_differences_table() -> str:
    """Where a job means something else than to Amazon's toolkit, on purpose."""
    rows = ((one.name, one.peer, one.ours, one.why, f"`{one.test.partition('::')[0]}`") for one in DIFFERENCES)
    return table(("difference", "sagemaker-training", "trainshed", "why", "test, below `tests/`"), rows)


def facts_table() -> str:
    """What every run may be asked for in the catalogue."""
    return table(("fact", "kind", "what it is"), ((f"`{name}`", fact.kind, fact.meaning) for name, fact in FACTS.items()))


def built_in_table() -> str:
    """The platform's built-in algorithms, and what does their work here."""
    rows = ((one.name, f"`{one.program}`" if one.program else "not served", one.instead) for one in BUILT_IN)
    return table(("the platform's", "here", "what is different, or what to use"), rows)


PYTHON = ROOT / "docs/evidence/python"
PEERS = ("trainshed", "sagemaker", "ray", "submitit", "kubeflow")


def python_tasks_table() -> str:
    """How many lines five tasks take with each library: `task:` begins one, `Not served` says that there is no way."""
    scripts = [re.split(r"^# task: (.*)\n", (PYTHON / f"with_{name}.py").read_text(), flags=re.MULTILINE) for name in PEERS]
    rows = []
    for number in range(1, len(scripts[0]), 2):
        assert len({script[number] for script in scripts}) == 1, "the same tasks in each script"
        rows.append((scripts[0][number], *(_lines(script[number + 1]) for script in scripts)))
    return table(("task", *(f"[{name}](python/with_{name}.py)" for name in PEERS)), rows)


def _lines(text: str) -> str:
    count = sum(bool(line.strip()) and not line.strip().startswith("#") for line in text.splitlines())
    return f"{count}, not served" if "# Not served" in text else str(count)


def program_table(name: str) -> Callable[[], str]:
    """The hyperparameters that a ready program declares."""

    def made() -> str:
        return hyperparameter_table(read(str(ROOT / "entrypoints" / f"{name}{ENDING}"))) + "\n"

    return made


PROGRAMS = sorted(path.name.removesuffix(ENDING) for path in (ROOT / "entrypoints").glob(f"*{ENDING}"))
TABLES: dict[str, Callable[[], str]] = {
    "api": api_text,
    "commands": commands_text,
    **reference_job.TABLES,
    "built_in": built_in_table,
    "chaos": lambda: table(("kind", "what it does"), ((f"`{name}`", kind.does) for name, kind in chaos.KINDS.items())),
    "combinations": lambda: table(("together", "verdict", "why", "what to do"), combinations.refused_rows()),
    "combined_pairs": lambda: table(
        ("feature", "trained with", "goes with, untried", "never with"), combinations.pair_rows()
    ),
    "combined_tests": lambda: table(("test, below `tests/`", "trains together"), combinations.test_rows()),
    "exit_status": exit_status_table,
    "facts": facts_table,
    "peer_differences": peer_differences_table,
    "places": places_table,
    "settings": settings_table,
    "spine": lambda: table(("whole jobs", "tests, below `tests/`"), rows()),
    "spine_places": lambda: table(("place", "one process", "torch.distributed, one host", "many hosts"), place_rows()),
    "python_tasks": python_tasks_table,
    "rules": rules_table,
    "variables": variables_table,
    **{name: program_table(name) for name in PROGRAMS},
    **{f"tutorial_{path.stem.replace('-', '_')}": partial(shown, path) for path in TUTORIALS},
}


def refreshed(page: str) -> str:
    """The page's text with its tables made anew."""
    return BLOCK.sub(lambda match: f"{match[1]}{TABLES[match[2]]()}{match[3]}", page)


def pages() -> list[Path]:
    """The pages that hold such tables."""
    return [
        path
        for path in [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "entrypoints/README.md"]
        if BLOCK.search(path.read_text())
    ]


if __name__ == "__main__":
    for page in pages():
        page.write_text(refreshed(page.read_text()))
    STUB.write_text(stub_text())
    for kind in KINDS:
        (ROOT / f"docs/{kind}.schema.json").write_text(schema_text(kind))
