"""Columns of dates: each format, what may be two days, mistakes, and the numbers that a model takes of them."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import pytest

from support.extras import needs
from support.lazy import Lazy
from support.programs import Module

needs("pyarrow", "numpy")
numpy: Any = Lazy("numpy")

DAYS = [datetime.datetime(2023, 11, 1) + datetime.timedelta(days=9 * at) for at in range(30)]


def found(module: Module, values: Sequence[str | None]) -> Any:
    return module("_dates").found("when", list(values), lambda row: f"train.csv, row {row + 1}")


def refused(module: Module, values: Sequence[str | None]) -> str:
    with pytest.raises(module("_common").Problem) as raised:
        found(module, values)
    return str(raised.value)


@pytest.mark.parametrize(
    "form",
    [
        "%Y-%m-%d",
        "%d.%m.%Y",
        "%d/%m/%Y",
        "%m/%d/%Y",
        "%m/%d/%y",
        "%Y/%m/%d",
        "%d %B %Y",
        "%b %d, %Y",
        "%d-%b-%Y",
        "%d-%m-%Y",
    ],
)
def test_days_are_found_in_every_form(module: Module, form: str) -> None:
    texts = [day.strftime(form) for day in DAYS]

    dates = found(module, [*texts, None])

    assert [dates.read(text) for text in texts] == DAYS
    made = dates.numbers([texts[0], None], str, "when")
    assert dates.parts == ("year", "month", "day", "weekday")
    assert made[0].tolist() == [2023, 11, 1, 3] and numpy.isnan(made[1]).all()


@pytest.mark.parametrize(
    ("text", "hour"),
    [
        ("2024-03-05 14:30:00", 14.5),
        ("2024-03-05T14:30:00Z", 14.5),
        ("2024-03-05T14:30:00+02:00", 12.5),
        ("2024-03-05 14:30:00.123456789", 14.5),
        ("2024-03-05 14:30:00 UTC", 14.5),
        ("05.03.2024 14:30", 14.5),
        ("13/03/2024 02:30 PM", 14.5),
    ],
)
def test_times_are_an_hour_more(module: Module, text: str, hour: float) -> None:
    others = ["2024-03-25 00:00:00"] if text.startswith("2024") else []
    dates = found(module, [text, *others])

    assert dates.parts[-1] == "hour"
    assert dates.numbers([text], str, "when")[0][-1] == hour


@pytest.mark.parametrize(
    "values",
    [["a", "b"], ["1.2.3", "1.2.4"], ["10:00", "11:00"], ["2024-W01", "2024-W02"], ["A-2024-01-01"], ["12 kg", "13 kg"],
     [None, None], ["may", "june"], ["555-1234", "555-1235"], ["192.168.10.2024", "10.0.0.1"]],
)  # fmt: skip
def test_other_texts_are_not_dates(module: Module, values: list[str | None]) -> None:
    assert found(module, values) is None


def test_what_may_be_two_days_is_refused(module: Module) -> None:
    said = refused(module, ["01/01/2024", "02/06/2024"])

    assert said.startswith(
        "train.csv, row 2: when is '02/06/2024', which is 2024-06-02 or 2024-02-06, and no other row tells"
    )
    assert found(module, ["01/01/2024", "02/06/2024", "13/06/2024"]).format == "%d/%m/%Y"
    assert found(module, ["01/01/2024", "02/02/2024"]) is not None  # the same day in both


@pytest.mark.parametrize("odd", ["2024-02-30", "08.02.2024", "unknown"])
def test_a_mistake_among_dates_is_named(module: Module, odd: str) -> None:
    texts = [f"{day:%Y-%m-%d}" for day in DAYS]

    assert f"row 8: when is '{odd}', and a date (2024-12-31) in most rows" in refused(module, [*texts[:7], odd, *texts[7:]])


def test_a_later_value_of_another_form_is_named(module: Module) -> None:
    dates = found(module, [f"{day:%Y-%m-%d}" for day in DAYS])

    with pytest.raises(module("_common").Problem, match=r"row 1: when is '1/2/2024', not a date as in the training data"):
        dates.numbers(["1/2/2024"], lambda row: f"rows.csv, row {row + 1}", "when")
