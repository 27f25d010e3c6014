"""What axe-core finds on a page: its rules of accessibility, as the package axe-core-python brings them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

GRAVE = ("moderate", "serious", "critical")


def findings(browser: Any) -> list[str]:
    """What is wrong on the page that a browser shows, from moderate on. Skips the test where the package is missing."""
    found = importlib.util.find_spec("axe_core_python")
    if found is None or found.origin is None:
        pytest.skip("needs axe-core-python")
    browser.set_script_timeout(600)
    browser.execute_script((Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8"))
    told = browser.execute_async_script("axe.run().then(arguments[0])")
    return [
        f"{one['impact']}: {one['id']}: {one['nodes'][0]['html'][:200]}"
        for one in told["violations"]
        if one["impact"] in GRAVE
    ]
