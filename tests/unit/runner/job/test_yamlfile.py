"""Job files are read as plain values with lines and spelling; everything else YAML can do is a problem with a place."""

from __future__ import annotations

import json

import pytest

from support.properties import given, st
from trainshed.base.errors import MOST_TOLD, JobError, Problem
from trainshed.runner.job.nodes import Node
from trainshed.runner.job.yamlfile import parse, read_nodes


def read(text: str) -> tuple[Node | None, list[str]]:
    problems: list[Problem] = []
    node = parse(text, "job.yaml", "/project", problems)
    return node, [problem.line() for problem in problems]


def value_of(text: str) -> object:
    node, problems = read(f"key: {text}\n")
    assert node is not None and not problems
    return node.value["key"].plain()


@pytest.mark.parametrize("text", ["1.10", "1e5", "1E-05", "0.1", "-2.50", "+0.5", ".5", "5.", "1e400"])
def test_a_number_keeps_its_spelling(text: str) -> None:
    value = value_of(text)
    assert isinstance(value, float)
    assert str(value) == text


@pytest.mark.parametrize("text", ["007", "+1", "-0"])
def test_a_whole_number_that_json_would_write_otherwise_is_its_text(text: str) -> None:
    assert value_of(text) == text


@pytest.mark.parametrize("name", ["train.py", "run.sh", "nb.ipynb"])
def test_a_script_in_the_place_of_a_file_is_told_where_it_belongs(name: str) -> None:
    problems: list[Problem] = []
    assert read_nodes(name, problems) is None
    assert problems[0].line().startswith(f"{name}: is a script") and f"program: {name}" in problems[0].line()


@pytest.mark.parametrize(
    "text", ["yes", "no", "on", "off", "y", "1_000", "0x10", "12:30", "2026-11-21", "1.2.3", "0o17", "=", "a#b"]
)
def test_words_that_yaml_1_1_would_convert_stay_text(text: str) -> None:
    assert value_of(text) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("42", 42),
        ("'true'", "true"),
        ('"1.10"', "1.10"),
    ],
)
def test_what_is_no_text_and_what_quotes_make_text(text: str, value: object) -> None:
    assert value_of(text) == value
    assert type(value_of(text)) is type(value)


@pytest.mark.parametrize(("text", "number"), [(".inf", "Infinity"), ("-.Inf", "-Infinity"), (".NaN", "NaN")])
def test_numbers_that_are_not_finite_are_spelled_so_that_scripts_can_read_them(text: str, number: str) -> None:
    assert str(value_of(text)) == number


@given(lambda: st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f"), max_size=40))
def test_any_text_comes_back_from_json(text: str) -> None:
    node, problems = read(json.dumps({"key": text}))
    assert not problems
    assert node is not None and node.value["key"].value == text


@given(lambda: (st.floats(allow_nan=False, allow_infinity=False), st.integers(-(10**30), 10**30)))
def test_any_number_of_python_comes_back_as_it_prints(number: float, whole: int) -> None:
    assert str(value_of(repr(number))) == repr(number)
    assert str(value_of(str(whole))) == str(whole)


def test_every_value_knows_its_line() -> None:
    node, _ = read("a: 1\nb:\n  c: 2\n  d: [3,\n    4]\n")
    assert node is not None
    inner = node.value["b"].value
    assert [node.value["a"].where, inner["c"].where, inner["d"].value[1].where] == ["job.yaml:1", "job.yaml:3", "job.yaml:5"]


def test_json_is_read_too() -> None:
    node, problems = read('{"program": "train.py", "hyperparameters": {"lr": 1.10, "layers": [1, 2]}}')
    assert node is not None and not problems
    assert node.value["hyperparameters"].plain() == {"lr": 1.1, "layers": [1, 2]}


def test_an_alias_is_its_value() -> None:
    node, problems = read("a: &x {lr: 1.10}\nb: *x\n")
    assert node is not None and not problems
    assert str(node.value["b"].value["lr"].value) == "1.10"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: 2\na: 3\n", "job.yaml:3: a: is given twice; the first time in line 1"),
        ("a: !!python/object/apply:os.system [id]\n", "job.yaml:1: has the tag"),
        ("a: !mine 1\n", "job.yaml:1: has the tag !mine"),
        ("a: 1\n---\nb: 2\n", "job.yaml:2: a second document starts here"),
        ("a:\n\t- 1\n", "job.yaml:2: is not YAML: found character '\\t' that cannot start any token (indent with spaces)"),
        ("a: [1, 2", "job.yaml:1: is not YAML"),
        ("a: &x [*x]\n", "job.yaml:1: the alias *x contains itself"),
        ("a: *nobody\n", "job.yaml:1: the alias *nobody is not defined above"),
        ("a: " + "[" * 3000, "job.yaml:1: is nested more than 32 levels deep"),
        ("<<: {a: 1}\n", "job.yaml:1: `<<` is not supported"),
        ("? [a]\n: 1\n", "job.yaml:1: uses a list or a mapping as a name"),
        ('"": 1\n', "job.yaml:1: has a value without a name"),
        ("- a\n- b\n", "job.yaml:1: must be a mapping of names to values"),
        ("train.py", "job.yaml:1: must be a mapping of names to values"),
        ("", "job.yaml: is empty"),
        ("# nothing\n", "job.yaml: is empty"),
        ("a: \x01\n", "job.yaml: is not YAML"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, problem: str) -> None:
    _, problems = read(text)
    assert [line for line in problems if line.startswith(problem)], problems


@pytest.mark.safety
def test_a_bomb_of_aliases_is_refused_before_it_unfolds() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    _, problems = read("\n".join(levels))
    assert problems == ["job.yaml:5: expands to more than 20,000 values"]


def test_of_many_problems_the_first_are_told_and_how_many_more_there_are() -> None:
    for text in ("a: 1\n" * 3000, "? [a]\n: 1\n" * 3000):
        problems: list[Problem] = []
        parse(text, "job.yaml", "", problems)
        error = JobError(problems)
        lines = error.details.splitlines()
        assert len(problems) >= 2999 and len(lines) == MOST_TOLD + 1
        assert lines[0].startswith("  1. job.yaml:") and f"{len(problems):,} problems in the job" in error.message
        assert lines[-1] == f"  and {len(problems) - MOST_TOLD:,} more: mend these, and look again"
