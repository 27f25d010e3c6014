"""How long a rank imports, and when its process began."""

from __future__ import annotations

import sys
import time

from trainshed.observe.stepping.beginning import Imports, process_began


def test_modules_that_are_looked_for_one_after_the_other_are_one_import() -> None:
    moments = iter([10.0, 10.5, 10.75, 20.0, 20.25])
    imports = Imports(began=8.0, now=lambda: next(moments))
    for _ in range(4):
        imports.find_spec("a", None)

    assert imports.seconds == 2.0 + 0.75 + 0.25


def test_it_finds_nothing_and_leaves_no_trace() -> None:
    before = list(sys.meta_path)
    imports = Imports(began=time.time())
    imports.watch()
    try:
        assert sys.meta_path[0] is imports and imports.find_spec("a", None, None) is None
    finally:
        imports.leave()
        imports.leave()

    assert sys.meta_path == before


def test_a_process_began_before_now() -> None:
    assert 0 < process_began() <= time.time()
