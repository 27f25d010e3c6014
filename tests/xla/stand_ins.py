"""Libraries that let PyPI's CUDA build of torch be imported on a machine without CUDA, and without 3 GB of NVIDIA packages.

    python stand_ins.py SITE_PACKAGES

torch_xla is built for that torch alone, and a test on a CPU calls nothing of CUDA; but the dynamic linker wants every
library that torch names, with the symbols and versions it names. Each is made here as a shared library whose functions
trap. The CUDA runtime has to be real (static initialisers call it) and comes as a package of 1 MB. For tests only: the xla
image installs the packages.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

CUDA = re.compile(r"lib(cu|nv|nccl)")
REAL = "libcudart"
# Libraries whose symbols have no version, and how the symbols begin.
UNVERSIONED = {
    "libnccl": "nccl",
    "libcurand": "curand",
    "libcusparseLt": "cusparseLt",
    "libcufile": "cuFile",
    "libnvshmem_host": "nvshmem",
    "libcuda": "cu[A-Z]",
}


def output(*command: object) -> str:
    """What a program prints."""
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True).stdout


def wanted(libraries: list[Path]) -> dict[str, dict[str, set[str]]]:
    """Library -> version ("" for none) -> symbols that the given libraries take from it."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    owner: dict[str, str] = {}  # of a version
    for path in libraries:
        for name in re.findall(r"NEEDED.*\[(.+?)\]", output("readelf", "-dW", path)):
            if CUDA.match(name):
                found[name][""].update()
        library = ""
        for line in output("readelf", "-VW", path).splitlines():
            if match := re.search(r"Version: 1\s+File: (\S+)", line):
                library = match[1]
            elif (match := re.search(r"Name: (\S+)\s+Flags", line)) and CUDA.match(library):
                found[library][match[1]].update()
                owner[match[1]] = library
    for path in libraries:
        for line in output("readelf", "--dyn-syms", "-W", path).splitlines():
            fields = line.split()
            if len(fields) < 8 or fields[6] != "UND":
                continue
            name, _, version = fields[7].replace("@@", "@").partition("@")
            if version in owner:
                found[owner[version]][version].add(name)
            elif not version:
                for library in found:
                    start = UNVERSIONED.get(library.partition(".")[0])
                    if start and re.match(start, name):
                        found[library][""].add(name)
    return found


def make(path: Path, versions: dict[str, set[str]]) -> None:
    """One library with these symbols."""
    names = sorted(set().union(*versions.values()))
    with tempfile.TemporaryDirectory() as folder:
        source, script = Path(folder, "s.c"), Path(folder, "s.map")
        source.write_text("void f_(void);\n" + "".join(f"void {name}(void) {{ __builtin_trap(); }}\n" for name in names))
        named = {version: symbols for version, symbols in versions.items() if version}
        script.write_text(
            "".join(
                f"{version} {{ global: {' '.join(f'{name};' for name in sorted(symbols))} }};\n"
                for version, symbols in sorted(named.items())
            )
        )
        options = ["-w", "-O0", "-fno-builtin", "-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{path.name}"]
        output("gcc", *options, *([f"-Wl,--version-script={script}"] if named else []), source, "-o", path)


def main() -> None:
    """The command."""
    folder = Path(sys.argv[1], "torch/lib")
    own = [path for path in folder.glob("*.so*") if path.is_file() and not CUDA.match(path.name)]
    for library, versions in wanted(own).items():
        if not library.startswith(REAL):
            make(folder / library, versions)


if __name__ == "__main__":
    main()
