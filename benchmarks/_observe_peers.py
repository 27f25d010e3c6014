"""The same training loop, seen by nobody, by `train`, by traceml-ai and by smdebug: what each costs a step and beside it.

First come 1,500 steps without a pause: the CPU time of the thread that trains, of which the lowest hundredth of the steps
counts; the rest is what other programs make of it. Then steps of 20 ms, most of it asleep, as in a loop that waits for a
device: the CPU time of the process's other threads, and of all processes that were started beside it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from _measure import BenchError
from _venvs import Venvs, say

TOOLKIT = Path(__file__).resolve().parents[1] / "toolkit"
REQUIREMENTS = {
    "traceml-ai": ("traceml-ai==0.5.0",),
    "smdebug": ("smdebug==1.0.34", "pandas", "psutil", "requests", "setuptools<81"),
}
STEP_SECONDS = 0.02
ROUNDS = 3
SCRIPT = """
import contextlib, glob, json, os, time, torch
kind, count, length = os.environ["KIND"], int(os.environ["STEPS"]), 0.02
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.ones(16 * (1500 + count), 64), torch.ones(16 * (1500 + count), 1))
step_of = contextlib.nullcontext
if kind == "traceml-ai":
    import traceml_ai
    traceml_ai.init(mode="auto")
    step_of = lambda: traceml_ai.trace_step(model)
if kind == "smdebug":
    from smdebug.pytorch import Hook, SaveConfig
    hook = Hook(out_dir=os.environ["OUT"], include_collections=["losses"], save_config=SaveConfig(save_interval=500))
    hook.register_module(model)

def spent(pid):
    total = 0
    for task in glob.glob(f"/proc/{pid}/task/*/schedstat"):
        with contextlib.suppress(OSError), open(task) as file:
            total += int(file.read().split()[0])
    return total

def beside():
    parents = {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        with contextlib.suppress(OSError), open(path) as file:
            text = file.read()
            parents[int(text.split()[0])] = int(text.rpartition(")")[2].split()[1])
    found = {}
    for pid in parents:
        at = pid
        while at in parents and at != int(os.environ["TOP"]):
            at = parents[at]
        if at == int(os.environ["TOP"]) and pid not in (os.getpid(), at):
            found[pid] = spent(pid)
    return found

hot = 1500
steps, last = [], time.thread_time()
for number, (x, y) in enumerate(torch.utils.data.DataLoader(data, batch_size=16)):
    if number == hot:
        others, start, before = beside(), time.monotonic(), time.process_time()
        first = last = time.thread_time()
    end = time.monotonic() + length
    with step_of():
        optimizer.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
    if number >= hot:
        time.sleep(max(0.0, end - time.monotonic()))
    elif number >= 20:
        now = time.thread_time()
        steps.append(now - last)
        last = now
    else:
        last = time.thread_time()
seconds = time.monotonic() - start
threads = time.process_time() - before - (time.thread_time() - first)
steps.sort()
now = beside()
more = sum(now[pid] - others.get(pid, 0) for pid in now) / 1e9
with open(os.environ["RESULT"], "w") as file:
    json.dump([steps[len(steps) // 100], threads / seconds, more / seconds], file)
"""
# Runs a command below a process that does nothing else, so that what belongs to it can be found.
TOP = "import os, subprocess, sys; os.environ['TOP'] = str(os.getpid()); sys.exit(subprocess.call(sys.argv[1:]))"


def _train(folder: Path, profile: str) -> tuple[list[str], dict[str, str]]:
    (folder / "ml/input/config").mkdir(parents=True)
    (folder / "ml/code").mkdir()
    (folder / "ml/code/train.py").write_text(SCRIPT)
    hyperparameters = {"sagemaker_program": "train.py", "trainshed_profile": profile}
    (folder / "ml/input/config/hyperparameters.json").write_text(json.dumps(hyperparameters))
    environ = {"SAGEMAKER_BASE_DIR": str(folder / "ml"), "PYTHONPATH": str(TOOLKIT)}
    return [sys.executable, "-m", "trainshed.container.main"], environ


def _script(folder: Path, *command: str) -> list[str]:
    (folder / "train.py").write_text(SCRIPT)
    return [*command, str(folder / "train.py")]


def _smdebug(folder: Path, python: str) -> tuple[list[str], dict[str, str]]:
    parameters = {"ProfilerEnabled": True, "LocalPath": str(folder / "profiler")}
    (folder / "profilerconfig.json").write_text(json.dumps({"ProfilingParameters": parameters}))
    return _script(folder, python), {"SMPROFILER_CONFIG_PATH": str(folder / "profilerconfig.json")}


def _once(name: str, count: int, pythons: dict[str, str]) -> list[float]:
    """CPU seconds of a step, of other threads and of other processes, the latter two as parts of a core."""
    with tempfile.TemporaryDirectory(prefix="observe-") as made:
        folder = Path(made)
        environ: dict[str, str] = {}
        if name.startswith("`train`"):
            command, environ = _train(folder, "auto" if "auto" in name else "off")
        elif name == "smdebug":
            command, environ = _smdebug(folder, pythons[name])
        elif name == "traceml-ai":
            traceml = str(Path(pythons[name]).parent / "traceml")
            command = [*_script(folder, traceml, "run"), "--logs-dir", str(folder / "logs")]
        else:
            command = _script(folder, sys.executable)
        environ |= {"KIND": name, "STEPS": str(count), "RESULT": str(folder / "result"), "OUT": str(folder / "out")}
        run = [sys.executable, "-c", TOP, *command]
        environ = os.environ | {"OMP_NUM_THREADS": "1"} | environ
        done = subprocess.run(run, cwd=folder, env=environ, capture_output=True, text=True, timeout=600)
        if not (folder / "result").exists():
            raise BenchError(f"{name}: {(done.stdout + done.stderr)[-1500:]}")
        return [float(value) for value in json.loads((folder / "result").read_text())]


def peers(count: int, workdir: Path) -> None:
    """Prints the table; a peer that cannot be installed, or does not run, is left out with a word.

    Args:
        count: steps of 20 ms of a run.
        workdir: for the peers' environments, which are used again.
    """
    pythons = {}
    for name, requirements in REQUIREMENTS.items():
        try:
            pythons[name] = Venvs(workdir, sys.executable).with_torch(name, requirements)
        except BenchError as error:
            say(f"{name} is left out: {error}")
    names = ["python train.py", "`train`", "`train`, `profile: auto`", *pythons]
    least: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for name in list(names):
            try:
                found = _once(name, count, pythons)
            except (BenchError, subprocess.TimeoutExpired) as error:
                say(f"{name} is left out: {error}")
                names.remove(name)
                continue
            least[name] = [min(pair) for pair in zip(least.get(name, found), found, strict=True)]
    load = os.getloadavg()[0]
    print(f"load {load:.0f}; least of {ROUNDS} runs: 1,500 steps without a pause, {count} of {1000 * STEP_SECONDS:.0f} ms")
    heads = ("", "CPU us a step", "added, % of a step of 20 ms", "other threads, % of a core", "beside it, % of a core")
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    plain = least[names[0]][0]
    for name in names:
        step, threads, beside = least[name]
        added = "" if name == names[0] else f"{100 * (step - plain) / STEP_SECONDS:.2f}"
        print(f"| {name} | {1e6 * step:.0f} | {added} | {100 * threads:.2f} | {100 * beside:.2f} |")
