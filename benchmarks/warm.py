"""How soon a script starts when a run finds a warm pool (`keep_alive`), against the first run and one without a pool.

    python benchmarks/warm.py --image NAME [--requirements "pandas scikit-learn"] [--megabytes 1024] [--rounds 3]

Measured from outside: the seconds from `trainshed run` to the script's first line, of a job in a container, with
a requirements.txt and a channel from a web server of this machine, which has ETags. The wheels lie on this
machine too (`pip download` fetches them once), so a real index and a real storage make the first two rows slower. Each
round takes turns: first run (nothing kept), second run without a pool (the channel comes from the user's cache, as always),
second run with the pool. Printed are the least, the middle and the most of each, and the ratio to the warm one.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = """\
import time
print("first line at", time.time(), flush=True)
import importlib, os
for name in os.environ["BENCH_MODULES"].split():
    importlib.import_module(name)
print("bytes", sum(entry.stat().st_size for entry in os.scandir(os.environ["SM_CHANNEL_TRAIN"])), flush=True)
"""
MODULES = {"scikit-learn": "sklearn", "pyyaml": "yaml", "pillow": "PIL"}
FIRST, AGAIN, WARM = "first run", "second run, no pool", "second run, warm pool"


class Web(BaseHTTPRequestHandler):
    """Serves zeros with an ETag, in ranges as well."""

    size = 0
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        """Size and ETag."""
        self._head(0, self.size)

    def do_GET(self) -> None:
        """A range, or all."""
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start = int(found[1]) if found else 0
        end = min(self.size, int(found[2]) + 1 if found and found[2] else self.size)
        self._head(start, end, partial=found is not None)
        block = bytes(1 << 20)
        for at in range(start, end, len(block)):
            self.wfile.write(block[: end - at])

    def _head(self, start: int, end: int, *, partial: bool = False) -> None:
        self.send_response(206 if partial else 200)
        self.send_header("Content-Length", str(end - start))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", '"one"')
        if partial:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{self.size}")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextmanager
def served(size: int) -> Iterator[str]:
    """Address of a file of so many bytes."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Sized", (Web,), {"size": size}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/data.bin"
    server.shutdown()


class Bench:
    """A project whose job is started again and again, with a state and a cache of its own."""

    def __init__(self, folder: Path, options: argparse.Namespace, address: str) -> None:
        self.folder, self.options = folder, options
        names = options.requirements.split()
        (folder / "code").mkdir()
        (folder / "code/train.py").write_text(SCRIPT)
        (folder / "code/requirements.txt").write_text("\n".join(names) + "\n")
        wheels = folder / "wheels"
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "-d", wheels, "--only-binary=:all:", *names], check=True
        )
        self.bytes = sum(path.stat().st_size for path in wheels.iterdir())
        modules = " ".join(MODULES.get(name, name) for name in (re.split(r"[<>=!~\[]", one)[0] for one in names))
        environment = {"PIP_FIND_LINKS": "/opt/ml/input/data/wheels", "PIP_NO_INDEX": "1", "BENCH_MODULES": modules}
        lines = [
            f"image: {options.image}",
            "program: train.py",
            "source_dir: code",
            f"channels: {{train: '{address}', wheels: wheels}}",
        ]
        lines += ["environment:", *(f"  {name}: '{value}'" for name, value in environment.items())]
        (folder / "job.yaml").write_text("\n".join(lines) + "\n")

    def trainshed(self, *arguments: str) -> str:
        """What a command prints. Raises AssertionError if it fails."""
        own = {"XDG_STATE_HOME": f"{self.folder}/state", "TRAINSHED_CHANNEL_CACHE": f"{self.folder}/cache"}
        own |= {"TRAINSHED_CHANNEL_CACHE_SIZE": "100g", "PYTHONPATH": str(ROOT / "toolkit")}
        command = [sys.executable, "-m", "trainshed.cli", *arguments]
        done = subprocess.run(command, cwd=self.folder, env={**os.environ, **own}, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def seconds(self, *flags: str) -> float:
        """From `trainshed run` to the script's first line."""
        began = time.time()
        printed = self.trainshed("run", "job.yaml", *flags)
        assert f"bytes {self.options.megabytes << 20}" in printed, printed
        shutil.rmtree(self.folder / "runs")
        return float(printed.split("first line at ")[1].split()[0]) - began

    def one_round(self) -> dict[str, float]:
        """Seconds of each kind of start."""
        self.trainshed("release", "all")
        shutil.rmtree(self.folder / "cache", ignore_errors=True)
        alive = ("--keep-alive", "10m")
        return {FIRST: self.seconds(*alive), AGAIN: self.seconds(), WARM: self.seconds(*alive)}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", required=True, help="an image with trainshed")
    parser.add_argument("--requirements", default="pandas scikit-learn")
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder, served(options.megabytes << 20) as address:
        bench = Bench(Path(folder), options, address)
        try:
            rounds = [bench.one_round() for _ in range(options.rounds)]
        finally:
            bench.trainshed("release", "all")
        print(f"image {options.image}; {options.requirements}, {bench.bytes >> 20} MB")
        print(f"of wheels; a channel of {options.megabytes} MB; {options.rounds} rounds")
        warm = statistics.median(one[WARM] for one in rounds)
        for what in (FIRST, AGAIN, WARM):
            taken = sorted(one[what] for one in rounds)
            middle = statistics.median(taken)
            print(f"{what:<22} {taken[0]:6.2f} {middle:6.2f} {taken[-1]:6.2f} s   {middle / warm:5.1f} x")
        time.sleep(2)  # the keepers see that their pools are gone


if __name__ == "__main__":
    main()
