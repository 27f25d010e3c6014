"""Hyperparameters: decoding, the three command-line styles, variables, and what cannot be passed on."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from support.properties import given, st
from trainshed.contract.hyperparameters import (
    SpelledFloat,
    check,
    decode,
    decode_value,
    to_argv,
    to_environment_text,
    variable_names,
)


def json_values() -> Any:
    """The strategy of what JSON can say."""
    return st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
        max_leaves=10,
    )


@pytest.mark.parametrize("text", ["1.10", "1e5", "1E-5", "0.00001", "1e400", "-0.0", "NaN", "Infinity", "-Infinity"])
def test_floats_keep_their_spelling_and_their_value(text: str) -> None:
    value = decode_value(text)

    assert isinstance(value, float) and str(value) == repr(value) == text
    assert value == float(text) or math.isnan(value)
    assert value + 1 == float(text) + 1 or math.isnan(value)


@given(json_values)
def test_what_was_encoded_as_json_comes_back(value: Any) -> None:
    assert decode_value(json.dumps(value)) == value


@given(lambda: st.text())
def test_a_string_is_itself_unless_it_is_json(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        expected = text
    decoded = decode_value(text)
    assert decoded == expected or (isinstance(expected, float) and math.isnan(expected))


@pytest.mark.parametrize("text", ["9" * 5000, "[" * 100_000, "[" * 300 + "]" * 300, '{"a":' * 200 + "1" + "}" * 200])
def test_a_string_that_is_json_beyond_use_stays_a_string(text: str) -> None:
    assert decode_value(text) == text


def test_a_hundred_levels_are_not_beyond_use() -> None:
    assert isinstance(decode_value("[" * 100 + "]" * 100), list)
    assert decode_value("[" + "[1]," * 500 + "2]")[-1] == 2, "many lists side by side are not deep"


@pytest.mark.parametrize("value", [1, 2.5, True, None, [1, "2"], {"a": "1"}])
def test_values_in_a_hand_written_file_are_taken_as_they_are(value: Any) -> None:
    assert decode_value(value) == value


def test_the_platforms_and_our_names_never_reach_the_script() -> None:
    hps = decode(
        {
            "sagemaker_program": "a",
            "trainshed_argv": "json",
            "_tuning_objective_metric": "x",
            "default_user_module_name": "y",
            "Sagemaker_x": "1",
            "epochs": "3",
        }
    )

    assert set(hps.reserved) == {
        "sagemaker_program",
        "trainshed_argv",
        "_tuning_objective_metric",
        "default_user_module_name",
    }
    assert hps.user == {"Sagemaker_x": 1, "epochs": 3}
    assert hps.get("trainshed_argv") == "json" and hps.get("epochs") == 3 and hps.get("nothing", 7) == 7


VALUES = {
    "b": "true",
    "off": "false",
    "nothing": "null",
    "lr": "1.10",
    "name": "two words",
    "layers": '[1, "a b", null]',
    "opt": '{"b": 2, "a": [1.50]}',
    "": "empty",
}


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        (
            "sagemaker",
            [
                *("", "empty", "-b", "True", "--layers", "[1, 'a b', None]", "--lr", "1.10", "--name", "two words"),
                *("--nothing", "", "--off", "False", "--opt", "a=[1.50],b=2"),
            ],
        ),
        (
            "json",
            [
                *("--b", "true", "--off", "false", "--nothing", "null", "--lr", "1.10", "--name", "two words"),
                *("--layers", '[1, "a b", null]', "--opt", '{"b": 2, "a": [1.5]}', "--", "empty"),
            ],
        ),
        (
            "flags",
            [
                *("", "empty", "-b", "--layers", "1", "a b", "null", "--lr", "1.10", "--name", "two words"),
                *("--opt", '{"b": 2, "a": [1.5]}'),
            ],
        ),
    ],
)
def test_each_style_of_command_line(style: str, expected: list[str]) -> None:
    assert to_argv(decode(VALUES).user, style) == expected


@given(lambda: st.dictionaries(st.text(max_size=5), json_values(), max_size=4))
def test_every_style_gives_strings_for_any_values(user: dict[str, Any]) -> None:
    for style in ("sagemaker", "json", "flags"):
        assert all(isinstance(argument, str) for argument in to_argv(user, style))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        ("x", "x"),
        (True, "true"),
        (3, "3"),
        (SpelledFloat("1.10"), "1.10"),
        ([1, "é"], '[1,"\\u00e9"]'),
        ({"b": 1, "a": None}, '{"a":null,"b":1}'),
    ],
)
def test_values_as_variables(value: Any, text: str) -> None:
    assert to_environment_text(value) == text


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("epochs", ("SM_HP_EPOCHS",)),
        ("learning-rate", ("SM_HP_LEARNING-RATE", "SM_HP_LEARNING_RATE")),
        ("a.b c", ("SM_HP_A.B C", "SM_HP_A_B_C")),
        ("a=b", ("SM_HP_A_B",)),
        ("", ("SM_HP_",)),
        ("é", ("SM_HP_É", "SM_HP__")),
    ],
)
def test_names_that_a_shell_cannot_read_get_a_second_form(name: str, names: tuple[str, ...]) -> None:
    assert variable_names("SM_HP_", name) == names


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"a": "x\0y"}, "NUL"),
        ({"a\0b": "x"}, "NUL"),
        ({"a": '"x\\u0000y"'}, "NUL"),
        ({"a": '{"k": "x\\u0000y"}'}, "NUL"),
        ({"a": '["x\\u0000y"]'}, "NUL"),
        ({"a": ["\0"]}, "NUL"),
        ({"a": "\ud800"}, "surrogate"),
        ({"a\udfff": "x"}, "surrogate"),
        ({"a": '"\\ud800"'}, "surrogate"),
        ({"a": '{"\\ud800": 1}'}, "surrogate"),
        ({"a": '["\\ud800"]'}, "surrogate"),
        ({"a": {"k": "\ud800"}}, "surrogate"),
    ],
)
def test_what_no_command_line_can_carry_is_refused_by_name(raw: dict[str, Any], message: str) -> None:
    (problem,) = check(raw, "hyperparameters.json")

    assert message in problem.message and problem.field.startswith("a")
    assert problem.line().isprintable()


@pytest.mark.parametrize("value", ["🚂", '"\\ud83d\\ude82"', "é", "a\nb\t", '{"a": "\\u00e9"}', "x" * 1000, "\x7f"])
def test_what_a_command_line_can_carry_is_let_through(value: str) -> None:
    assert check({"a": value}, "f") == []
