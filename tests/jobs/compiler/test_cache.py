"""The compile cache as one file: whole or not there, never outside its folder, and only for the machine it was made on."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from support.properties import given, st
from trainshed.compiler.instructions import remembered
from trainshed.container.compiler import cache
from trainshed.contract.wire.compile_cache import files_of, pack, packed_names, unpack
from trainshed.contract.wire.compile_plan import CompilePlan

pytestmark = pytest.mark.safety


def trees() -> Any:
    """The strategy of files by their folders and names."""
    names = st.text("abcXYZ019_-.é ", min_size=1, max_size=12).filter(lambda name: name.strip(".") and name == name.strip())
    return st.dictionaries(st.tuples(names, names), st.binary(max_size=200), min_size=1, max_size=8)


def fill(live: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = live / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@given(trees, max_examples=40)
def test_what_is_packed_comes_back(tree: dict[tuple[str, str], bytes], *, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("cache")
    files = {f"d{folder}/f{name}": content for (folder, name), content in tree.items()}
    kept = {name: content for name, content in files.items() if not name.endswith((".tmp", ".lock"))}
    fill(root / "live", files)
    count = pack(str(root / "live"), str(root / "store/key.tar"))

    assert count == len(kept)
    if kept:
        assert unpack(str(root / "store/key.tar"), str(root / "new")) == count
        assert content_of(root / "new") == kept
        assert os.listdir(root / "store") == ["key.tar"]


def test_a_cache_that_is_packed_already_is_not_written_again(tmp_path: Path) -> None:
    fill(tmp_path / "live", {"a/one": b"1"})
    store = str(tmp_path / "key.tar")

    assert pack(str(tmp_path / "live"), store) == 1
    assert pack(str(tmp_path / "live"), store) == 0
    fill(tmp_path / "live", {"b/two": b"2"})
    assert pack(str(tmp_path / "live"), store) == 2 and packed_names(store) == {"a/one", "b/two"}


def test_locks_files_being_written_and_links_stay_behind(tmp_path: Path) -> None:
    files = {"a/one": b"1", "a/.9.8.tmp": b"", "locks/f": b"", "a/one.lock": b"", "tmp.pid_3/kernel": b"", "a/locks/g": b""}
    fill(tmp_path, files)
    (tmp_path / "a/link").symlink_to("/etc/passwd")

    assert files_of(str(tmp_path)).keys() == {"a/one", "a/locks/g"}


def test_what_is_there_already_is_left_as_it_is_and_executables_stay_executable(tmp_path: Path) -> None:
    fill(tmp_path / "live", {"a/one": b"1", "a/run": b"2"})
    (tmp_path / "live/a/run").chmod(0o755)
    pack(str(tmp_path / "live"), str(tmp_path / "key.tar"))
    fill(tmp_path / "new", {"a/one": b"mine"})

    assert unpack(str(tmp_path / "key.tar"), str(tmp_path / "new")) == 1
    assert content_of(tmp_path / "new") == {"a/one": b"mine", "a/run": b"2"}
    assert os.access(tmp_path / "new/a/run", os.X_OK) and not os.access(tmp_path / "new/a/one", os.X_OK)


@pytest.mark.parametrize("name", ["../out", "/etc/out", "a/../../out"])
def test_an_archive_that_leads_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "bad.tar", "w") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = 1
        archive.addfile(entry, io.BytesIO(b"x"))

    with pytest.raises(ValueError, match="is not a file of the compile cache"):
        unpack(str(tmp_path / "bad.tar"), str(tmp_path / "live"))
    assert not (tmp_path / "out").exists()


def test_a_link_in_an_archive_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "bad.tar", "w") as archive:
        entry = tarfile.TarInfo("a")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc"
        archive.addfile(entry)

    with pytest.raises(ValueError, match="not a file of the compile cache"):
        unpack(str(tmp_path / "bad.tar"), str(tmp_path / "live"))


def plan_for(tmp_path: Path, **fields: object) -> CompilePlan:
    return CompilePlan("inductor", live=str(tmp_path / "live"), store=str(tmp_path / "store/key.tar")).replace(**fields)


@pytest.mark.parametrize("cut", [0, 700, 1500])
def test_a_damaged_archive_costs_a_line_and_nothing_else(cut: int, tmp_path: Path) -> None:
    fill(tmp_path / "made", {"a/one": b"1" * 600, "b/two": b"2" * 600})
    plan = plan_for(tmp_path)
    pack(str(tmp_path / "made"), plan.store)
    with open(plan.store, "r+b") as file:
        file.truncate(cut)
    said: list[str] = []
    cache.restore(plan, said.append)

    assert len(said) == 1 and said[0].startswith("compile cache: ")
    for name, content in content_of(tmp_path / "live").items():
        assert content == content_of(tmp_path / "made")[name]


def test_only_the_first_host_writes_unless_nobody_has(tmp_path: Path) -> None:
    fill(tmp_path / "live", {"a/one": b"1"})
    other = plan_for(tmp_path, keeper=False)
    said: list[str] = []
    cache.keep(other, said.append)
    assert packed_names(other.store) == {"a/one"} and len(said) == 1  # its folder is its own
    fill(tmp_path / "live", {"b/two": b"2"})
    cache.keep(other, said.append)
    assert packed_names(other.store) == {"a/one"}
    cache.keep(plan_for(tmp_path), said.append)
    assert packed_names(other.store) == {"a/one", "b/two"}


def test_a_folder_of_another_user_or_open_to_all_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"TMPDIR": str(tmp_path)}
    folder = cache.live_folder(environ, "key")
    assert folder == f"{tmp_path}/trainshed-compile-{os.getuid()}/key"
    root = Path(folder).parent
    root.mkdir(mode=0o700)
    assert cache.live_folder(environ, "key") == folder
    root.chmod(0o777)
    assert cache.live_folder(environ, "key") == ""
    root.chmod(0o700)
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    root.rename(root.parent / f"trainshed-compile-{other}")
    assert cache.live_folder(environ, "key") == ""


def test_the_key_tells_torches_devices_and_cpus_apart(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("model name\t: A\nflags\t\t: sse avx2\n")
    (tmp_path / "new").write_text("model name\t: A\nflags\t\t: sse avx2 avx512f amx_bf16\n")
    (tmp_path / "gpus/0000:01").mkdir(parents=True)
    (tmp_path / "gpus/0000:01/information").write_text("Model: \t NVIDIA A10G\nIRQ: 1\n")

    def key(torch: str, device: str, cpus: str) -> str:
        return cache.key(torch, device, cpus=str(tmp_path / cpus), gpus=str(tmp_path / "gpus"))

    keys = [
        key("2.9.0", "cpu", "old"),
        key("2.9.0", "cpu", "new"),
        key("2.13.0+cpu", "cpu", "new"),
        key("2.9.0", "cuda", "old"),
    ]
    assert len(set(keys)) == 4
    assert key("2.9.0", "cuda", "new") == keys[3] and keys[3].endswith("NVIDIA-A10G")
    assert "avx2-" in keys[0] and "avx512f-" in keys[1] and all("/" not in name and "+" not in name for name in keys)


class _Instructions:
    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name

    def build_arch_flags(self) -> str:
        return f"-m{self.name}"


def test_instructions_that_worked_are_not_tried_again_and_others_are(tmp_path: Path) -> None:
    asked: list[str] = []

    def check(self: _Instructions, code: str) -> bool:
        asked.append(f"{self} {code}")
        return str(self) != "bad"

    live, new = str(tmp_path / "live"), str(tmp_path / "new")
    works = remembered(check, live)
    cases = [(_Instructions(name), code) for name in ("avx2", "bad") for code in ("a", "b")]

    assert [works(*case) for case in cases * 2] == [True, True, False, False] * 2
    assert asked == ["avx2 a", "avx2 b", *["bad a", "bad b"] * 2]
    pack(live, str(tmp_path / "key.tar"))
    unpack(str(tmp_path / "key.tar"), new)
    assert remembered(check, new)(*cases[0]) and len(asked) == 6
