"""Two lists of somebody who did not know the rules: 75 secrets in texts, and 75 texts that look alike, each.

When they were met, 1 and 4 secrets were shown (of the expressions before: 12 and 13), and 3 and 3 harmless texts masked,
of which one is left.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainshed.base.secrets import mask_text

LISTS = json.loads(Path(__file__).with_name("strangers_secrets.json").read_text())
pytestmark = pytest.mark.safety


@pytest.mark.parametrize(("name", "most"), [("first", 1), ("second", 4)])
def test_secrets_are_masked(name: str, most: int) -> None:
    shown = [one["text"] for one in LISTS[name]["secrets"] if one["secret"] in mask_text(one["text"])]

    assert len(LISTS[name]["secrets"]) == 75 and len(shown) <= most, shown


@pytest.mark.parametrize("name", LISTS)
def test_texts_that_look_alike_stay(name: str) -> None:
    masked = [text for text in LISTS[name]["harmless"] if mask_text(text) != text]

    assert len(LISTS[name]["harmless"]) == 75 and len(masked) <= 1, masked
