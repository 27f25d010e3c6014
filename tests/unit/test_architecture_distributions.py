"""No code asks a distribution for its name: what it asks is a trait (contract/distributions.py), or the launcher's own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from support.import_graph import PACKAGE, module_files, names_known_to, part_of
from support.offenders import no_offenders
from support.sources import tree_of
from trainshed.container.launchers import LAUNCHERS
from trainshed.contract.distributions import TRAITS

OWN = ("contract/distributions.py", "container/launchers/", "places/ray/")  # the last: the place Ray's
# Inside the user's process nobody knows distributions: words like `pipeline` and `xla` mean other things there.
OTHER_WINGS = ("parallel", "compiler", "autopatch", "compat", "data")
# What is compared here has words of its own, some of which are also names of distributions.
OTHER_WORDS = {"engine": "what starts ranks", "backend": "a compiler", "on": "a place"}
# May only shrink. File and word -> what it means there.
EXCEPTIONS = {
    ("contract/settings.py", "pipeline"): "the setting of this name",
    ("contract/wire/pipeline.py", "horovod"): "a key of Amazon's library",
    ("runner/job/write.py", "mpi"): "a key of SageMaker's form of a distribution",
    ("studio/steps/running.py", "pipeline"): "a pipeline of steps",
    ("studio/steps/step_runs.py", "pipeline"): "a pipeline of steps",
    ("studio/steps/tuning_step.py", "pipeline"): "a pipeline of steps",
    ("studio/commands/steps/__init__.py", "pipeline"): "a pipeline of steps",
}


def asked(tree: ast.AST) -> Iterator[str]:
    """Names of distributions that are compared, looked up, or matched with something."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if not OTHER_WORDS.keys() & {name for side in sides for name in _last_names(side)}:
                yield from (word for side in sides for word in _words(side))
        elif isinstance(node, ast.Dict):
            yield from (word for key in node.keys if key is not None for word in _words(key))
        elif isinstance(node, (ast.Subscript, ast.MatchValue)):
            yield from _words(node.slice if isinstance(node, ast.Subscript) else node.value)


def _words(node: ast.AST) -> Iterator[str]:
    inner = node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else [node]
    yield from (one.value for one in inner if isinstance(one, ast.Constant) and one.value in TRAITS)


def _last_names(node: ast.AST) -> Iterator[str]:
    """`a.b.engine` as `engine`."""
    inner = node.elts if isinstance(node, ast.Tuple) else [node]
    yield from (one.attr for one in inner if isinstance(one, ast.Attribute))
    yield from (one.id for one in inner if isinstance(one, ast.Name))


def found() -> dict[str, set[str]]:
    """For each file the names that it asks for."""
    files = {str(path.relative_to(PACKAGE)): path for path in module_files() if part_of(path) not in OTHER_WINGS}
    return {name: set(asked(tree_of(path))) for name, path in files.items() if not name.startswith(OWN)}


def test_every_way_to_ask_is_seen() -> None:
    text = (
        "a.kind == 'mpi'\n'ray' != b\nc in ('x', 'jax')\n{'torchrun': 1}\nd['horovod']\ne.engine == 'pipeline'\n"
        "f = 'script'\nmatch g:\n    case 'xla':\n        pass\n(h.backend, i) == ('xla', 'cpu')\n"
    )

    assert sorted(asked(ast.parse(text))) == ["horovod", "jax", "mpi", "ray", "torchrun", "xla"]


def test_no_code_asks_for_the_name_of_a_distribution() -> None:
    asks = {name: {word for word in words if (name, word) not in EXCEPTIONS} for name, words in found().items()}

    no_offenders(asks, "ask for a trait of contract/distributions.py instead of these names")


def test_every_exception_is_needed() -> None:
    asks = {(name, word) for name, words in found().items() for word in words}

    assert EXCEPTIONS.keys() <= asks, "take out what is not there any more"


def test_a_launcher_is_loaded_by_the_table_alone() -> None:
    launchers = PACKAGE / "container/launchers"
    files = [path for path in module_files() if launchers not in path.parents]
    loads = {str(path.relative_to(PACKAGE)): _launchers_imported(path) for path in files}
    del loads["container/attempts.py"]  # torch's agent, of whichever distribution

    no_offenders(loads, "ask `launcher_of` for these")


def _launchers_imported(path: Path) -> set[str]:
    modules = {f"trainshed.container.launchers.{module}" for module, _ in LAUNCHERS.values()}
    return {name for name in names_known_to(path) if name in modules or name.rpartition(".")[0] in modules}
