"""`Record`: frozen values without dataclasses."""

from __future__ import annotations

from typing import Any

import pytest

from trainshed.base.record import Record


class Point(Record):
    x: int
    y: int = 2


class Named(Point):
    name: str
    tags: tuple[str, ...] = ()


class Holder(Record):
    point: Point
    values: dict[str, Any] = {}  # noqa: RUF012


def test_fields_come_by_position_or_by_name_and_have_defaults() -> None:
    assert Point(1).as_dict() == {"x": 1, "y": 2}
    assert Point(1, 3) == Point(y=3, x=1)
    assert Named(1, 2, "a").as_dict() == {"x": 1, "y": 2, "name": "a", "tags": ()}


@pytest.mark.parametrize(
    ("arguments", "fields", "message"),
    [
        ((), {}, "missing ['x']"),
        ((1, 2, 3), {}, "takes 2 fields, got 3"),
        ((1,), {"z": 1}, "unknown ['z']"),
        ((1,), {"x": 2}, "['x'] given twice"),
    ],
)
def test_wrong_arguments_are_named(arguments: tuple[int, ...], fields: dict[str, int], message: str) -> None:
    with pytest.raises(TypeError) as raised:
        Point(*arguments, **fields)

    assert message in str(raised.value) and "Point" in str(raised.value)


def test_a_record_cannot_be_changed() -> None:
    point = Point(1)

    with pytest.raises(AttributeError, match="frozen"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(AttributeError, match="frozen"):
        point.z = 2  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="frozen"):
        del point.x

    assert point == Point(1)


def test_records_are_equal_by_class_and_fields() -> None:
    assert Point(1) == Point(1, 2)
    assert Point(1) != Point(2)
    assert Named(1, 2, "a") != Point(1, 2)
    assert Point(1) != {"x": 1, "y": 2}


def test_equal_records_have_equal_hashes_even_with_dictionaries_inside() -> None:
    assert hash(Point(1)) == hash(Point(1.0))  # type: ignore[arg-type]
    one, other = Holder(Point(1), {"a": 1, "b": 2}), Holder(Point(1), {"b": 2, "a": 1})
    assert one == other and hash(one) == hash(other)
    assert len({Point(1), Point(1), Point(2)}) == 2


def test_replace_makes_a_changed_copy_and_checks_names() -> None:
    point = Point(1)

    assert point.replace(y=5) == Point(1, 5)
    assert point == Point(1)
    with pytest.raises(TypeError, match="unknown"):
        point.replace(z=1)


def test_plain_gives_json_values_at_any_depth() -> None:
    value = Holder(Point(1), {"t": (1, Point(2)), "s": {3}, 4: None, "o": Point}).plain()

    assert value["point"] == {"x": 1, "y": 2}
    assert value["values"]["t"] == [1, {"x": 2, "y": 2}]
    assert value["values"]["s"] == [3]
    assert value["values"]["4"] is None
    assert isinstance(value["values"]["o"], str)


def test_repr_shows_the_fields() -> None:
    assert repr(Point(1)) == "Point(x=1, y=2)"
