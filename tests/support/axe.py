"""What axe-core finds on a page: its rules of accessibility, as the package axe-core-python brings them."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest


def findings(browser: Any) -> list[tuple[str, str, list[str]]]:
    """(rule, impact, elements) of what is wrong on the page that a browser shows, from moderate on.

    Skips the test where the package is missing; AXE_CORE may name an axe.min.js in its place.
    """
    spec = importlib.util.find_spec("axe_core_python")
    path = os.environ.get("AXE_CORE") or (f"{os.path.dirname(str(spec.origin))}/axe.min.js" if spec else "")
    if not path:
        pytest.skip("needs axe-core (pip install axe-core-python; or AXE_CORE, the path of an axe.min.js)")
    browser.set_script_timeout(600)
    browser.execute_script(Path(path).read_text(encoding="utf-8"))
    told = browser.execute_async_script("axe.run(document, {resultTypes: ['violations']}).then(arguments[0])")
    return [
        (one["id"], one["impact"], [node["html"][:200] for node in one["nodes"]])
        for one in told["violations"]
        if one["impact"] != "minor"
    ]
