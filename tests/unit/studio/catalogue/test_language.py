"""What `trainshed ls --where` answers, over real folders; and that what cannot be read is refused with words."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.properties import given, st
from support.run_folders import STARTED, lay_run
from trainshed.studio.catalogue.language import ExpressionError, read_expression

from .conftest import Told

DAY = 86400.0
NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module")
def laid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six runs that differ in all that can be asked for."""
    top = tmp_path_factory.mktemp("asked")
    here = top / "runs"
    adam = {"lr": "0.001", "optimizer": '"adam"', "model": '{"depth": 3, "norm": {"eps": 1e-5}}', "amp": "true"}
    lay_run(
        here / "a",
        hps=adam,
        metrics={"loss": [1.0, 0.2, 0.3], "accuracy": [0.1, 0.9], "and": [1.0]},
        tags={"stage": "final"},
    )
    lay_run(
        here / "b",
        hps={"lr": "0.1", "optimizer": '"sgd"', "loss_limit": "0.5"},
        metrics={"loss": [0.9, 0.4]},
        started=STARTED + DAY,
    )
    lay_run(
        here / "c",
        state="Failed",
        hps={"lr": "1e-4"},
        metrics={"loss": [2.0, NAN]},
        FailureReason='ValueError: it\'s "bad"\nmore',
    )
    lay_run(here / "d", state="Stopped", hps={"lr": '"auto"'}, metrics={"eval loss": [0.7], "loss": [INF]}, seconds=7200)
    lay_run(here / "e", state="InProgress", hps={"note it's": "1"}, FinalMetricDataList=[{"MetricName": "bleu", "Value": 7}])
    lay_run(
        here / "f",
        tags={"group": "sweep", "stage": "draft"},
        metrics={"val/loss": [3.0, 1.0, 2.0]},
        started=STARTED - 3 * DAY,
    )
    return top


@pytest.fixture
def runs(laid: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands are called beside them; the index is made once."""
    monkeypatch.chdir(laid)
    monkeypatch.setenv("XDG_STATE_HOME", str(laid / "state"))


ANSWERS = {
    # numbers, and several at once
    "loss < 0.35": "a",
    "loss < 0.35 or lr = 0.1": "ab",
    "loss < 0.5 and lr > 1e-2": "b",
    "not (loss < 0.35) and loss is not missing": "bcd",
    "0.25 < loss <= 0.4": "ab",
    "0.35 > loss": "a",
    "loss = inf": "d",
    "loss >= .4 and loss < inf": "b",
    "loss != 0.3": "bd",
    # what is measured, but not a number; what is not measured
    "loss is nan": "c",
    "loss is missing": "ef",
    "loss is not null and loss is not nan": "abd",
    "min(loss) < 0.25": "a",
    "max(loss) = 2 and first(loss) = 2": "c",
    "best(loss) < 0.3 and best(accuracy) > 0.5": "a",
    "count(loss) = 3": "a",
    "bleu = 7 and min(bleu) is missing": "e",
    # names that are not plain
    "`eval loss` < 1": "d",
    "metric.`and` = 1": "a",
    "metric.and = 1": "a",
    "val/loss = 2 and min(val/loss) = 1": "f",
    "hp.`note it's` = 1": "e",
    # hyperparameters: numbers, texts, truths, nested
    'optimizer = "adam"': "a",
    "optimizer = 'adam' or optimizer != 'adam'": "ab",
    "not optimizer = 'adam'": "bcdef",
    "lr = 'auto'": "d",
    "lr in (0.1, 0.001)": "ab",
    "lr not in (0.1, 0.001) and lr is not missing": "cd",
    "amp = true": "a",
    "model.depth = 3 and model.norm.eps = 1e-5": "a",
    "loss < loss_limit": "b",
    "loss < hp.loss_limit": "b",
    # facts
    "state = 'failed'": "c",
    "state in ('Failed', 'Lost')": "ce",
    "cause ~ 'it.s \"bad\"$'": "c",
    'cause like "valueerror%"': "c",
    "state !~ 'C.mpleted|Lost'": "cd",
    "duration > 1h30m": "d",
    "duration <= 60": "abcef",
    "name > 'd' and name < 'f'": "e",
    "image is missing and hosts = 1 and program = 'train.py'": "abcdef",
    # times
    "started > 2026-09-22": "",
    "started = 2026-09-22 or started < 2026-09-19": "bf",
    "started >= 2026-09-22T00:00+00:00": "b",
    "started != 2026-09-21": "bf",
    # tags, groups
    "'stage' in tags": "af",
    "'stage' not in tags": "bcde",
    "tags = 'group'": "f",
    "tags like 'sta%' and tag.stage = 'final'": "a",
    "stage = 'draft'": "f",
    "group = 'sweep'": "f",
    "tags is missing": "bcde",
}


@pytest.mark.parametrize("where", ANSWERS, ids=str)
def test_each_question_has_its_answer(where: str, runs: None, trainshed: Told) -> None:
    told = trainshed("ls", "--json", "--columns", "name", "--where", where)

    assert "".join(sorted(told.names)) == ANSWERS[where]


REFUSED = {
    "lss < 1": ("no run has a metric, hyperparameter, tag or fact 'lss'", "did you mean 'loss'?"),
    "metric.lr < 1": ("no run has a metric 'lr'", ""),
    "hp.optimiser = 'x'": ("no run has a hyperparameter 'optimiser'", "did you mean 'optimizer'?"),
    "run.stat = 'x'": ("runs have no 'stat'", "did you mean 'state'?"),
    "optimizer = adam": ("'adam'", "a text stands in quotes"),
    "state = 'Complete'": ("'Complete' is not a state", "did you mean 'Completed'?"),
    "state = 3": ("state is a text", ""),
    "loss = 'low'": ("loss is a number, and is compared with a text", ""),
    "loss < 10m": ("loss is a number, and is compared with a duration", ""),
    "started > 5": ("started is a time", ""),
    "duration > 2026-01-01": ("duration is a duration, like 90s", ""),
    "best(val/loss) < 1 and best(and) < 1": ("'and' stands", "metric.and"),
    "best(`and`) < 1": ("whether less or more of 'and' is better", "min(`and`)"),
    "best(lr) < 1": ("best() is of metrics", ""),
    "worst(loss) < 1": ("no function 'worst'", "first, last, min, max"),
    "mim(loss) < 1": ("no function 'mim'", "did you mean 'min'?"),
    "loss <": ("a name was expected where it ends, at its end", ""),
    "loss": ("a comparison is missing after loss", ""),
    "(loss < 1": ("a closing parenthesis is missing", ""),
    "loss < 1)": ("')' was not expected, at character 9", ""),
    "loss < 1 lr > 2": ("'lr' was not expected", "`and` or `or`"),
    "'loss' < 1": ("two values are compared", "backticks"),
    'name = "it': ('the quote " is not closed, at character 8', ""),
    "loss = nan": ("nothing is equal to nan", "is nan"),
    "state in 'Failed'": ("values of `in` stand in parentheses", ""),
    "name ~ '('": ("not a regular expression", ""),
    "loss ~ 'x'": ("loss is a number", ""),
    "started > 2026-13-01": ("2026-13-01 is not a date", ""),
    "loss < 1; drop table runs": ("';' is not understood", ""),
    "loss is 3": ("`is` is followed by", ""),
    "tags < 3": ("tags are asked for by their names", ""),
    "started < loss": ("cannot be compared", ""),
    "(" * 60 + "loss < 1" + ")" * 60: ("parentheses", ""),
    "loss < 1 or " * 2000 + "loss < 1": ("at most 10,000 are read", ""),
    "lr in (" + "1," * 600 + "1)": ("at most 500", ""),
}


@pytest.mark.safety
@pytest.mark.parametrize("where", REFUSED, ids=lambda text: text[:40])
def test_what_cannot_be_read_is_refused_with_words(where: str, runs: None, trainshed: Told) -> None:
    told = trainshed("ls", "--where", where)

    assert told.status == 2 and told.out == ""
    assert all(part in told.err for part in REFUSED[where]), told.err
    assert "itself failed" not in told.err


def test_a_name_of_two_things_is_said_and_told_apart(place: Path, trainshed: Told) -> None:
    lay_run(place / "runs/a", hps={"loss": '"mse"', "state": "1"}, metrics={"loss": [0.5], "state": [3.0]})

    told = trainshed("ls", "--where", "loss < 1")

    assert told.status == 2 and "'loss' is a metric and a hyperparameter" in told.err
    assert "write metric.loss or hp.loss" in told.err
    both = 'metric.loss < 1 and hp.loss = "mse" and min(loss) = 0.5'
    both += ' and metric.state = 3 and hp.state = 1 and state = "Completed"'
    assert trainshed("ls", "--json", "--where", both).names == ["a"]
    assert "state" in trainshed("ls").out


def test_forty_names_at_once_and_not_more(place: Path, trainshed: Told) -> None:
    lay_run(place / "runs/a", metrics={f"m{number}": [1.0] for number in range(50)})

    many = " and ".join(f"m{number} = 1" for number in range(40))
    assert trainshed("ls", "--json", "--columns", "name", "--where", many).names == ["a"]
    told = trainshed("ls", "--where", f"{many} and m41 = 1")
    assert told.status == 2 and "more than 40 names" in told.err


@given(lambda: st.text(alphabet="loss<>=!~()andornt in'\"`.,-1e{}; \\\n\x00é", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read_expression(text)
    except ExpressionError:
        pass
