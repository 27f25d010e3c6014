"""Makes the failure table: what goes wrong, the exit status, the first line of the failure file, and how long it all took.

    python tests/faults/table.py [--containers] [WORD ...]

With words, only the cases whose names hold one of them; without, docs/evidence/failures.md is written anew. Exit status
1 if a case does not end as it should.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

if not __package__:  # run as a script
    tests = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(tests), str(tests.parent / "toolkit")]

from faults.container_cases import CASES as CONTAINER_CASES
from faults.container_cases import DEAD_NODE, SHARED_MEMORY, TWO_NODES, run_container, run_two_nodes
from faults.harness import Case, Ended, check, run_process
from faults.process_cases import CASES as PROCESS_CASES
from support import evidence, image_build
from support.docker_cli import LABEL, Containers, docker


def row(case: Case, end: Ended) -> str:
    """One row of the table, in Markdown."""
    first = (end.failure or b"").decode("utf-8", "ignore").strip().partition("\n")[0]
    text = " ".join(first.split())[:200].replace("|", "\\|")
    text = f"`{text}`" if text else "success" if end.success is not None else "neither success nor failure"
    return f"| {case.name} | {end.status} | {text} | {end.seconds:.1f} |"


@contextlib.contextmanager
def containers_of(image: str, folder: Path) -> Iterator[Containers]:
    """Containers that are removed afterwards."""
    containers = Containers(image=image, folder=folder, session=uuid.uuid4().hex)
    try:
        yield containers
    finally:
        containers.remove()


def runs(with_containers: bool, words: list[str]) -> Iterator[tuple[Case, Callable[[Path], Ended]]]:
    """The cases asked for, and how each is run in a folder of its own."""

    def as_process(case: Case) -> Callable[[Path], Ended]:
        return lambda folder: run_process(case, folder)

    def in_container(case: Case, build: Callable[[], str] = image_build.build_base) -> Callable[[Path], Ended]:
        def run(folder: Path) -> Ended:
            with containers_of(build(), folder) as containers:
                return run_container(case, containers)

        return run

    def on_two_nodes(case: Case, build: Callable[[], str] = image_build.build_base) -> Callable[[Path], Ended]:
        def run(folder: Path) -> Ended:
            network = f"trainshed-test-{uuid.uuid4().hex[:12]}"
            docker("network", "create", "--label", f"{LABEL}=table", network)
            try:
                with containers_of(build(), folder) as containers:
                    return run_two_nodes(case, containers, network)
            finally:
                docker("network", "rm", network)

        return run

    everything = [(case, as_process(case)) for case in PROCESS_CASES]
    if with_containers:
        everything += [(case, in_container(case)) for case in CONTAINER_CASES]
        everything += [(case, on_two_nodes(case)) for case in TWO_NODES]
        everything += [(SHARED_MEMORY, in_container(SHARED_MEMORY, image_build.build_cpu))]
        everything += [(DEAD_NODE, on_two_nodes(DEAD_NODE, image_build.build_cpu))]
    return ((case, run) for case, run in everything if not words or any(word in case.name for word in words))


def main(arguments: list[str]) -> int:
    """Runs the cases, prints their rows, and writes the page of all; returns the exit status."""
    wrong = 0
    rows = ["| what goes wrong | exit status | first line of the failure file | seconds |", "|---|---|---|---|"]
    words = [argument for argument in arguments if argument != "--containers"]
    for case, run in runs("--containers" in arguments, words):
        with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as folder:
            end = run(Path(folder) / "ml")
            rows.append(row(case, end).replace(folder, "").replace(sys.executable, "python"))
            print(rows[-1], flush=True)
            try:
                check(case, end)
            except AssertionError as error:
                wrong += 1
                print(f"{case.name}: {error}", file=sys.stderr)
    if not words:
        evidence.write("failures", f"{len(rows) - 2} failures, {wrong} not as they should end.\n\n" + "\n".join(rows))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
