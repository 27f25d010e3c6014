"""What a program may declare of itself, and what is said of a declaration that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.paths import ENTRYPOINTS
from trainshed.algorithms import ENDING, shelf
from trainshed.algorithms.declaration import Algorithm, DeclarationError, beside, read
from trainshed.base.errors import TrainshedError


def declared(folder: Path, text: str) -> Algorithm:
    """What a file with this text declares."""
    path = folder / f"boost{ENDING}"
    path.write_text(text)
    return read(str(path))


def lines(folder: Path, text: str) -> list[str]:
    """All that is wrong with it, without the file's name."""
    with pytest.raises(DeclarationError) as told:
        declared(folder, text)
    return [problem.line().partition(f"{ENDING}: ")[2] for problem in told.value.problems]


def test_a_file_with_nothing_in_it_declares_the_program_beside_it(tmp_path: Path) -> None:
    made = declared(tmp_path, "")

    assert (made.name, made.program, made.script) == ("boost", "boost.py", str(tmp_path / "boost.py"))
    assert beside(made.script) == made.path


def test_everything_that_can_be_declared(tmp_path: Path) -> None:
    made = declared(
        tmp_path,
        """
        name: tabular
        program: other.py
        needs: [xgboost]
        hosts: one
        hyperparameters:
          rounds: {type: integer, default: 100.0, range: [1, null], tunable: {range: [10, 1000], scale: log}}
          objective: {type: categorical, choices: [linear, multi], required: true, tunable: true}
          classes: {type: integer, required_with: {objective: [multi]}}
          columns: {type: list, default: "a, b"}
          rate: {type: number, range: [0, 1], or: [auto, none], default: auto}
        channels:
          train: {required: true, unless: demo, aliases: [training], content_types: [text/csv], input_modes: [File]}
        metrics:
          auc: {direction: maximize}
          loss: {regex: 'loss: ([0-9.]+)'}
        """.replace("unless: demo, ", ""),
    )

    rounds = made.hyperparameters["rounds"]
    assert (rounds.default, rounds.range, rounds.tunable and rounds.tunable.range) == (100, (1, float("inf")), (10, 1000))
    assert made.hyperparameters["classes"].required_with == {"objective": ("multi",)}
    assert made.hyperparameters["columns"].default == ("a", "b")
    rate = made.hyperparameters["rate"]
    assert (rate.default, rate.read("none"), rate.read("0.5")) == ("auto", "none", 0.5)
    with pytest.raises(ValueError, match=r"^'some' is not a number from 0 to 1 or auto or none$"):
        rate.read("some")
    assert made.channels["train"].aliases == ("training",)
    assert made.metrics["auc"].regex == r"metric auc=(\S+)"


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    assert lines(
        tmp_path,
        """
        hyperparmeters: {}
        hosts: several
        hyperparameters:
          a: {type: whole}
          b: {}
          c: {type: categorical}
          d: {type: integer, default: 0, range: [1, 9]}
          e: {type: integer, range: [9, 1]}
          f: {type: number, tunable: {range: [0, 1], scale: log}}
          g: {type: number, tunable: true}
          h: {type: text, range: [1, 2]}
          i: {type: text, default: x, required: true}
          j: {type: categorical, choices: [yes, no]}
          k: {type: text, required_with: {z: [1]}}
          l: 3
        channels:
          train: {required: yess, unless: demo, input_modes: [Fil], aliases: [test]}
          test: {}
        metrics:
          loss: {regex: 'loss'}
          more: {regex: '('}
        """,
    ) == [
        "hyperparmeters: is not known here (did you mean 'hyperparameters'?)",
        "hyperparameters.a.type = whole: is not one of integer, number, boolean, categorical, text, list, folder",
        "hyperparameters.b.type: is missing: one of integer, number, boolean, categorical, text, list, folder",
        "hyperparameters.c.choices: is missing: what may be chosen",
        "hyperparameters.d.default = 0: '0' is not a whole number from 1 to 9",
        "hyperparameters.e.range = [9, 1]: has its highest value first, or nan",
        "hyperparameters.f.tunable.range = [0, 1]: must be above 0 for the scale log",
        "hyperparameters.g.tunable.range: is missing: the lowest and the highest value to try",
        "hyperparameters.h.range = [1, 2]: is for integer and number alone",
        "hyperparameters.i.default = x: has no effect: the hyperparameter is required",
        "hyperparameters.j.choices = [True, False]: has a word that YAML reads as true or false: quote it",
        "hyperparameters.j.choices: is missing: what may be chosen",
        "hyperparameters.l = 3: is not a mapping",
        "hyperparameters.l.type: is missing: one of integer, number, boolean, categorical, text, list, folder",
        "channels.train.input_modes = Fil: is not one of File, FastFile, Pipe (did you mean 'File'?)",
        "channels.train.required = yess: is neither true nor false",
        "metrics.loss.regex = loss: must have one group, the number",
        "metrics.more.regex = (: is not a regular expression: missing ), unterminated subpattern at position 0",
        "hosts = several: is not one of one, many",
        "channels.train.unless = demo: is not a hyperparameter here",
        "channels.train.aliases = test: is a name of train and test",
        "hyperparameters.k.required_with = z: is not a hyperparameter here",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1, 2]", "= [1, 2]: is not a mapping"),
        ("a: [", "is not valid YAML: while parsing a flow node"),
        ("a: \x00", "is not valid YAML: unacceptable character"),
        ("hyperparameters: [a]", "hyperparameters = ['a']: is not a mapping"),
        ("hyperparameters: {'a b': {type: text}}", "hyperparameters = a b: is not a valid name"),
        ("name: ../x", "name = ../x: is not a valid name"),
        ("hyperparameters: {a: {type: number, range: [.nan, 1]}}", "hyperparameters.a.range = [nan, 1]: has its"),
        ("needs: torch", "needs = torch: is not a list of words"),
        ("!!python/object/apply:os.system ['true']", "is not valid YAML: could not determine a constructor"),
        ("[" * 5000, "is not valid YAML: "),
    ],
)
def test_a_damaged_declaration_is_one_clear_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DeclarationError) as told:
        declared(tmp_path, text)

    assert said in told.value.message
    assert "\n" not in told.value.message


def test_a_declaration_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match="cannot be read: No such file or directory"):
        read(str(tmp_path / f"none{ENDING}"))


@pytest.mark.parametrize("path", sorted(ENTRYPOINTS.glob(f"*{ENDING}")), ids=lambda path: path.name)
def test_our_own_programs_declare_themselves(path: Path) -> None:
    made = read(str(path))

    assert Path(made.script).is_file()
    assert made.description and made.channels and made.metrics
    assert any(one.tunable for one in made.hyperparameters.values()) or made.name == "pca"


def test_programs_are_found_by_name_and_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    declared(tmp_path, "description: mine")

    assert shelf.find("boost", {}).description == "mine"
    assert shelf.find(str(tmp_path / "boost.py"), {}).description == "mine"
    assert {"boost", "image_classification", "language_model"} <= {one.name for one in shelf.every({})[0]}
    with pytest.raises(TrainshedError, match="no program declares itself as 'bost'") as told:
        shelf.find("bost", {})
    assert told.value.hint == "did you mean 'boost'?"


def test_a_damaged_declaration_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"boost{ENDING}").write_text("[")

    found, wrong = shelf.every({"TRAINSHED_ENTRYPOINTS": str(ENTRYPOINTS)})
    assert "language_model" in [one.name for one in found]
    assert [f"boost{ENDING}" in error.message for error in wrong] == [True]


def test_what_changes_nothing_or_is_refused_says_why(tmp_path: Path) -> None:
    path = tmp_path / "a.algorithm.yaml"
    path.write_text(
        "hyperparameters:\n"
        "  cache: {changes_nothing: there is none}\n"
        "  gpu: {type: boolean, default: false, refused: on CPUs alone}\n"
        "  rate: {type: number, default: 1}\n"
        "  loss: {type: categorical, choices: [l1, l2], default: l1, refused: no others are fitted}\n"
    )
    cache, gpu, rate, loss = read(str(path)).hyperparameters.values()

    assert cache.type == "text" and cache.said_of("big") == "cache changes nothing: there is none"
    assert loss.said_of("l2") == ""
    with pytest.raises(ValueError, match="'huber' is not one of l1, l2; no others are fitted"):
        loss.read("huber")
    assert gpu.said_of(True) == "gpu is not served: on CPUs alone"
    assert [one.said_of(value) for one, value in ((cache, None), (gpu, False), (rate, 3))] == ["", "", ""]
