"""docs/reference/api.md: the public names of the packages that scripts import, with signatures and docstrings.

Read from the sources, so that neither torch nor anything else is imported.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from support.paths import TOOLKIT
from support.sources import tree_of

# Packages with an `__all__` that a script, a notebook or a program imports.
FACES = (
    "trainshed.checkpoint", "trainshed.checkpoint.in_place", "trainshed.metrics", "trainshed.data", "trainshed.parallel",
    "trainshed.parallel.data", "trainshed.parallel.verify", "trainshed.compiler", "trainshed.runner",
    "trainshed.studio.python_api",
)  # fmt: skip
# Names that no `import` of the package leads to.
_ELSEWHERE = {("trainshed.metrics", "log"): ("trainshed.metrics.writing", "MetricsWriter", "log")}
_SECTION = re.compile(r"(Args|Raises|Returns|Yields|Attributes):")
_ITEM = re.compile(r"(\w+(?:, \w+)*): +(.+)")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def api_text() -> str:
    """The body of the page."""
    return "".join(_package(face) for face in FACES)


def names_of(face: str) -> list[str]:
    """The public names of a package: its `__all__`."""
    for node in tree_of(_file(face)).body:
        if isinstance(node, ast.Assign) and [target.id for target in node.targets if isinstance(target, ast.Name)] == [
            "__all__"
        ]:
            return list(ast.literal_eval(node.value))
    raise LookupError(f"{face} has no __all__")


def _package(face: str) -> str:
    doc = ast.get_docstring(tree_of(_file(face))) or ""
    parts = [f"## {face}\n\n{prose(doc.partition('Each module knows')[0])}\n"]
    first: dict[Definition, str] = {}
    for name in names_of(face):
        *outer, node = _found(face, name)
        heading = f"### {face.removeprefix('trainshed.')}.{name}"
        if first.setdefault(node, name) == name:
            parts.append(_entry(heading, name, node, is_method=bool(outer)))
        else:
            parts.append(f"{heading}\n\nThe earlier name of `{first[node]}`.\n\n")
    return "".join(parts)


def _entry(heading: str, name: str, node: Definition, *, is_method: bool = False) -> str:
    text = f"{heading}\n\n```python\n{_signature(name, node, is_method)}\n```\n\n{prose(ast.get_docstring(node) or '')}"
    if not isinstance(node, ast.ClassDef):
        return f"{text}\n"
    methods = [one for one in node.body if isinstance(one, ast.FunctionDef) and not one.name.startswith("_")]
    shown = [one for one in methods if ast.get_docstring(one) and not _decorated(one, "setter")]
    return text + "\n" + "".join(_entry(f"#### {name}.{one.name}", one.name, one, is_method=True) for one in shown)


def _signature(name: str, node: Definition, is_method: bool) -> str:
    if isinstance(node, ast.ClassDef):
        made = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
        return f"class {name}({_wrapped(_parameters(made[0], drop=1) if made else list(_fields(node)))})"
    if _decorated(node, "property"):
        return f"{name}: {ast.unparse(node.returns) if node.returns else 'Any'}"
    drop = int(is_method and not _decorated(node, "staticmethod"))
    way = next((f"@{one}\n" for one in ("classmethod", "staticmethod") if _decorated(node, one)), "")
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{way}{name}({_wrapped(_parameters(node, drop))}){returns}"


def _decorated(node: Definition, word: str) -> bool:
    return any(ast.unparse(one).endswith(word) for one in node.decorator_list)


def _fields(node: ast.ClassDef) -> Iterator[str]:
    """The fields of a record or dataclass, which are its parameters."""
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and not one.target.id.startswith("_"):
            yield ast.unparse(one)


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef, drop: int) -> list[str]:
    """The parameters as they are written, without the first `drop`."""
    arguments = node.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    texts = [_parameter(one, default) for one, default in zip(plain, defaults, strict=True)]
    if arguments.posonlyargs:
        texts.insert(len(arguments.posonlyargs), "/")
    texts = texts[drop:] if texts[drop:] != ["/"] else []
    if arguments.vararg:
        texts.append(f"*{_parameter(arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        texts.append("*")
    texts += [_parameter(one, default) for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    return texts + ([f"**{_parameter(arguments.kwarg, None)}"] if arguments.kwarg else [])


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
    equals = " = " if kind else "="
    return f"{argument.arg}{kind}{equals + ast.unparse(default) if default is not None else ''}"


def _wrapped(parameters: list[str]) -> str:
    """On one line, or one line each."""
    joined = ", ".join(parameters)
    return joined if len(joined) <= 90 else "".join(f"\n    {one}," for one in parameters) + "\n"


def _found(face: str, name: str) -> tuple[Definition, ...]:
    """The definition of a public name; behind its class where it is a method."""
    if (face, name) in _ELSEWHERE:
        module, *path = _ELSEWHERE[face, name]
    else:
        module, *path = _home(face, name)
    found: list[Definition] = []
    body = tree_of(_file(module)).body
    for part in path:
        node = next(one for one in body if isinstance(one, Definition) and one.name == part)
        found.append(_whole(node, body) if isinstance(node, ast.ClassDef) else node)
        body = node.body
    return tuple(found)


def _whole(node: ast.ClassDef, body: list[ast.stmt]) -> ast.ClassDef:
    """A class with the `__init__` of its base in the same module, where it has none."""
    named = [one for one in body if isinstance(one, ast.ClassDef) and one.name in {ast.unparse(base) for base in node.bases}]
    made = [one for cls in (node, *named) for one in cls.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    if not made or made[0] in node.body:
        return node
    return ast.ClassDef(node.name, node.bases, [], [*node.body, made[0]], node.decorator_list, lineno=0)


def _home(module: str, name: str) -> tuple[str, str]:
    """(module, name) of the definition that a name of a module is."""
    tree, package = tree_of(_file(module)), _file(module).name == "__init__.py"
    if any(isinstance(one, Definition) and one.name == name for one in tree.body):
        return module, name
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    up = module.split(".")[: (None if package else -1)]
                    above = up[: len(up) - node.level + 1] if node.level else []
                    return _home(".".join([*above, *(node.module or "").split(".")]), alias.name)
    raise LookupError(f"{module}.{name} is defined nowhere")


def _file(module: str) -> Path:
    path = TOOLKIT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def prose(docstring: str) -> str:
    """A docstring as Markdown: sections and `name: text` lines become lists, indented blocks code."""
    lines: list[str] = []
    listing = False
    for line in inspect.cleandoc(docstring).splitlines():
        indent = len(line) - len(line.lstrip())
        if match := _SECTION.fullmatch(line):
            lines += ["", f"{match[1]}:", ""]
            listing = True
        elif (match := _ITEM.fullmatch(line.strip())) and indent in ((0, 4) if listing else (0,)):
            listing = listing and indent == 4
            lines += ([""] if not indent and lines and not lines[-1].startswith(("*", "  ")) else []) + [
                f"* `{match[1]}`: {_plain(match[2])}"
            ]
        elif indent and lines and lines[-1].startswith(("* ", "  ")) and not lines[-1].startswith("    "):
            lines.append(f"  {_plain(line.strip())}")
        elif listing and indent == 4:
            lines.append(f"* {_plain(line.strip())}")
        else:
            listing = listing and (not line or indent > 0)
            lines.append(line if indent >= 4 else _plain(line))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines).strip()) + "\n"


def _plain(text: str) -> str:
    """Text whose `<` is no HTML, outside of code."""
    parts = text.split("`")
    return "`".join(
        part if number % 2 else part.replace("<", "&lt;").replace("*", "\\*") for number, part in enumerate(parts)
    )
