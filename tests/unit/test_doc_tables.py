"""The tables in docs/ say what the code says."""

from __future__ import annotations

from pathlib import Path

import trainshed.runner
from support.doc_tables import BLOCK, TABLES, pages, refreshed
from support.offenders import check_each
from support.paths import TOOLKIT
from support.reference_api import FACES, names_of, prose
from support.reference_commands import EXAMPLES, commands_text
from support.sources import source_files
from support.stub import PATH as STUB
from support.stub import stub_text


def test_the_pages_tables_are_up_to_date() -> None:
    def check(page: Path) -> None:
        text = page.read_text()
        assert text == refreshed(text), "run: python tests/support/doc_tables.py"

    check_each(pages(), check)


def test_the_types_that_editors_complete_are_up_to_date() -> None:
    assert STUB.read_text() == stub_text(), "run: python tests/support/doc_tables.py"


def test_every_table_is_in_a_page() -> None:
    shown = [match[2] for page in pages() for match in BLOCK.finditer(page.read_text())]

    assert sorted(shown) == sorted(TABLES)


def test_every_public_package_is_in_the_reference_of_names() -> None:
    said = "\n__all__ = ["
    packages = [path.parent for path in source_files() if path.name == "__init__.py" and said in path.read_text()]
    inner = ("compat", "container", "places", "runner.acting")  # names of others, and packages that no script imports
    names = [".".join(path.relative_to(TOOLKIT).parts) for path in packages]
    public = {name for name in names if not name.startswith(tuple(f"trainshed.{one}" for one in inner))}

    modules = ("trainshed.studio.python_api", "trainshed.checkpoint.in_place")
    assert public == {"trainshed", *FACES} - {*modules}
    # Told once, there.
    assert {*trainshed.__all__} == {*trainshed.runner.__all__, *(name for one in modules for name in names_of(one))} - {
        "Batch"
    }
    text = TABLES["api"]()
    for face in FACES:
        for name in names_of(face):
            assert f"\n### {face.removeprefix('trainshed.')}.{name}\n" in text


def test_every_example_of_a_command_is_shown() -> None:
    shown = [line.strip() for line in commands_text().splitlines() if line.startswith("    ")]

    assert sorted(EXAMPLES.values()) == sorted(line for line in shown if line.startswith(("trainshed ", "train ")))


def test_a_docstring_becomes_markdown() -> None:
    doc = "Reads <it>.\n\n    code()\n\nArgs:\n    a, b: what\n        goes on\nReturns:\n    the rest"

    assert prose(doc) == ("Reads &lt;it>.\n\n    code()\n\nArgs:\n\n* `a, b`: what\n  goes on\n\nReturns:\n\n* the rest\n")
