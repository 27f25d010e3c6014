"""What it costs to collect the tests: every worker imports every test file, and runs few of its tests."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from support.offenders import check_each
from support.paths import ENTRYPOINTS, ROOT, TOOLKIT
from support.sources import tree_of

TESTS = ROOT / "tests"
PLACES = (TOOLKIT, TESTS, ENTRYPOINTS)
CHEAP = {"pytest", "_pytest", "yaml", "psutil", "tomli"}  # packages of others that a test file may import at its top
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def at_import(tree: ast.Module) -> list[ast.AST]:
    """All nodes that run when a module is imported: not bodies of functions, nor what is for type checkers alone."""
    nodes: list[ast.AST] = [tree]
    for node in nodes:
        if isinstance(node, FUNCTIONS):
            nodes += [*getattr(node, "decorator_list", []), *node.args.defaults, *filter(None, node.args.kw_defaults)]
        elif isinstance(node, ast.If) and name_of(node.test) == "TYPE_CHECKING":
            nodes += node.orelse
        elif isinstance(node, ast.AnnAssign):
            nodes += [node.target, *([node.value] if node.value else [])]
        elif not isinstance(node, ast.Constant):
            nodes += ast.iter_child_nodes(node)
    return nodes


def name_of(node: ast.AST) -> str:
    """The last part of a name with dots; empty for other expressions."""
    return getattr(node, "attr", getattr(node, "id", ""))


@cache
def modules() -> dict[str, Path]:
    """All modules of the toolkit, the tests and the entry points, by their full names."""
    files = [(path, path.relative_to(place).with_suffix("")) for place in PLACES for path in place.rglob("*.py")]
    return {".".join(name.parts).removesuffix(".__init__"): path for path, name in files}


@cache
def package_of(path: Path) -> list[str]:
    """The parts of the name of the package that a file is in."""
    place = next(place for place in PLACES if path.is_relative_to(place))
    return [*path.relative_to(place).parent.parts]


def full_names(path: Path, node: ast.AST) -> list[tuple[str, str]]:
    """What an import statement, or a call that imports, brings: full names, relative ones resolved, and those it binds."""
    if isinstance(node, ast.Import):
        return [(alias.name, alias.asname or alias.name) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        package = package_of(path)
        base = package[: len(package) - node.level + 1] if node.level else []
        base += node.module.split(".") if node.module else []
        return [(".".join([*base, alias.name]), alias.asname or alias.name) for alias in node.names]
    if isinstance(node, ast.Call) and name_of(node.func) in ("importorskip", "import_module"):
        return [(one.value, "") for one in node.args[:1] if isinstance(one, ast.Constant)]
    return []


def files_of(name: str, path: Path) -> list[Path]:
    """The files of ours that are run when a file imports this name, its packages' first; empty for packages of others."""
    parts, known, package = name.split("."), modules(), package_of(path)
    # Folders of tests put themselves on the path, for the processes that they start.
    for base in ([], *(package[:count] for count in range(len(package), 0, -1))):
        names = [".".join([*base, *parts[:count]]) for count in range(1, len(parts) + 1)]
        if found := [known[name] for name in names if name in known]:
            return found + home(found[-1], parts[-1])
    return []


@cache
def home(package: Path, name: str) -> list[Path]:
    """The files behind a name that a package gives when it is asked for: it says so to type checkers."""
    body = tree_of(package).body
    if not any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in body):
        return []
    told = [node for top in body if isinstance(top, ast.If) for node in top.body]
    full = [full for node in told for full, bound in full_names(package, node) if bound == name]
    return [file for one in full for file in files_of(one, package)]


def lazy(node: ast.Assign | ast.AnnAssign) -> Iterator[tuple[str, str]]:
    """The name that an assignment gives to a module which is imported when it is used, and the module's."""
    if isinstance(node.value, ast.Call) and name_of(node.value.func) == "Lazy":
        (target,) = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield name_of(target), ast.literal_eval(node.value.args[0])


@cache
def imports(path: Path) -> tuple[tuple[Path, ...], frozenset[str]]:
    """The files of ours that are imported with this one, and the names of packages of others."""
    files, foreign = list[Path](), set[str]()
    nodes = at_import(tree_of(path) if TOOLKIT in path.parents else ast.parse(path.read_text()))
    late = {name: full for node in nodes if isinstance(node, (ast.Assign, ast.AnnAssign)) for name, full in lazy(node)}
    for node in nodes:
        names = [full for full, _ in full_names(path, node)]
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in late:
            names = [late[node.value.id]]
        for name in names:
            ours = files_of(name, path)
            files += ours
            foreign |= set() if ours else {name.split(".")[0]}
    return tuple(dict.fromkeys(files)), frozenset(foreign - sys.stdlib_module_names - CHEAP)


def chains(start: Path) -> Iterator[str]:
    """How a file comes to import each package that it should not, by the shortest way."""
    ways, pending, told = {start: str(start.relative_to(ROOT))}, [start], set[str]()
    for path in pending:
        files, foreign = imports(path)
        for name in sorted(foreign - told):
            yield f"{ways[path]} -> {name}"
        told |= foreign
        for file in files:
            if file not in ways:
                ways[file] = f"{ways[path]} -> {file.relative_to(ROOT)}"
                pending.append(file)


def test_collecting_the_tests_imports_nothing_that_takes_long() -> None:
    starts = sorted(path for pattern in ("test_*.py", "conftest.py") for path in TESTS.rglob(pattern))
    found = [chain for start in starts for chain in chains(start)]

    assert found == [], "imported for all tests to be known; use `Lazy`, `needs` and `pytest.mark.torch`:\n" + "\n".join(
        found
    )


def test_no_file_imports_a_conftest() -> None:
    def check(path: Path) -> None:
        imports = [node for node in ast.walk(tree_of(path)) if isinstance(node, (ast.Import, ast.ImportFrom))]
        names = {full.partition(".")[0] for node in imports for full, _ in full_names(path, node)}
        assert "conftest" not in names, "the first that was collected is meant: use fixtures, or tests/support"

    check_each(sorted(TESTS.rglob("*.py")), check)
