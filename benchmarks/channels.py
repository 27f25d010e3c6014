"""How long a channel on S3 takes to be there: fetched, fetched again, streamed, and by boto3 file after file.

    python benchmarks/channels.py [--files 200] [--kilobytes 256] [--rounds 3]

An S3 of this machine's own (moto, in a process of its own) gives the files, so the server is the bound of what is
fetched; the ways take turns. Printed are the least seconds of each until a script could read its first byte and until
all was read, and the ratio to boto3's `download_file`, one file after the other, as the runner fetched before.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "toolkit")]

from trainshed.runner.files import layout  # noqa: E402
from trainshed.runner.files.fetching.s3 import Bucket  # noqa: E402
from trainshed.runner.files.mounts import Mounts  # noqa: E402
from trainshed.runner.files.staging import stage  # noqa: E402
from trainshed.runner.job.job import ChannelSpec, Job  # noqa: E402

SERVE = """\
import sys, time
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
URI = "s3://bucket/data/"


@contextmanager
def storage() -> Iterator[None]:
    """Variables of this process lead to the S3 for as long as the block lasts."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert server.stdout is not None
    os.environ |= {
        "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{server.stdout.readline().strip()}",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "us-east-1",
        "NO_PROXY": "127.0.0.1",
    }
    try:
        yield
    finally:
        server.kill()
        server.communicate()


def read_all(folder: str) -> int:
    """Bytes below a folder, each read."""
    return sum(len(path.read_bytes()) for path in sorted(Path(folder).rglob("*")) if path.is_file())


def by_runner(folder: Path, mode: str) -> tuple[float, float]:
    """Seconds until the channel is there, and until all of it was read."""
    job = Job(name="x", channels=(ChannelSpec("train", URI, mode),), output=f"{folder}/run")
    run = layout.claim(layout.plan(job, in_containers=False, now=time.time()))
    layout.place(run, interface="lo")
    mounts = Mounts(run, os.environ)
    began = time.monotonic()
    try:
        stage(run, os.environ, lambda text: None, mounts=mounts)
        assert bool(mounts.mounts) == (mode == "FastFile"), "rclone and FUSE are needed"
        there = time.monotonic() - began
        read_all(run.data(run.hosts[0], run.job.channels[0]))
        return there, time.monotonic() - began
    finally:
        mounts.close()
        shutil.rmtree(run.folder)


def by_boto3(folder: Path) -> tuple[float, float]:
    """The same, file after file."""
    import boto3

    client = boto3.client("s3")
    began = time.monotonic()
    for item in Bucket(URI, os.environ).objects("S3Prefix"):
        client.download_file("bucket", f"data/{item.name}", f"{folder}/{item.name}")
    there = time.monotonic() - began
    read_all(str(folder))
    return there, time.monotonic() - began


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--kilobytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with storage(), tempfile.TemporaryDirectory() as place:
        import boto3

        client = boto3.client("s3")
        client.create_bucket(Bucket="bucket")
        for number in range(options.files):
            client.put_object(Bucket="bucket", Key=f"data/{number:05d}", Body=os.urandom(options.kilobytes << 10))
        cache = f"{place}/cache"
        os.environ["TRAINSHED_" + "CHANNEL_CACHE"] = cache

        def fetched(folder: Path) -> tuple[float, float]:
            shutil.rmtree(cache, ignore_errors=True)
            return by_runner(folder, "File")

        ways: dict[str, Callable[[Path], tuple[float, float]]] = {
            "boto3, file after file": by_boto3,
            "fetched": fetched,
            "fetched again (kept)": lambda folder: by_runner(folder, "File"),
            "streamed (FastFile)": lambda folder: by_runner(folder, "FastFile"),
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for number in range(options.rounds):
            for name, way in ways.items():
                folder = Path(place) / f"{number}-{len(name)}"
                folder.mkdir()
                found[name].append(way(folder))
                shutil.rmtree(folder)
    first = min(whole for _, whole in found["boto3, file after file"])
    print(f"{options.files} files of {options.kilobytes} kB, {os.cpu_count()} CPUs, {options.rounds} rounds")
    print("| way | there, s | all read, s | boto3 takes |\n|---|---|---|---|")
    for name, times in found.items():
        there, whole = min(one for one, _ in times), min(one for _, one in times)
        print(f"| {name} | {there:.2f} | {whole:.2f} | {first / whole:.1f} times as long |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
