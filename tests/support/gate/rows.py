"""Rows: tests that stay with one worker, one after the other, when tests run in parallel."""

from __future__ import annotations

from jobs.parallel.trust.topics import starts

# Folders, files and tests, below tests/, that stay with one worker when tests run in parallel, and what they share: those
# that share the same, in the same words, stay together.
ONE_WORKER = {
    "clients/test_sdk2.py": "a process of SDK v2",
    "clients/test_sdk3.py": "host names of SDK v3, which are fixed",
    "clients/test_mlflow.py": "an MLflow server",
    "clients/test_recordio.py": "what Amazon's writers have written",
    "jobs/slurm/": "a cluster",
    "jobs/ray/": "a Ray cluster",
    "images/test_other_engines.py": "daemons of other engines",
    "jobs/compiler/test_compiled_jobs.py": "a compile cache",
    "jobs/program/test_requirements.py": "a virtual environment",
    "jobs/data/test_channels.py": "a server of channels",
    "jobs/lineage/test_lineage.py": "a chain of runs",
    "jobs/lineage/test_rerun.py": "a run of long ago",
    "jobs/tracking/test_exports.py": "measured runs",
    "jobs/runner/test_warm.py": "an interpreter for pools",
    "jobs/runner/test_fast_file.py": "a server of fast files",
    "jobs/runner/test_fetching.py": "a server of channels to fetch",
    "jobs/runner/test_s3.py": "a server of S3",
    "jobs/checkpoint/test_copies.py": "a process that forks ranks",
    "jobs/checkpoint/test_parts.py": "a process that forks ranks",
    "jobs/checkpoint/test_ranks.py": "a process that forks ranks",
    "unit/checkpoint/test_write_plan.py": "torch, imported for little",
    "unit/compiler/test_regions.py": "torch, imported for little",
    "unit/parallel/plan/test_partition.py": "torch, imported for little",
    "unit/parallel/test_lazy_face.py": "torch, imported for little",
    "unit/test_architecture.py": "parsed sources",
    "unit/test_collection.py": "parsed sources",
    "unit/contract/test_exit_status.py": "parsed sources",
    "unit/contract/wire/test_variables.py": "parsed sources",
}
# Folders whose tests stay with one worker by the file.
BY_THE_FILE = ("tests/unit/", "tests/jobs/parallel/", "tests/jobs/entrypoints/")
# The table of cases, which name the start of ranks that they share.
TABLE = "tests/jobs/parallel/trust/test_trust.py"


def row(name: str) -> str:
    """The row of a node id.

    Unit tests stay together by the file: most take less than the message that asks for one, and what they import is imported
    once. So do those of pipelines: the ranks of a file's first test run what others of it ask for, too.
    """
    file, _, function = name.partition("::")
    if file == TABLE and "[" in function:
        return starts()[function.partition("[")[2].removesuffix("]")]
    shared = next((shared for start, shared in ONE_WORKER.items() if name.startswith(f"tests/{start}")), None)
    return shared or (file if file.startswith(BY_THE_FILE) else name)
