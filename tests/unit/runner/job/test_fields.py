"""The table of job-file fields, and what is made from it."""

from __future__ import annotations

from operator import attrgetter

from support.offenders import check_each
from trainshed.runner.job.field_parsers import MEANINGS
from trainshed.runner.job.fields import BY_NAME, FIELDS, every
from trainshed.runner.job.job import Job, Spot

ROWS = dict(every())


def test_the_default_of_a_field_is_that_of_the_job() -> None:
    def check(name: str) -> None:
        kept = attrgetter(ROWS[name].attribute)(Job(name="", spot=Spot()))
        assert ROWS[name].default == kept or (not ROWS[name].default and not kept)

    # The defaults of a record are those of the fields inside.
    check_each([name for name, row in ROWS.items() if row.attribute and ("." in name or row.kind != "record")], check)


def test_every_meaning_belongs_to_a_field() -> None:
    assert MEANINGS.keys() <= BY_NAME.keys()


def test_a_row_says_what_its_kind_needs() -> None:
    def check(name: str) -> None:
        row = ROWS[name]
        assert row.help and not row.help.endswith(".")
        assert row.kind != "choice" or row.choices
        assert row.kind not in ("whole", "number") or row.low < row.high
        assert row.kind != "record" or row.rows

    check_each(ROWS, check)


def test_names_and_flags_are_given_once() -> None:
    flags = [flag for row in ROWS.values() for flag in row.flags]

    assert len(set(flags)) == len(flags)
    assert len(BY_NAME) == len(FIELDS)
