"""Precompiled C++ headers: made once and only from an empty cache, whole or not used, never in the kept cache."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainshed.compiler import headers
from trainshed.compiler.headers import Headers
from trainshed.contract.wire.compile_cache import files_of
from trainshed.contract.wire.compile_plan import CompilePlan
from trainshed.contract.wire.variables import COMPILE_PLAN

PREFIX = ("torch/cpp_prefix.h", "g++ -O3")


class Codecache(SimpleNamespace):
    """What is used of `torch._inductor.codecache`: a header is made in the folder that its variable names."""

    def __init__(self, fails: str = "") -> None:
        super().__init__(
            _HEADER_DIR="/nowhere",
            _HEADER_LOCK_DIR="/nowhere",
            config=SimpleNamespace(cpp_cache_precompile_headers=True, compile_threads=1),
        )
        self.made: list[str] = []
        self.fails = fails
        self._precompile_header: Callable[..., str] = self.make

    def make(self, header: str, command: str, **options: Any) -> str:
        self.made.append(header)
        path = Path(self._HEADER_DIR, "hash.h")
        path.write_text(f"#include <{header}>\n")
        output = Path(f"{path}.gch")
        if self.fails:
            output.write_text("a pa")
            raise RuntimeError(self.fails)
        if not output.exists():  # as inductor decides it
            output.write_text("whole")
        return str(path)


def of(module: Codecache, live: Path, cold: bool) -> Headers:
    return Headers(module, module.make, str(live), cold)


def test_they_are_made_once_in_an_empty_cache_and_used_by_every_process_after(tmp_path: Path) -> None:
    module = Codecache()
    first = of(module, tmp_path, True).path(*PREFIX, vec_isa="avx2")
    again = [of(module, tmp_path, cold).path(*PREFIX) for cold in (True, False)]

    assert Path(f"{first}.gch").read_text() == "whole" and first.startswith(f"{tmp_path}/")
    assert again == [first, first] and module.made == [PREFIX[0]]
    other = of(module, tmp_path, True).path(PREFIX[0], "g++ -O1")
    assert other != first and len(module.made) == 2
    assert files_of(str(tmp_path)) == {}  # they are not kept


def test_with_a_filled_cache_what_is_not_there_is_not_made(tmp_path: Path) -> None:
    module = Codecache()

    assert of(module, tmp_path, False).path(*PREFIX) == "" and module.made == []


@pytest.mark.safety
def test_what_a_killed_compiler_left_is_not_taken_for_whole(tmp_path: Path) -> None:
    killed = Codecache(fails="killed")
    assert of(killed, tmp_path, True).path(*PREFIX) == ""
    assert of(killed, tmp_path, False).path(*PREFIX) == ""  # a later process that makes none

    assert Path(f"{of(Codecache(), tmp_path, True).path(*PREFIX)}.gch").read_text() == "whole"


def test_after_a_failure_the_process_goes_on_without_them(tmp_path: Path) -> None:
    module = Codecache(fails="no space left on device")
    found = of(module, tmp_path, True)

    assert [found.path(*PREFIX), found.path("other.h", "g++")] == ["", ""] and len(module.made) == 1


def test_headers_that_somebody_cleaned_away_are_not_named(tmp_path: Path) -> None:
    module = Codecache()
    os.unlink(of(module, tmp_path, True).path(*PREFIX))

    assert of(module, tmp_path, False).path(*PREFIX) == ""
    assert os.path.exists(of(module, tmp_path, True).path(*PREFIX))


@pytest.mark.parametrize(
    ("on_cpus", "filled", "free", "threads", "makes"),
    [
        (True, False, headers.ROOM, headers.THREADS, True),
        (False, False, headers.ROOM, 1, False),  # a GPU
        (True, True, headers.ROOM, 1, False),
        (True, False, headers.ROOM - 1, 1, False),
        (True, False, headers.ROOM, headers.THREADS + 1, False),
    ],
)
def test_who_makes_them(
    on_cpus: bool, filled: bool, free: int, threads: int, makes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = CompilePlan("inductor", live=str(tmp_path), headers=on_cpus)
    monkeypatch.setenv(COMPILE_PLAN, plan.to_text())
    monkeypatch.delenv(headers.VARIABLE, raising=False)
    monkeypatch.setattr(headers.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    if filled:
        (tmp_path / "fxgraph").mkdir()
    module = Codecache()
    module.config.compile_threads = threads
    headers.install(module)

    assert bool(module._precompile_header(*PREFIX)) == makes == bool(module.made)
    assert module.config.cpp_cache_precompile_headers  # it is a part of the cache's keys, cold or warm


def test_a_users_own_choice_stays_and_other_versions_of_torch_make_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(COMPILE_PLAN, CompilePlan("inductor", live=str(tmp_path), headers=True).to_text())
    monkeypatch.setenv(headers.VARIABLE, "1")
    chosen = Codecache()
    headers.install(chosen)
    assert chosen._precompile_header == chosen.make

    monkeypatch.delenv(headers.VARIABLE)
    other = Codecache()
    del other._HEADER_DIR
    headers.install(other)
    assert other._precompile_header == other.make and not other.config.cpp_cache_precompile_headers
