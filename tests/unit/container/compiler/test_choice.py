"""Which compiler a job gets: by what it asks for, and by the device; and what the ranks are then given."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from trainshed.base.errors import LaunchError
from trainshed.container import planning
from trainshed.container.cluster import single
from trainshed.container.compiler import prepare
from trainshed.container.compiler.choice import Choice, Device, choose, device_of
from trainshed.container.program.locate import locate
from trainshed.container.supervisor.launch_plan import LaunchPlan
from trainshed.contract.cluster import Hardware
from trainshed.contract.wire.compile_plan import CompilePlan, CompilerRequest, plan_of

DEVICES = {kind: Device(kind, f"a {kind}") for kind in ("cuda", "cpu", "tpu", "trn1", "trn2")}
XLA = {"sagemaker_pytorch_xla_multi_worker_enabled": "true"}
ENABLED = {"sagemaker_training_compiler_enabled": "true"}


# --- what is asked for -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hyperparameters", "backend", "asked_by"),
    [
        ({}, "", ""),
        (ENABLED, "auto", "sagemaker_training_compiler_enabled"),
        ({"sagemaker_training_compiler_enabled": "false"}, "off", "sagemaker_training_compiler_enabled"),
        (XLA, "auto", "sagemaker_pytorch_xla_multi_worker_enabled"),
        ({"trainshed_distribution": "xla"}, "xla", "trainshed_distribution"),
        ({**ENABLED, "trainshed_compiler": "off"}, "off", "trainshed_compiler"),
        ({"trainshed_compiler": "inductor"}, "inductor", "trainshed_compiler"),
    ],
)
def test_the_job_says_which(hyperparameters: dict[str, str], backend: str, asked_by: str, job_tree: Any) -> None:
    job_tree.code("train.py")
    request = job_tree.configure(hyperparameters=hyperparameters).read().compiler

    assert (request.backend, request.asked_by, request.debug) == (backend, asked_by, False)
    assert request.on == (backend not in ("", "off"))


def test_debug_mode_and_our_own_settings_arrive(job_tree: Any) -> None:
    job_tree.code("train.py")
    asked = {
        **ENABLED,
        "sagemaker_training_compiler_debug_mode": "true",
        "trainshed_compiler_mode": "reduce-overhead",
        "trainshed_compiler_regional": "false",
        "trainshed_compiler_dynamic": "on",
    }
    request = job_tree.configure(hyperparameters=asked).read().compiler

    assert (request.debug, request.mode, request.regional, request.dynamic) == (True, "reduce-overhead", "off", "on")


# --- devices ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hardware", "instance", "environ", "kind"),
    [
        (Hardware(), "local", {}, "cpu"),
        (Hardware(gpus=2), "local", {"TPU_NAME": "x"}, "cuda"),
        (Hardware(neurons=32), "ml.trn1.32xlarge", {}, "trn1"),
        (Hardware(neurons=4), "ml.inf2.xlarge", {}, "trn1"),
        (Hardware(neurons=64), "ml.trn2.48xlarge", {}, "trn2"),
        (Hardware(neurons=64), "local", {}, "trn1"),  # what the machine calls itself
        (Hardware(), "local", {"PJRT_DEVICE": "TPU"}, "tpu"),
        (Hardware(), "local", {"TPU_ACCELERATOR_TYPE": "v5litepod-4"}, "tpu"),
    ],
)
def test_the_device_is_told_by_what_is_there(
    hardware: Hardware, instance: str, environ: dict[str, str], kind: str, tmp_path: Path
) -> None:
    (tmp_path / "product").write_text("trn1.2xlarge\n")
    found = device_of(hardware, instance, environ, devices=str(tmp_path), product=str(tmp_path / "product"))

    assert found.kind == kind and found.evidence


def test_tpu_chips_are_counted_and_unknown_neuron_hosts_are_taken_as_new_ones(tmp_path: Path) -> None:
    for name in ("accel0", "accel1", "accel"):
        (tmp_path / name).touch()
    none = str(tmp_path / "none")

    assert device_of(Hardware(), "", {}, devices=str(tmp_path)).evidence == f"2 TPU chips in {tmp_path}"
    assert device_of(Hardware(neurons=2), "", {}, product=none) == Device("trn2", "2 Neuron cores")


# --- the choice ------------------------------------------------------------------------------------------------------


def chosen(backend: str, device: str, distribution: str = "torchrun", world: int = 2, torch_xla: str = "") -> Choice:
    return choose(CompilerRequest(backend, "asker"), DEVICES[device], distribution, world, torch_xla)


@pytest.mark.parametrize(
    ("device", "backend"),
    [("cuda", "inductor"), ("cpu", "inductor"), ("trn1", "neuron-xla"), ("trn2", "neuron")],
)
@pytest.mark.parametrize("distribution", ["torchrun", "xla"])
def test_ranks_of_torchrun_are_compiled_by_the_devices_own(device: str, backend: str, distribution: str) -> None:
    choice = chosen("auto", device, distribution)

    assert (choice.backend, choice.launcher) == (backend, "torchrun")
    assert f"a {device}" in choice.why


def test_a_tpu_has_torch_xla_and_its_launcher() -> None:
    assert chosen("auto", "tpu", "script", 1, "2.9.0") == Choice("xla", "a tpu", "xla")
    with pytest.raises(LaunchError, match="torch_xla, which is not installed"):
        chosen("auto", "tpu")


def test_on_a_cpu_torch_xla_trains_where_it_is_asked_for_and_alone() -> None:
    assert chosen("auto", "cpu", "xla", 1, "2.9.0").backend == "xla"
    assert chosen("auto", "cpu", "torchrun", 1, "2.9.0").backend == "inductor"  # installed is not asked for
    assert chosen("auto", "cpu", "xla", 2).launcher == "torchrun"  # not installed: the ranks are compiled by inductor
    assert chosen("xla", "cpu", "script", 1, "2.9.0").launcher == "xla"


@pytest.mark.parametrize(("asked", "distribution"), [("auto", "xla"), ("xla", "xla"), ("xla", "torchrun")])
def test_processes_that_would_each_train_a_model_of_their_own_are_refused(asked: str, distribution: str) -> None:
    with pytest.raises(LaunchError, match="on a CPU cannot train with 2 processes: they cannot communicate") as raised:
        chosen(asked, "cpu", distribution, 2, "2.9.0")

    assert "trainshed_compiler to inductor" in raised.value.hint


@pytest.mark.parametrize(
    ("backend", "device", "message"),
    [
        ("xla", "cuda", "does not compile for a GPU .*: torch_xla has had no CUDA since 2.9"),
        ("xla", "trn2", "does not compile for trn2's Neuron cores"),
        ("neuron", "cpu", "does not compile for a CPU"),
        ("inductor", "tpu", "does not compile for a TPU"),
        ("inductor", "trn1", "does not compile for trn1's"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(backend: str, device: str, message: str) -> None:
    with pytest.raises(LaunchError, match=f"asker = {backend}, which {message}"):
        chosen(backend, device)


@pytest.mark.parametrize("distribution", ["mpi", "pipeline"])
def test_torch_xla_has_a_launcher_of_its_own(distribution: str) -> None:
    with pytest.raises(LaunchError, match=f"the job also asks for the distribution '{distribution}'"):
        chosen("xla", "cpu", distribution, 1, "2.9.0")
    assert chosen("auto", "cuda", distribution).launcher == distribution


def test_off_is_off_and_pytorchxla_then_starts_plain_ranks() -> None:
    assert choose(CompilerRequest("off", "me"), DEVICES["cuda"], "xla", 8, "") == Choice("", "turned off by me", "torchrun")


# --- what the ranks get ----------------------------------------------------------------------------------------------


def planned(
    tree: Any,
    hyperparameters: dict[str, str],
    hardware: Hardware,
    instance: str = "local",
    processes: int = 1,
    **environ: str,
) -> LaunchPlan:
    tree.code("train.py")
    tree.code("run.sh", "#!/bin/sh\n")
    tree.configure(
        hyperparameters={"sagemaker_program": "train.py", **hyperparameters},
        resources=tree.hosts(1, current_instance_type=instance),
    )
    job = tree.read()
    cluster = single.cluster(job, {}).replace(processes_per_host=processes, hardware=hardware)
    given = {"PATH": "/usr/bin:/bin", "TMPDIR": str(tree.tmp), **environ}
    return planning.plan(job, cluster, locate(job, f"{tree.base}/code", {}), given, "/scratch")


def installed(tree: Any, **versions: str) -> str:
    """A folder with packages that are there by name."""
    for name, version in versions.items():
        (tree.tmp / "site" / name).mkdir(parents=True, exist_ok=True)
        (tree.tmp / "site" / f"{name}-{version}.dist-info").mkdir(exist_ok=True)
    return str(tree.tmp / "site")


@pytest.fixture
def compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "_missing_compiler", lambda environ, device: "")


@pytest.mark.usefixtures("compilers")
def test_inductors_ranks_get_their_plan_accelerates_variables_and_a_cache(job_tree: Any) -> None:
    (job_tree.base / "checkpoints").mkdir(parents=True)
    site = installed(job_tree, torch="2.13.0+cpu")
    asked = {**ENABLED, "trainshed_distribution": "torchrun", "trainshed_compiler_dynamic": "off"}
    plan = planned(job_tree, asked, Hardware(cpus=4), processes=2, PYTHONPATH=site)

    assert plan.compiler == "inductor: no GPU, TPU or Neuron core" and len(plan.processes) == 2
    for spec in plan.processes:
        told = plan_of(spec.env)
        assert told == plan.compile != None  # noqa: E711
        assert (
            told.live.startswith(f"{job_tree.tmp}/trainshed-compile-") and spec.env["TORCHINDUCTOR_CACHE_DIR"] == told.live
        )
        assert told.store == f"{job_tree.base}/checkpoints/.compile-cache/{Path(told.live).name}.tar"
        assert Path(told.live).name.startswith("torch-2.13.0-cpu-py3")
        assert spec.env["TRAINSHED_AUTOPATCH"] == "compile" and "autopatch/startup" in spec.env["PYTHONPATH"]
        assert spec.env["ACCELERATE_DYNAMO_BACKEND"] == "inductor"
        assert spec.env["ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION"] == "true"
        assert spec.env["ACCELERATE_DYNAMO_USE_DYNAMIC"] == "false"
        assert "USE_TORCH_XLA" not in spec.env
    assert plan.says[:2] == ("Found configuration for Training Compiler", "Configuring SM Training Compiler...")


@pytest.mark.usefixtures("compilers")
def test_the_users_own_values_win(job_tree: Any) -> None:
    own = {"ACCELERATE_DYNAMO_MODE": "max-autotune", "TORCHINDUCTOR_CACHE_DIR": "/mine", "USE_TORCH_XLA": "1"}
    site = installed(job_tree, torch="2.9.0", torch_xla="2.9.0")
    plan = planned(job_tree, {**ENABLED, "trainshed_checkpoint": "auto"}, Hardware(), PYTHONPATH=site, **own)
    (spec,) = plan.processes

    assert {name: spec.env[name] for name in own} == own
    assert plan.compile is not None and plan.compile.live == "/mine"
    assert spec.env["TRAINSHED_AUTOPATCH"] == "checkpoint,compile"


@pytest.mark.usefixtures("compilers")
def test_debug_mode_writes_where_the_platform_looks(job_tree: Any) -> None:
    asked = {**ENABLED, "sagemaker_training_compiler_debug_mode": "true"}
    plan = planned(job_tree, asked, Hardware(gpus=1))

    assert "Training Compiler set to debug mode" in plan.says
    assert plan.processes[0].env["TORCH_COMPILE_DEBUG_DIR"] == f"{job_tree.base}/output/data/compiler"


@pytest.mark.parametrize("hyperparameters", [{}, {"trainshed_distribution": "torchrun"}, ENABLED])
@pytest.mark.usefixtures("compilers")
def test_a_torch_xla_that_nobody_asked_for_is_kept_out(hyperparameters: dict[str, str], job_tree: Any) -> None:
    plan = planned(job_tree, hyperparameters, Hardware(gpus=1), PYTHONPATH=installed(job_tree, torch_xla="2.9.0"))

    assert plan.processes[0].env["USE_TORCH_XLA"] == "0"


def test_without_a_compiler_the_plan_says_that_the_job_stays_eager(job_tree: Any) -> None:
    plan = planned(job_tree, ENABLED, Hardware(gpus=1), PATH="/nowhere")

    assert plan.compiler.startswith("stepping back to eager: Triton needs a C compiler, and there is no gcc or clang here")
    assert plan.compile is None and "TRAINSHED_COMPILE_PLAN" not in plan.processes[0].env


def test_pytorchxla_on_gpus_starts_torchruns_ranks_through_mp_fn(job_tree: Any, compilers: None) -> None:
    plan = planned(job_tree, {**XLA, "lr": "1"}, Hardware(gpus=2), processes=2)

    assert plan.launcher == "torchrun" and "torch_xla no longer compiles for it" in plan.compiler
    for spec in plan.processes:
        assert spec.argv == (sys.executable, "-m", "trainshed.compiler.mp_fn", "train.py", "--lr", "1")


def test_the_xla_launcher_starts_one_process_and_names_its_device(job_tree: Any) -> None:
    site = installed(job_tree, torch="2.9.0+cpu", torch_xla="2.9.0")
    plan = planned(job_tree, XLA, Hardware(), PYTHONPATH=site)
    (spec,) = plan.processes

    assert (plan.launcher, spec.rank, spec.env["PJRT_DEVICE"]) == ("xla", 0, "CPU")
    assert spec.env["TRAINSHED_AUTOPATCH"] == "xla" and "RANK" not in spec.env and "USE_TORCH_XLA" not in spec.env
    assert "XLA_PERSISTENT_CACHE_PATH" not in spec.env  # a CPU's executables cannot be read back
    with pytest.raises(LaunchError, match=r"starts Python scripts only, and run\.sh is a shell"):
        planned(job_tree, {**XLA, "sagemaker_program": "run.sh"}, Hardware(), PYTHONPATH=site)


def test_a_tpus_executables_are_kept(job_tree: Any) -> None:
    (job_tree.base / "checkpoints").mkdir(parents=True)
    site = installed(job_tree, torch="2.9.0", torch_xla="2.9.0")
    plan = planned(job_tree, XLA, Hardware(), PYTHONPATH=site, TPU_ACCELERATOR_TYPE="v5litepod-4")

    assert plan.compile is not None and plan.compile.store.endswith("-tpu-v5litepod-4.tar")
    assert plan.processes[0].env["XLA_PERSISTENT_CACHE_PATH"] == plan.compile.live
    assert plan.processes[0].env["PJRT_DEVICE"] == "TPU"


def test_a_torch_xla_of_another_torch_is_refused(job_tree: Any) -> None:
    site = installed(job_tree, torch="2.13.0", torch_xla="2.9.0")
    with pytest.raises(
        LaunchError, match=r"torch_xla 2\.9\.0 was built for torch 2\.9, but the installed torch is 2\.13\.0"
    ):
        planned(job_tree, XLA, Hardware(), PYTHONPATH=site)


def test_trn1_gets_torch_xlas_neuron_variables_and_trn2_the_native_backend(job_tree: Any) -> None:
    site = installed(job_tree, torch="2.9.0", torch_xla="2.9.0")
    asked = {**ENABLED, "trainshed_distribution": "torchrun"}
    old = planned(job_tree, asked, Hardware(neurons=2), "ml.trn1.2xlarge", 2, PYTHONPATH=site, NEURON_CC_FLAGS="-O1")
    new = planned(job_tree, asked, Hardware(neurons=4), "ml.trn2.48xlarge", 4)

    assert [spec.env["LOCAL_RANK"] for spec in old.processes] == ["0", "1"]
    for spec in old.processes:
        assert spec.env["PJRT_DEVICE"] == "NEURON" and spec.env["TRAINSHED_AUTOPATCH"] == "xla"
        assert spec.env["NEURON_CC_FLAGS"].startswith("-O1 --cache_dir=") and "USE_TORCH_XLA" not in spec.env
    assert new.compile == CompilePlan("neuron", dynamic="off", host="algo-1", report=f"{job_tree.base}/output/data/compiler")
    assert len(new.processes) == 4 and json.loads(new.processes[0].env["TRAINSHED_COMPILE_PLAN"])["backend"] == "neuron"


def test_neuron_parallel_compile_runs_torchs_launcher(job_tree: Any) -> None:
    site = installed(job_tree, torch="2.9.0", torch_xla="2.9.0")
    asked = {**ENABLED, "trainshed_distribution": "torchrun"}
    environ = {"PYTHONPATH": site, "RUN_NEURON_PARALLEL_COMPILE": "1"}
    (spec,) = planned(job_tree, asked, Hardware(neurons=2), "ml.trn1.2xlarge", 2, **environ).processes

    assert spec.argv[:3] == ("neuron_parallel_compile", sys.executable, "-m") and "--nproc-per-node=2" in spec.argv


def test_a_dry_run_says_which_and_why(job_tree: Any) -> None:
    job_tree.code("train.py")
    job_tree.configure(hyperparameters={**ENABLED, "trainshed_compiler": "off"})
    assert "compiler   off: turned off by trainshed_compiler" not in job_tree.train("--dry-run").stdout  # nothing is asked
    job_tree.configure(hyperparameters=ENABLED)
    done = job_tree.train("--dry-run", CXX="/no/g++")

    assert done.status == 0
    assert "compiler   stepping back to eager: inductor needs a C++ compiler, and there is no /no/g++ here" in done.stdout


def test_a_plan_that_cannot_be_read_is_none() -> None:
    for text in ("", "no json", "[1]", '{"backend": "xla", "more": 1}'):
        assert plan_of({"TRAINSHED_COMPILE_PLAN": text}) is None
