"""Runs the public PyTorch examples of Horovod on two hosts of two ranks each, on CPUs, through `trainshed run`.

    git clone https://github.com/horovod/horovod
    python benchmarks/horovod_scripts.py horovod [--only mnist_elastic] [--image trainshed:cpu]

Nothing of Horovod is installed: `distribution: horovod` serves `horovod.torch`. Data is made, models are tiny
(`amazon_scripts/mnist/torchvision` stands in for torchvision). The scripts are unchanged, except that one has a rank die
where `edits` says so. Prints one line a run: script, the first and the last loss or rate that it prints. Status 1 if a run
ends otherwise than the table says.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from _public_scripts import outcome, run_job

STAND_INS = Path(__file__).parent / "amazon_scripts/mnist"


@dataclass(frozen=True)
class Example:
    """One script.

    path: below `examples/` of the repository.
    hyperparameters: its command line.
    shows: what its numbers stand behind in the log.
    edits: (text, what is put there).
    refused: what the error says, where it cannot run.
    says: what the log has to hold besides.
    distribution: fields of the job's distribution beside its kind and its ranks.
    """

    path: str
    hyperparameters: dict[str, object]
    shows: str = r"\b[Ll]oss[=:]\s*([0-9.]+)"
    edits: tuple[tuple[str, str], ...] = ()
    refused: str = ""
    says: str = ""
    distribution: dict[str, object] = field(default_factory=dict)


BENCHMARK = {"batch-size": 4, "num-warmup-batches": 1, "num-batches-per-iter": 2, "num-iters": 3}
MNIST = {"epochs": 2, "batch-size": 16, "log-interval": 1}
IMAGENET = {"epochs": 2, "batch-size": 4, "warmup-epochs": 1}
RATE = r"img/sec per CPU: ([0-9.]+)|([0-9.]+) img/sec per CPU"
DIES = (
    "            state.commit()\n        state.batch = 0",
    "            state.commit()\n"
    "            if hvd.rank() == 3 and (state.epoch, state.batch) == (2, 3):\n"
    "                os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and os.kill(os.getpid(), 9)\n"
    "        state.batch = 0",
)
RESTARTS = {"engine": "trainshed", "max_restarts": 1}
EXAMPLES = {
    "mnist": Example("pytorch/pytorch_mnist.py", MNIST),
    "synthetic_benchmark": Example("pytorch/pytorch_synthetic_benchmark.py", BENCHMARK, RATE),
    "imagenet_resnet50": Example("pytorch/pytorch_imagenet_resnet50.py", IMAGENET, r"loss=([0-9.]+)"),
    "imagenet_resnet50_batches": Example(
        "pytorch/pytorch_imagenet_resnet50.py", {**IMAGENET, "batches-per-allreduce": 2}, r"loss=([0-9.]+)"
    ),
    "lightning_mnist": Example(
        "pytorch/pytorch_lightning_mnist.py", {"epochs": 1}, refused="unexpected keyword argument 'gpus'"
    ),
    "mnist_elastic": Example("elastic/pytorch/pytorch_mnist_elastic.py", MNIST),
    "mnist_elastic_rank_dies": Example(
        "elastic/pytorch/pytorch_mnist_elastic.py",
        MNIST,
        edits=(DIES,),
        says="rank 3 on algo-2 was killed by SIGKILL",
        distribution=RESTARTS,
    ),
    "synthetic_benchmark_elastic": Example("elastic/pytorch/pytorch_synthetic_benchmark_elastic.py", BENCHMARK, RATE),
    "imagenet_resnet50_elastic": Example(
        "elastic/pytorch/pytorch_imagenet_resnet50_elastic.py", IMAGENET, r"loss=([0-9.]+)"
    ),
}


def run(repository: str, example: Example, image: str) -> tuple[int, str]:
    """Exit status and log of a job, in containers of an image, else in processes."""
    blob = ["git", "-C", repository, "show", f"HEAD:examples/{example.path}"]
    script = subprocess.run(blob, check=True, capture_output=True, text=True).stdout
    for text, put in example.edits:
        assert script.count(text) == 1, f"{example.path} has no {text!r}"
        script = script.replace(text, put)
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        (home / "code").mkdir()
        (home / "code/train.py").write_text(script)
        (home / "home").mkdir()
        job = {
            "program": "train.py",
            "source_dir": str(home / "code"),
            "hyperparameters": example.hyperparameters,
            "distribution": {"kind": "horovod", "processes_per_host": 2, **example.distribution},
            "instances": 2,
            "checkpoints": str(home / "checkpoints"),
        }
        locked = "/tmp" if image else str(home / "home")  # examples lock a file there
        return run_job(home, job, STAND_INS, {"HOME": locked}, image)


def main() -> int:
    """Runs what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", help="a clone of github.com/horovod/horovod")
    parser.add_argument("--only", nargs="*", choices=EXAMPLES, default=list(EXAMPLES))
    parser.add_argument("--image", default="", help="run each host as a container of it")
    parser.add_argument("--logs", help="a folder for the logs")
    arguments = parser.parse_args()
    wrong = 0
    for name in arguments.only:
        example = EXAMPLES[name]
        status, log = run(arguments.repository, example, arguments.image)
        if arguments.logs:
            Path(arguments.logs, f"{name}.log").write_text(log)
        found = ["".join(one) if isinstance(one, tuple) else one for one in re.findall(example.shows, log)]
        good, result = outcome(status, log, found, example.refused, example.says)
        wrong += not good
        print(f"{name:28} {result}{'' if good else '  <-- not as the table says'}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
