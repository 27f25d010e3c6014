"""A person's own rules run in the process of all rules: what they raise drops them, and no others."""

from __future__ import annotations

from pathlib import Path

from support.offenders import check_each
from trainshed.contract.wire.rules import WantedRule
from trainshed.metrics.points import Point
from trainshed.studio.rules.watching import Rules

BROKEN = {
    "a syntax error": "def high(point:\n",
    "an error": "raise KeyError('x')\n",
    "an exit of the file": "import sys\n\nsys.exit(3)\n",
    "an error of the rule": "def high(point):\n    return point.nothing\n",
    "an exit of the rule": "def high(point):\n    raise SystemExit('too high')\n",
}


def test_a_rule_that_fails_or_exits_is_dropped_with_a_word_and_the_others_go_on(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text("def high(point):\n    return 'is high' if point.value > 1 else None\n")

    def check(name: str) -> None:
        (tmp_path / "own.py").write_text(BROKEN[name])
        rules = Rules([WantedRule("own.py:high", {}), WantedRule("good.py:high", {})], str(tmp_path))
        found = rules.take([Point("loss", 2.0, 1.0)], 1.0)
        assert [finding.text for _, finding in found] == ["is high"]
        (problem,) = rules.problems
        assert problem.startswith("rule own.py:high is ")

    check_each(BROKEN, check)
