"""What rules have found, read from files that anybody may have written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainshed.contract.wire.findings import MOST, Finding, findings_in

GOOD = Finding("LossSpike", "warn", "loss was 9", 1.0, 7, 0)


def lay(folder: Path, *lines: str) -> str:
    (folder / "rules").mkdir()
    (folder / "rules/algo-1.json").write_text("".join(f"{line}\n" for line in lines))
    return str(folder)


def test_findings_are_read_in_order(tmp_path: Path) -> None:
    late = GOOD.replace(rule="Overfit", step=None, rank=None)
    output = lay(tmp_path, json.dumps(GOOD.plain()), json.dumps(late.plain()))

    assert findings_in(output) == [GOOD, late]
    assert (GOOD.place, late.place) == ("step 7, rank 0", "")


@pytest.mark.parametrize(
    "line",
    ["", "no JSON", "[1]", "{}", '{"rule": 1, "action": "", "text": "", "time": 1}', "[" * 9000,
     '{"rule": "", "action": "", "text": "", "time": 1, "step": "7"}', '{"rule": "", "action": "", "text": "", "time": ""}'],
)  # fmt: skip
def test_what_is_no_finding_is_left_out(tmp_path: Path, line: str) -> None:
    assert findings_in(lay(tmp_path, line, json.dumps(GOOD.plain()))) == [GOOD]


def test_there_may_be_none_or_very_many(tmp_path: Path) -> None:
    assert findings_in(str(tmp_path)) == []
    assert len(findings_in(lay(tmp_path, *[json.dumps(GOOD.plain())] * 1000))) == MOST
