"""What `trainshed.data` reads, beside webdataset, HF datasets, and the least that any reader must do, on the same files.

    python benchmarks/data.py                       # 1 GB through the pipe, 256 MB of each kind of file
    python benchmarks/data.py --only pipe --mb 4096
    python benchmarks/data.py --no-peers            # installs nothing

pipe: recordio-protobuf records of three sizes through a FIFO to batches of tensors, in one process; beside a loop that only
reads the FIFO. tar, jsonl, parquet: batches of 64, in one process, in the order of the files; samples a second, seconds from
the start of the reader to its first batch, CPU seconds for 1,000 samples, and the memory that was added at most. Plain:
open(), tarfile, json, pyarrow, with the same batches. Peers get environments of their own, with the torch of this one.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from pathlib import Path

from _claims import claim

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "toolkit"))

TOOLKIT = Path(__file__).resolve().parents[1] / "toolkit"
BATCH = 64
PEERS = {"webdataset": ("webdataset==1.0.2",), "datasets": ("datasets==5.2.0",)}
KINDS = ("tar", "jsonl", "parquet")
# What a sample may cost, as a multiple of what it costs a peer.
PEER_LIMITS = {
    "tar": {"webdataset": 1.0},
    "jsonl": {"plain": 1.1, "datasets": 1.0},
    "parquet": {"plain": 1.1, "datasets": 1.0},
}
RECORD_BYTES = (4096, 512, 65536)
LOOP = """
import json, os, resource, sys, time
kind, reader, path, batch = sys.argv[1], sys.argv[2], sys.argv[3], 64
import torch
torch.set_num_threads(1)
files = sorted(os.path.join(path, name) for name in os.listdir(path))

def plain():
    if kind == "tar":
        import tarfile
        def samples():
            for file in files:
                with tarfile.open(file) as archive:
                    one = {}
                    for member in archive:
                        one[member.name.partition(".")[2]] = archive.extractfile(member).read()
                        if len(one) == 2:
                            yield one
                            one = {}
    elif kind == "jsonl":
        def samples():
            for file in files:
                with open(file, "rb") as lines:
                    yield from map(json.loads, lines)
    else:
        import pyarrow.parquet
        def samples():
            for file in files:
                for rows in pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=1024):
                    yield from rows.to_pylist()
    return samples()

def batches():
    if reader == "trainshed":
        from trainshed.data import folder
        return folder(path).loader(batch, collate=list)
    if reader == "webdataset":
        import webdataset
        found = webdataset.WebDataset(files, shardshuffle=False)
    elif reader == "datasets":
        import datasets
        found = datasets.load_dataset("json" if kind == "jsonl" else kind, data_files=files, streaming=True, split="train")
    else:
        found = plain()
    def made():
        held = []
        for sample in found:
            held.append(sample)
            if len(held) == batch:
                yield held
                held = []
        if held:
            yield held
    return made()

before = resource.getrusage(resource.RUSAGE_SELF)
started, first, count = time.monotonic(), None, 0
for held in batches():
    count += len(held)
    first = first or time.monotonic() - started
seconds, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_SELF)
cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
memory = after.ru_maxrss - before.ru_maxrss
print(json.dumps({"samples": count, "seconds": seconds, "first": first, "cpu": cpu, "memory": memory}))
"""
PIPE = """
import json, os, sys, time
path, reads = sys.argv[1], sys.argv[2]
started, count, spent = None, 0, 0.0
if reads == "plain":
    with open(path + "_0", "rb", buffering=0) as pipe:
        buffer = memoryview(bytearray(1 << 20))
        while taken := pipe.readinto(buffer):
            started, spent = started or time.monotonic(), spent or time.process_time()
            count += taken
else:
    import torch
    torch.set_num_threads(1)
    from trainshed.data.channels import ChannelFacts
    from trainshed.data.formats.table import named
    from trainshed.data.pipe_stream import Stream
    facts = ChannelFacts("train", path, "Pipe", "application/x-recordio-protobuf")
    for batch in Stream(facts, named("recordio-protobuf"), {}).loader(64):
        started, spent = started or time.monotonic(), spent or time.process_time()
        count += 4 * batch["features"].numel()
print(json.dumps({"bytes": count, "seconds": time.monotonic() - started, "cpu": time.process_time() - spent}))
"""


def write(kind: str, folder: Path, megabytes: int) -> None:
    """Four files of a kind."""
    draw = random.Random(0)
    folder.mkdir()
    text = [draw.randbytes(24).hex() for _ in range(1000)]
    for number in range(4):
        size = megabytes * (1 << 20) // 4
        if kind == "tar":
            with tarfile.open(folder / f"{number}.tar", "w") as archive:
                for sample in range(size // (32 << 10)):
                    for ending, data in (("jpg", draw.randbytes(30 << 10)), ("cls", b"7")):
                        member = tarfile.TarInfo(f"{number:02}{sample:06}.{ending}")
                        member.size = len(data)
                        archive.addfile(member, io.BytesIO(data))
            continue
        rows = [
            {"id": sample, "text": " ".join(draw.choices(text, k=20)), "label": sample % 10}
            for sample in range(size // 1024)
        ]
        if kind == "jsonl":
            (folder / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            import pyarrow
            from pyarrow import parquet

            parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{number}.parquet", row_group_size=4096)


def record(size: int) -> bytes:
    """A frame of about so many bytes: a vector of float32 and a label."""

    def field(number: int, data: bytes) -> bytes:
        length = b""
        rest = len(data)
        while rest > 0x7F:
            length, rest = length + bytes([rest & 0x7F | 0x80]), rest >> 7
        return bytes([number << 3 | 2]) + length + bytes([rest]) + data

    def entry(values: list[float]) -> bytes:
        return field(1, b"values") + field(2, field(2, field(1, struct.pack(f"<{len(values)}f", *values))))

    payload = field(1, entry([float(n) for n in range(size // 4 - 16)])) + field(2, entry([1.0]))
    return struct.pack("<II", 0xCED7230A, len(payload)) + payload + bytes(-len(payload) % 4)


def pipe(folder: Path, megabytes: int, size: int) -> None:
    """Prints what comes through a FIFO. size: of a record, bytes."""
    frames = record(size) * max(1, (1 << 20) // size)

    def feed(path: Path) -> None:
        with open(path, "wb", buffering=0) as target:
            try:
                import fcntl

                fcntl.fcntl(target, fcntl.F_SETPIPE_SZ, 1 << 20)  # type: ignore[attr-defined]
            except OSError:
                pass
            for _ in range((megabytes << 20) // len(frames)):
                target.write(frames)

    print(f"\nA FIFO of recordio-protobuf records of {size:,} bytes, {megabytes} MB, one process")
    rates = {}
    for reads in ("plain", "trainshed"):
        place = folder / f"{size}-{reads}" / "input" / "data"
        place.mkdir(parents=True)
        os.mkfifo(place / "train_0")
        feeder = threading.Thread(target=feed, args=(place / "train_0",), daemon=True)
        feeder.start()
        found = ran(sys.executable, PIPE, str(place / "train"), reads)
        feeder.join()
        what = "only reading the FIFO" if reads == "plain" else "trainshed.data, batches of tensors"
        wall, cpu = (found["bytes"] / found[clock] / 1e9 for clock in ("seconds", "cpu"))
        rates[reads] = cpu
        print(f"  {what:38} {wall:6.2f} GB/s {cpu:6.2f} GB a CPU second", flush=True)
    limit = {4096: 1.5, 512: 0.6}.get(size)
    name = f"data: a FIFO of records of {size:,} bytes"
    claim(name, rates["trainshed"], "GB a CPU s", limit=limit, at_least=True, peer=rates["plain"], peer_name="only reading")


def ran(python: str, script: str, *words: str) -> dict[str, float]:
    """What a script prints."""
    environ = {**os.environ, "PYTHONPATH": str(TOOLKIT), "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    done = subprocess.run([python, "-c", script, *words], env=environ, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def pythons(peers: bool) -> dict[str, str]:
    """The interpreter of each reader."""
    found = {"trainshed": sys.executable, "plain": sys.executable}
    if peers:
        from _venvs import Venvs, say

        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        venvs = Venvs(Path(cache, "trainshed-bench"), sys.executable)
        for name, packages in PEERS.items():
            say(f"installing {name}")
            found[name] = venvs.with_torch(name, packages)
    return found


def main() -> None:
    """Measures, and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("pipe", *KINDS), help="one table alone")
    parser.add_argument("--mb", type=int, default=0, help="of the pipe (default: 1024), or of each kind of file (256)")
    parser.add_argument("--no-peers", action="store_true", help="beside plain reading alone")
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if options.only in (None, "pipe"):
            for size in RECORD_BYTES:
                pipe(folder, options.mb or 1024, size)
        kinds = [kind for kind in KINDS if options.only in (None, kind)]
        readers = pythons(not options.no_peers) if kinds else {}
        for kind in kinds:
            write(kind, folder / kind, options.mb or 256)
            print(f"\n{kind}, {options.mb or 256} MB, batches of {BATCH}, one process")
            print(f"  {'':12} samples/s   first batch   CPU s / 1,000   memory added")
            found = {}
            for name, python in readers.items():
                if (kind == "tar" and name == "datasets") or (kind != "tar" and name == "webdataset"):
                    continue  # it reads the other kinds
                one = found[name] = ran(python, LOOP, kind, name, str(folder / kind))
                print(
                    f"  {name:12} {one['samples'] / one['seconds']:9,.0f} {one['first']:11.2f} s "
                    f"{1000 * one['cpu'] / one['samples']:13.4f} {one['memory'] / 1024:12.0f} MiB",
                    flush=True,
                )
            costs = {name: 1000 * one["cpu"] / one["samples"] for name, one in found.items()}
            for peer, times in PEER_LIMITS[kind].items():
                if peer in costs:
                    name = f"data: 1,000 samples of {kind}, beside {peer}"
                    claim(name, costs["trainshed"], "CPU s", times=times, peer=costs[peer], peer_name=peer)
            if kind == "tar":
                claim("data: first batch of tar", found["trainshed"]["first"], "s", limit=0.03)


if __name__ == "__main__":
    started = time.monotonic()
    main()
    print(f"\n{time.monotonic() - started:.0f} s", file=sys.stderr)
