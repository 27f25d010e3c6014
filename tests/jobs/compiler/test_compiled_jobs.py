"""Whole jobs that ask for the compiler: what is compiled, and that the losses are those of the same script without it.

Counters, never times. The live compile cache is shared by the tests of this module, and so are the precompiled headers of
inductor, which take longer than all the models here; tests of the cache itself begin with an empty one.
"""

from __future__ import annotations

import io
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from jobs.compiler import scripts
from jobs.compiler.jobs import Job, run
from support.extras import needs
from support.notice_jobs import free_port
from trainshed.contract.wire.variables import COMPILE_PLAN

needs("transformers")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs g++ on a CPU"),
]

ASKED = {"sagemaker_training_compiler_enabled": "true"}


@pytest.fixture(scope="module")
def tmp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


_EAGER: dict[tuple[str, int], Job] = {}


def eager_run(folder: Path, script: str, tmp: Path, ranks: int = 0) -> Job:
    """The job as nobody asked for a compiler; run once for all tests of a script."""
    if (script, ranks) not in _EAGER:
        job = run(folder / "eager", script, tmp, ranks=ranks)
        assert job.status == 0, job.output
        assert "compiler" not in job.record and "Training Compiler" not in job.output
        _EAGER[script, ranks] = job
    return _EAGER[script, ranks]


@cache
def in_this_process(script: str) -> Job:
    """The losses of a script of one process, without a job: the compiled ones have to be the same."""
    import torch

    threads, said = torch.get_num_threads(), io.StringIO()
    try:
        with torch.random.fork_rng(devices=[]), redirect_stdout(said):
            exec(script, {"__name__": "__main__"})
    finally:
        torch.set_num_threads(threads)
    return Job(Path(), 0, said.getvalue())


def both(folder: Path, script: str, tmp: Path, ranks: int = 0, **settings: Any) -> tuple[Job, Job]:
    """The same job eager and compiled; both have ended well."""
    eager = eager_run(folder, script, tmp, ranks)
    compiled = run(folder / "compiled", script, tmp, ranks=ranks, **ASKED, **settings)
    assert compiled.status == 0, compiled.output
    return eager, compiled


def assert_same(eager: Job, compiled: Job, tolerance: float = 1e-5) -> None:
    assert compiled.losses.keys() == eager.losses.keys() != set()
    for rank, losses in eager.losses.items():
        assert len(losses) == 20
        assert compiled.losses[rank] == pytest.approx(losses, rel=tolerance, abs=tolerance)
    assert compiled.names == eager.names  # no wrapper, no other names


@pytest.mark.exact
@pytest.mark.heavy
@pytest.mark.parametrize(("script", "name"), [(scripts.PYRAMID, "Pyramid"), (scripts.RESNET, "Net")])
def test_a_plain_script_is_compiled_in_place_as_a_whole(script: str, name: str, tmp: Path, tmp_path: Path) -> None:
    compiled = run(tmp_path, script, tmp, **ASKED)

    assert compiled.status == 0, compiled.output
    assert_same(in_this_process(script), compiled)
    report = compiled.report()
    assert report["compiled"] == [{"by": "trainshed", "module": name, "blocks": 0}]
    assert report["graphs"] > 0 and report["graph_breaks"] == 0 and report["steps"] == 20
    assert f"compiling {name} in place, from the second step on (inductor)" in compiled.output


def test_nothing_is_compiled_or_said_where_nobody_asks(tmp: Path, tmp_path: Path) -> None:
    job = run(tmp_path, f"import os\nprint('PLAN', os.environ.get('{COMPILE_PLAN}'))", tmp)

    assert job.status == 0 and "PLAN None" in job.output
    assert "compiler" not in job.record and "ompile" not in job.output


@pytest.fixture(scope="module")
def blocks(tmp: Path, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A compiled job of repeated blocks, with a sitecustomize of the user's own."""
    folder = tmp_path_factory.mktemp("blocks")
    (folder / "code").mkdir()
    (folder / "code/sitecustomize.py").write_text("print('MINE', flush=True)\n")
    job = run(folder, scripts.BLOCKS, tmp, **ASKED)
    assert job.status == 0, job.output
    return job


@pytest.mark.timeout(300)  # g++ compiles all of it
@pytest.mark.exact
@pytest.mark.spine
def test_repeated_blocks_are_one_graph(blocks: Job) -> None:
    assert_same(in_this_process(scripts.BLOCKS), blocks)
    report = blocks.report()
    assert report["compiled"] == [{"by": "trainshed", "module": "Model", "blocks": 4}]
    assert (report["graphs"], report["graph_breaks"], report["steps"]) == (1, 0, 20)
    assert "Found configuration for Training Compiler" in blocks.output
    assert "Configuring SM Training Compiler..." in blocks.output
    assert blocks.record["compiler"]["choice"].startswith("inductor: ")


def test_a_users_own_sitecustomize_runs_first(blocks: Job) -> None:
    assert blocks.output.index("MINE") < blocks.output.index("compiling 4 x Block")


@pytest.mark.exact
def test_a_new_container_compiles_nothing(blocks: Job, tmp_path: Path) -> None:
    (store,) = (blocks.folder / "checkpoints/.compile-cache").iterdir()
    assert store.name.startswith("torch-") and store.suffix == ".tar"

    # Another machine: nothing but the checkpoint folder is left.
    again = tmp_path / "again"
    shutil.copytree(blocks.folder / "checkpoints", again / "checkpoints")
    warm = run(again, scripts.BLOCKS, tmp_path / "empty", **ASKED)
    assert warm.status == 0, warm.output
    assert "files restored from" in warm.output
    assert warm.report()["fx_cache"]["hit"] > 0 and warm.report()["fx_cache"]["miss"] == 0
    assert warm.losses == blocks.losses
    assert [*(tmp_path / "empty").rglob("fxgraph")] and not [*(tmp_path / "empty").rglob("*.gch")]


def test_headers_are_precompiled_and_not_kept(tmp: Path, blocks: Job) -> None:
    (store,) = (blocks.folder / "checkpoints/.compile-cache").iterdir()

    assert [*tmp.rglob("headers/*/whole")] and [*tmp.rglob("headers/*/*.gch")]
    assert store.stat().st_size < 10 << 20


@pytest.mark.exact
def test_of_two_ranks_one_compiles_and_the_other_finds_it(tmp: Path, tmp_path: Path) -> None:
    compiled = run(tmp_path, scripts.DDP_PYRAMID, tmp, ranks=2, **ASKED)

    assert compiled.status == 0, compiled.output
    assert_same(in_this_process(scripts.TOGETHER), compiled)
    reports = [compiled.report(rank) for rank in (0, 1)]
    assert all(report["graphs"] > 0 and report["graph_breaks"] == 0 for report in reports)
    misses, hits = (sum(report["fx_cache"][name] for report in reports) for name in ("miss", "hit"))
    assert misses > 0 and hits >= misses  # each graph was compiled once
    assert reports[0]["compiled"] == [{"by": "trainshed", "module": "Pyramid", "blocks": 0}]


@pytest.mark.exact
@pytest.mark.heavy
@pytest.mark.parametrize(("regional", "blocks_of_it"), [("off", 0), ("auto", 4)])
def test_blocks_inside_ddp_are_compiled_without_it(regional: str, blocks_of_it: int, tmp: Path, tmp_path: Path) -> None:
    eager, compiled = both(tmp_path, scripts.DDP, tmp, 2, trainshed_compiler_regional=regional)

    assert_same(eager, compiled)
    assert compiled.report(1)["graphs"] > 0 and compiled.report(1)["compiled"][0]["blocks"] == blocks_of_it


@pytest.mark.exact
@pytest.mark.heavy
def test_two_hosts_with_one_checkpoint_folder_start_warm_from_one_file(tmp: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    cold = on_two_hosts(tmp_path / "cold", kept, [tmp, tmp])
    assert all(job.status == 0 for job in cold), cold[0].output + cold[1].output
    (store,) = (kept / ".compile-cache").iterdir()

    warm = on_two_hosts(tmp_path / "warm", kept, [tmp_path / "empty-0", tmp_path / "empty-1"])
    for rank, job in enumerate(warm):
        assert job.status == 0, job.output
        assert f"files restored from {job.folder}/checkpoints/.compile-cache/{store.name}" in job.output
        counts = job.report(rank)["fx_cache"]
        assert counts["hit"] > 0 and counts["miss"] == 0
        assert job.losses == cold[rank].losses


def on_two_hosts(folder: Path, checkpoints: Path, tmps: list[Path]) -> list[Job]:
    """The DDP script with a rank on each of two hosts that have TMPDIRs of their own, and one checkpoint folder."""
    asked = {**ASKED, "trainshed_master_port": free_port()}

    def host(number: int) -> Job:
        place = folder / f"host-{number}"
        place.mkdir(parents=True)
        (place / "checkpoints").symlink_to(checkpoints)
        env = {"NNODES": "2", "NODE_RANK": str(number), "MASTER_ADDR": "127.0.0.1"}
        return run(place, scripts.DDP, tmps[number], ranks=1, env=env, **asked)

    checkpoints.mkdir(exist_ok=True)
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(host, range(2)))


@pytest.mark.exact
@pytest.mark.matrix
@pytest.mark.heavy
@pytest.mark.parametrize(
    ("script", "ranks", "tolerance"),
    [
        pytest.param(scripts.FSDP2, 2, 1e-5, id="FSDP2"),
        pytest.param(scripts.FSDP1_WITHOUT_GRADIENTS, 2, 1e-5, id="FSDP1"),
        pytest.param(scripts.CHECKPOINTED, 0, 1e-5, id="activation checkpointing"),
        pytest.param(scripts.AUTOCAST, 0, 2e-2, id="autocast"),  # bfloat16 has 8 bits, and inductor rounds less often
    ],
)
def test_what_else_a_script_may_do_to_its_model(
    script: str, ranks: int, tolerance: float, tmp: Path, tmp_path: Path
) -> None:
    eager, compiled = both(tmp_path, script, tmp, ranks)

    assert_same(eager, compiled, tolerance)
    assert compiled.report()["graphs"] > 0 and "stepping back" not in compiled.output


@pytest.mark.heavy
def test_the_trainer_compiles_through_accelerate(tmp: Path, tmp_path: Path) -> None:
    compiled = run(tmp_path, scripts.SMALL_TRAINER, tmp, **ASKED)

    assert compiled.status == 0, compiled.output
    report = compiled.report()
    assert report["compiled"] == [{"by": "Accelerate"}]
    assert report["graphs"] > 0 and report["graph_breaks"] == 0 and report["fx_cache"]["miss"] > 0
    losses = compiled.losses[0]
    assert len(losses) == 20 and sum(losses[-5:]) < sum(losses[:5])
    assert compiled.names == {0: ["narrow.bias", "narrow.weight", "wide.bias", "wide.weight"]}


@pytest.mark.exact
@pytest.mark.heavy
def test_the_trainer_compiles_through_accelerate_without_a_break_in_gpt2(tmp: Path, tmp_path: Path) -> None:
    eager, compiled = both(tmp_path, scripts.TRAINER, tmp)

    assert_same(eager, compiled)
    report = compiled.report()
    assert report["compiled"] == [{"by": "Accelerate"}]
    assert report["graphs"] > 0 and report["graph_breaks"] == 0 and report["fx_cache"]["miss"] > 0


# --- stepping back ---------------------------------------------------------------------------------------------------


def test_without_a_compiler_for_cpp_the_job_is_eager_and_says_so(tmp: Path, tmp_path: Path) -> None:
    script = f"import os\nprint('PLAN', os.environ.get('{COMPILE_PLAN}'))"
    job = run(tmp_path, script, tmp, env={"CXX": "no-such-g++"}, **ASKED)

    assert job.status == 0 and "PLAN None" in job.output, job.output
    (line,) = [line for line in job.output.splitlines() if "stepping back" in line]
    assert "inductor needs a C++ compiler, and there is no no-such-g++ here" in line
    assert "ranks" not in job.record["compiler"] and "Traceback" not in job.output


@pytest.mark.exact
def test_a_graph_that_cannot_be_compiled_runs_as_it_is(tmp: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken-g++"
    broken.write_text('#!/bin/sh\ncase "$*" in --version) exec g++ --version;; esac\necho "x: error: no room"; exit 1\n')
    broken.chmod(0o755)
    job = run(tmp_path, scripts.BLOCKS, tmp_path / "empty", env={"CXX": str(broken)}, **ASKED)

    assert job.status == 0, job.output
    assert "stepping back to eager for a graph: " in job.output and "Traceback" not in job.output
    assert job.losses == in_this_process(scripts.BLOCKS).losses


NO_BACKWARD = """
from torch._inductor import compile_fx
class Broken(compile_fx.GraphLowering):
    def __init__(self, *args, **options):
        if options.get("is_backward"):
            raise RuntimeError("no room for the backward pass")
        super().__init__(*args, **options)
compile_fx.GraphLowering = Broken
"""


@pytest.mark.exact
@pytest.mark.heavy
@pytest.mark.parametrize(("script", "ranks"), [(scripts.BLOCKS, 0), (scripts.DDP, 2)])
def test_a_backward_pass_that_cannot_be_compiled_runs_as_it_is(script: str, ranks: int, tmp: Path, tmp_path: Path) -> None:
    """DDP's is compiled when it is first wanted, in the middle of the step."""
    eager = eager_run(tmp_path, script, tmp, ranks)
    script = script.replace("torch.set_num_threads(1)", "torch.set_num_threads(1)" + NO_BACKWARD, 1)
    asked = {**ASKED, "trainshed_compiler_regional": "off" if ranks else "on"}
    env = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}  # else it is there already
    job = run(tmp_path / "job", script, tmp, ranks=ranks, env=env, **asked)

    assert job.status == 0, job.output
    assert "stepping back to eager for a graph: " in job.output and "no room for the backward pass" in job.output
    assert "Traceback" not in job.output
    assert_same(eager, job)


@pytest.mark.matrix
@pytest.mark.heavy
@pytest.mark.parametrize(
    ("script", "ranks", "reason"),
    [
        pytest.param(
            scripts.BLOCKS.replace("model = build()\n", "model = torch.jit.script(build())\n"),
            0,
            "RecursiveScriptModule stays eager: it is a TorchScript module",
            id="TorchScript",
        ),
        pytest.param(
            scripts.BLOCKS.replace("model = build()\n", "model = nn.DataParallel(build())\n"),
            0,
            "DataParallel stays eager: nn.DataParallel copies the module at each step",
            id="DataParallel",
        ),
        pytest.param(
            scripts.FLAT_FSDP1,
            2,
            "FullyShardedDataParallel stays eager: FullyShardedDataParallel without use_orig_params=True",
            id="FSDP1",
        ),
    ],
)
def test_a_module_that_cannot_be_compiled_is_named_with_the_reason(
    script: str, ranks: int, reason: str, tmp: Path, tmp_path: Path
) -> None:
    job = run(tmp_path, script, tmp, ranks=ranks, env={"STEPS": "3"}, **ASKED)

    assert job.status == 0, job.output
    assert f"stepping back to eager: {reason}" in job.output


@pytest.mark.exact
def test_what_torch_cannot_trace_is_told_in_one_line_with_the_cause(tmp: Path, tmp_path: Path) -> None:
    job = run(tmp_path, scripts.UNTRACEABLE, tmp, **ASKED)

    assert job.status == 0, job.output
    assert job.losses == in_this_process(scripts.BLOCKS).losses
    told = [line for line in job.output.splitlines() if "stays eager: " in line]
    assert told and all("Error: this was never thought of" in line for line in told)
    assert "Traceback" not in job.output


@pytest.mark.exact
@pytest.mark.heavy
def test_what_torch_cannot_trace_of_fsdp_is_told_in_one_line_with_the_cause(tmp: Path, tmp_path: Path) -> None:
    eager, job = both(tmp_path, scripts.FSDP1, tmp, 2)

    assert job.losses == eager.losses
    told = [line for line in job.output.splitlines() if "stays eager: " in line]
    assert told and all("Error: " in line for line in told)
    assert "Traceback" not in job.output


@pytest.mark.heavy
def test_a_script_that_compiles_its_model_itself_is_left_to_it(tmp: Path, tmp_path: Path) -> None:
    script = scripts.BLOCKS.replace("model = build()\n", "model = torch.compile(build(), backend='eager')\n")
    job = run(tmp_path, script, tmp, env={"STEPS": "3"}, **ASKED)

    assert job.status == 0, job.output
    assert "the script compiles OptimizedModule itself: left to it" in job.output
