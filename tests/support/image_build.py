"""Builds the images that tests/images runs, from this checkout and without an image registry.

An image's tag is a hash of everything it was made of, so a build that would change nothing is one `docker inspect`.
`python tests/support/image_build.py` builds it by hand.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import glob
import hashlib
import http.server
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BASE_IMAGE = os.environ.get("TRAINSHED_TEST_BASE") or "trainshed-test-base"
CPU_IMAGE = "trainshed-test-cpu"
SMALL_IMAGE = "trainshed-test-small"
KEPT = 3  # images of earlier sources, and of their stages: a changed pyproject.toml gives each 0.7 GB of its own
# What Dockerfile.cpu copies; .dockerignore lets nothing else through to the builder.
SOURCES = ("Dockerfile.cpu", ".dockerignore", "pyproject.toml", "README.md", "LICENSE", "toolkit", "entrypoints",
           "images/install", "images/cpu/constraints.txt")  # fmt: skip
WHEEL_SOURCES = ("pyproject.toml", "README.md", "LICENSE", "toolkit", "entrypoints")
SMALL = """\
ARG BASE_IMAGE
FROM $BASE_IMAGE
ARG PIP_INDEX_URL=
ARG PIP_FIND_LINKS=
COPY {wheel} /tmp/
RUN python3 -m pip install --no-cache-dir /tmp/{wheel}
CMD ["train"]
"""


class BuildError(Exception):
    """An image could not be built; the message ends with the builder's last lines."""


def inspect(image: str, form: str) -> str:
    """One field of an image in Docker's template language, "" where there is no such image."""
    done = subprocess.run(["docker", "image", "inspect", "--format", form, image], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def build_base() -> str:
    """The name of the base image, made with debootstrap if need be. Raises BuildError."""
    done = subprocess.run([ROOT / "tests/support/base_image.sh", BASE_IMAGE], capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(f"the base image {BASE_IMAGE} could not be made:\n{done.stderr[-2000:]}")
    return BASE_IMAGE


def build_cpu() -> str:
    """The name of an image of Dockerfile.cpu as it is in this checkout, on the local base image. Raises BuildError.

    The tag is the hash, so that tests of two checkouts on one machine do not take each other's image.
    """
    with _one_build():
        base = build_base()
        inputs = _hash(ROOT, SOURCES, inspect(base, "{{.Id}}"))
        name = f"{CPU_IMAGE}:{inputs}"
        if not inspect(name, "{{.Id}}"):
            about = {"BASE_IMAGE": base, "VERSION": "0.0.0+test", "REVISION": inputs, "SOURCE": "this checkout"}
            with pip_arguments() as arguments:
                made = {**arguments, **about, "WITH": "tabular"}
                build(ROOT, name, dockerfile="Dockerfile.cpu", arguments=made, labels={})
            _forget_old(CPU_IMAGE)
    return name


def build_small() -> str:
    """The name of the base image with a wheel of this checkout in it, and nothing else. Raises BuildError."""
    from support.wheels import own_wheel  # not on the path of who builds the other one by hand

    with _one_build():
        base = build_base()
        name = f"{SMALL_IMAGE}:{_hash(ROOT, WHEEL_SOURCES, inspect(base, '{{.Id}}'))}"
        if not inspect(name, "{{.Id}}"):
            with tempfile.TemporaryDirectory() as context, pip_arguments() as arguments:
                wheel = own_wheel(Path(context))
                Path(context, "Dockerfile").write_text(SMALL.format(wheel=wheel))
                made = {key: value for key, value in arguments.items() if key != "TORCH_INDEX_URL"}
                build(Path(context), name, arguments={**made, "BASE_IMAGE": base}, labels={})
            _forget_old(SMALL_IMAGE)
    return name


@contextlib.contextmanager
def _one_build() -> Iterator[None]:
    """One build at a time: a second one would wait for the same layers, or not find them in the builder's cache."""
    with open(Path(tempfile.gettempdir()) / "trainshed-test-build.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _forget_old(image: str) -> None:
    """Removes all but the newest images of earlier sources and their stages; one that a container holds stays."""
    listing = ["docker", "image", "ls", "--format"]  # lists the newest first
    stages = ["{{.ID}}", "--filter", "dangling=true", "--filter", "label=trainshed.stage"]
    for listed in (["{{.Repository}}:{{.Tag}}", image], stages):
        for name in subprocess.run([*listing, *listed], capture_output=True, text=True).stdout.split()[KEPT:]:
            subprocess.run(["docker", "image", "rm", name], capture_output=True)


def build(
    context: Path, name: str, *, dockerfile: str = "Dockerfile", arguments: dict[str, str], labels: dict[str, str]
) -> None:
    """`docker build` with the host's network, so that pip reaches what it reaches here. Raises BuildError."""
    command = ["docker", "build", "--network", "host", "--force-rm", "--tag", name, "--file", str(context / dockerfile)]
    for key, value in arguments.items():
        command += ["--build-arg", f"{key}={value}"]
    for key, value in labels.items():
        command += ["--label", f"{key}={value}"]
    done = subprocess.run([*command, str(context)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise BuildError(f"{name} could not be built from {context / dockerfile}:\n{done.stdout[-4000:]}")


def _hash(root: Path, sources: tuple[str, ...], *more: str) -> str:
    """A short hash of the files below `sources` (path, mode, content) and of `more`."""
    files = []
    for source in sources:
        path = root / source
        files += sorted(path.rglob("*")) if path.is_dir() else [path]
    digest = hashlib.sha256(repr(more).encode())
    for file in files:
        if file.is_file() and "__pycache__" not in file.parts and ".egg-info" not in str(file):
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            digest.update(f"{file.relative_to(root)} {file.stat().st_mode:o} {content}\n".encode())
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def pip_arguments() -> Iterator[dict[str, str]]:
    """Build arguments that let pip in the build see what pip sees here.

    PIP_FIND_LINKS may be a folder of this machine, which a build cannot see: it is served on the loopback interface
    while the build runs. With a torch wheel in it the index of CPU builds is not asked.
    """
    arguments = {key: os.environ[key] for key in ("PIP_INDEX_URL", "TORCH_INDEX_URL") if key in os.environ}
    links = os.environ.get("PIP_FIND_LINKS", "")
    if not os.path.isdir(links):
        yield arguments | ({"PIP_FIND_LINKS": links} if links else {})
        return
    with _serve(links) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            if glob.glob(f"{glob.escape(links)}/torch-*.whl"):
                arguments.setdefault("TORCH_INDEX_URL", "")
            yield arguments | {"PIP_FIND_LINKS": f"http://127.0.0.1:{server.server_port}/"}
        finally:
            server.shutdown()
            thread.join()


def _serve(folder: str) -> http.server.ThreadingHTTPServer:
    """A server of one folder, on the same port each time: the builder's cache takes another URL for another build."""
    handler = functools.partial(_QuietHandler, directory=folder)
    usual = 20_000 + int(hashlib.sha256(folder.encode()).hexdigest(), 16) % 10_000
    try:
        return http.server.ThreadingHTTPServer(("127.0.0.1", usual), handler)
    except OSError:  # taken: another build runs just now
        return http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    try:
        print(build_cpu())
    except BuildError as error:
        sys.exit(str(error))
