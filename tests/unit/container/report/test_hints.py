"""The table of hints, row by row, on words that programs really printed."""

# ruff: noqa: E501 (the texts are as they were printed)

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from jobs.report.provocations import PLAIN, TORCH
from support.offenders import check_each, no_offenders
from trainshed.container.report.hints import HINTS, SPECIAL, Context, hint_for, matching
from trainshed.contract.cluster import Cluster, Hardware
from trainshed.contract.job import TrainingJob

SIXTEEN = Hardware(cpus=4, gpus=1, memory_bytes=16 << 30, shm_bytes=64 << 20)
HERE = Cluster(hosts=("localhost",), current_host="localhost", processes_per_host=2, hardware=SIXTEEN)
TWO_HOSTS = Cluster(hosts=("localhost", "gone.invalid"), current_host="localhost", hardware=SIXTEEN)

# hint: what was printed, and what the advice must say. Recorded from torch 2.13, transformers 5, CUDA 12 and 13, dash, bash,
# glibc 2.36 and Python 3.11 to 3.13.
PRINTED: dict[str, list[tuple[str, str]]] = {
    "too-many-files": [
        (
            "RuntimeError: unable to open shared memory object </torch_71_1_2> in read-write mode: Too many open files (24)",
            "--ulimit nofile=",
        )
    ],
    "worker-memory": [
        (
            "RuntimeError: DataLoader worker (pid 4211) is killed by signal: Killed. ",
            "a data-loader worker was killed, usually because memory ran out (16 GiB available)",
        ),
        ("RuntimeError: DataLoader worker (pid(s) 4211, 4212) exited unexpectedly", "a data-loader worker was killed"),
    ],
    "shared-memory": [
        (
            "RuntimeError: unable to allocate shared memory(shm) for file </torch_8_2600348839_0>: No space left on device (28)",
            "/dev/shm has 64 MiB; start the container with --shm-size",
        ),
        ("RuntimeError: unable to write to file </torch_18692_1954506624>: No space left on device (28)", "/dev/shm has 64 MiB"),
        (
            "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n"
            "RuntimeError: DataLoader worker (pid 62) is killed by signal: Bus error. It is possible that dataloader's workers "
            "are out of shared memory. Please try to raise your shared memory limit.",
            "/dev/shm has 64 MiB",
        ),
    ],
    "mpi-slots": [
        (
            "There are not enough slots available in the system to satisfy the 8\nslots that were requested by the application:\n\n  true",
            "trainshed_processes_per_host says how many each has",
        )
    ],
    "mpi-binding": [
        (
            "A request was made to bind to that would result in binding more\nprocesses than cpus on a resource:\n\n   Bind to:     CORE\n"
            'You can override this protection by adding the "overload-allowed"\noption to your binding directive.',
            "there are more ranks than CPUs to bind them to",
        )
    ],
    "mpi-option": [
        ('/usr/bin/mpirun: Error: unknown option "--frobnicate"', "is passed to mpirun unchanged"),
        ("An unrecognized option was included on the mpirun command line:\n\n  Option: --frobnicate", "4.1 and 5 differ"),
        ("The specified mapby directive is not recognized:\n\n  Directive: nosuch", "is passed to mpirun unchanged"),
    ],
    "mpi-unreachable": [
        (
            "WARNING: Open MPI failed to TCP connect to a peer MPI process.\n"
            "Unable to find reachable pairing between local and remote interfaces",
            "btl_tcp_if_include",
        ),
        ("At least one pair of MPI processes are unable to reach each other for\nMPI communications.", "btl_tcp_if_include"),
    ],
    "cuda-out-of-memory": [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.81 GiB of "
            "which 3.06 GiB is free.",
            "lower batch_size (it is 512)",
        ),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "the GPU's memory is full"),
    ],
    "cuda-driver": [
        (
            "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver",
            "use an image built for an older CUDA",
        ),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "does not match this machine's"),
    ],
    "no-gpu": [
        ("AssertionError: Torch not compiled with CUDA enabled", "--gpus all"),
        (
            "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver",
            "use the GPU image",
        ),
        ("ImportError: libcuda.so.1: cannot open shared object file: No such file or directory", "no GPU is visible here"),
    ],
    "device-assert": [
        ("RuntimeError: CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously", "CUDA_LAUNCH_BLOCKING=1")
    ],
    # The next four as CUDA, its driver and NCCL document them; no GPU was there to say them.
    "illegal-address": [
        ("RuntimeError: CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be", "compute-sanitizer")
    ],
    "faulty-gpu": [
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "this GPU is faulty"),
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, GPU has fallen off the bus.", "take the machine out"),
    ],
    "shared-gpu": [
        ("ncclInvalidUsage: Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 3b000", "two ranks use one GPU")
    ],
    "too-few-gpus": [
        (
            "RuntimeError: CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?",
            "at most as many ranks as there are GPUs",
        )
    ],
    "port-in-use": [
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29634, "
            "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
            "the rendezvous uses 7777",
        ),
        ("OSError: [Errno 98] Address already in use", "set trainshed_master_port"),
    ],
    "rendezvous-timeout": [
        (
            "torch.distributed.DistStoreError: Timed out after 3 seconds waiting for clients. 1/2 clients joined.",
            "1 of 2 ranks joined; gone.invalid no longer resolves",
        ),
        (
            "torch.distributed.DistNetworkError: The client socket has timed out after 2000ms while trying to connect to "
            "(127.0.0.1, 29633).",
            "gone.invalid no longer resolves",
        ),
    ],
    "collective-timeout": [
        (
            "[rank1]:[E] ProcessGroupNCCL.cpp:633] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, "
            "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=10000) ran for 10078 milliseconds before timing out.",
            "a rank did not join a collective in time",
        ),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 2000ms for recv "
            "operation to complete",
            "have fewer batches",
        ),
    ],
    "interface": [
        (
            "RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find "
            "address for: ethwe",
            "set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME",
        ),
        ("algo-1:62:62 [0] bootstrap.cc:77 NCCL WARN Bootstrap : no socket interface found", "`ip route`"),
    ],
    "peer-lost": [
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [172.25.0.3]:25237",
            "another rank ended first on gone.invalid",
        ),
        ("torch.distributed.DistBackendError: NCCL error in: ... ncclRemoteError: A call failed possibly due to a network error "
         "or a remote process exiting prematurely.", "its log has the reason"),
    ],
    "shadowed-module": [
        (
            'Traceback (most recent call last):\n  File "{code}/train.py", line 1, in <module>\n    import tempfile\n'
            '  File "/usr/lib/python3.11/tempfile.py", line 45, in <module>\n    from random import Random as _Random\n'
            "ImportError: cannot import name 'Random' from 'random' ({code}/random.py)",
            "random.py in the code folder hides",
        )
    ],
    "module": [
        ("ModuleNotFoundError: No module named 'sklearn.svm'", "add scikit-learn to requirements.txt"),
        ("ModuleNotFoundError: No module named 'google.protobuf'", "add protobuf to requirements.txt"),
        ("ModuleNotFoundError: No module named 'einops'", "add einops to requirements.txt"),
        ("ModuleNotFoundError: No module named 'smdebug.pytorch'", "set trainshed_rules to watch the training"),
        ("ModuleNotFoundError: No module named 'einops_train'", "add einops_train to requirements.txt"),
        ("ModuleNotFoundError: No module named 'randon'", "the code folder has no 'randon'; did you mean 'random'?"),
        ("ModuleNotFoundError: No module named 'rando'", "if a module of the code folder is meant: did you mean 'random'?"),
    ],
    "glibc": [
        (
            "ImportError: /lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by /x/lib.so)",
            "a compiled package was built for a newer system",
        )
    ],
    "exec-format": [("OSError: [Errno 8] Exec format error: './prog'", "another processor architecture")],
    "unrecognized-arguments": [
        (
            "usage: train.py [-h] [--batch-sizes N]\ntrain.py: error: unrecognized arguments: --batch_size 512",
            "hyperparameter 'batch_size' became arguments that the script does not take; did you mean 'batch-sizes'?",
        ),
        ("usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --other 1", "does not know these arguments"),
        ("usage: train.py [-h] [--x X]\ntrain.py: error: unrecognized arguments: -x 3", "write add_argument('-x', '--x', ...)"),
        ("Usage: train.py [OPTIONS]\n\nError: No such option: -x", "set trainshed_argv to json"),
        ("Error: No such option '-x'.", "hyperparameter 'x' is passed as `-x VALUE`"),
        ("ValueError: Some specified arguments are not used by the HfArgumentParser: ['-x', '3']", "passed as `-x VALUE`"),
        ("ValueError: Some specified arguments are not used by the HfArgumentParser: ['--batch_size', '3']", "'batch_size' became"),
    ],
    "required-arguments": [
        (
            "usage: train.py [-h] -m M --data D\ntrain.py: error: the following arguments are required: -m/--model-name, --data",
            "hyperparameter(s) 'model-name', 'data'; the job sets: batch_size, x",
        ),
        ("train.py: error: the following arguments are required: --x", "hyperparameter 'x' is passed as `-x VALUE`"),
        ("train.py: error: the following arguments are required: --data, --x", "hyperparameter 'x' is passed as `-x VALUE`"),
    ],
    "bad-argument": [
        (
            "train.py: error: argument -b/--batch_size: invalid int value: '5x'",
            "hyperparameter 'batch_size' has a value that the script's parser rejects",
        )
    ],
    "channel-variable": [("KeyError: 'SM_CHANNEL_VALIDATION'", "the job has no channel 'validation'; channels are train")],
    "noexec": [
        ("ImportError: /tmp/trainshed-1-packages-x/lib/python3.12/site-packages/fast.so: failed to map segment from shared object", "--tmpfs /tmp:exec")
    ],
    "disk-full": [
        ("OSError: [Errno 28] No space left on device: '{base}/model/weights.pt'", "a disk is full; free: "),
        ("OSError: [Errno 122] Disk quota exceeded", "give the job a larger volume"),
    ],
    "read-only": [("OSError: [Errno 30] Read-only file system: '{base}/input/data/train/index'", "write to {base}/model (SM_MODEL_DIR)")],
    "permission": [
        ("PermissionError: [Errno 13] Permission denied: '{base}/model/weights.pt'", "which has no permission for {base}/model/weights.pt"),
        ("train.sh: 2: ./tool: Permission denied", "./tool may not be used or run by uid"),
    ],
    "missing-file": [
        ("FileNotFoundError: [Errno 2] No such file or directory: '{base}/input/data/train/b.csv'", "it holds a.csv"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '{base}/input/data/valid/b.csv'", "channels are train"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data/b.csv'", "the path is relative to {code}"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/no/such/b.csv'", "/no/such does not exist in this container"),
    ],
    "spawn": [
        (
            "RuntimeError: \n        An attempt has been made to start a new process before the\n        current process has finished "
            "its bootstrapping phase.",
            'if __name__ == "__main__":',
        ),
        ("RuntimeError: context has already been set", 'if __name__ == "__main__":'),
    ],
    "hub-offline": [
        (
            "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files.",
            "put models and data into a channel or the image",
        ),
        (
            "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub and we "
            "cannot find the requested files in the local cache.",
            "cannot reach that server",
        ),
    ],
    "command-missing": [
        ("train.sh: 2: nvcc: not found", "nvcc is not installed in the image"),
        ("train.sh: line 2: nvcc: command not found", "nvcc is not installed in the image"),
        ("/bin/sh: nvcc: not found", "nvcc is not installed in the image"),
    ],
    "syntax": [("SyntaxError: '(' was never closed", "does not parse with this image's Python 3.")],
    "recursion": [("RecursionError: maximum recursion depth exceeded", "calls itself without an end condition")],
    "unpicklable": [
        ("AttributeError: Can't pickle local object 'main.<locals>.<lambda>'", "move lambdas"),
        ("AttributeError: Can't get local object 'main.<locals>.<lambda>'", "move lambdas"),
        ("_pickle.PicklingError: Can't pickle <function <lambda> at 0x7f>: attribute lookup <lambda> on __main__ failed", "move lambdas"),
        ("TypeError: cannot pickle '_thread.lock' object", "move lambdas"),
    ],
}  # fmt: skip


@pytest.fixture
def job(job_tree: Any) -> TrainingJob:
    """A job with two hyperparameters and one channel."""
    job_tree.configure(hyperparameters={"batch_size": 512, "x": 3})
    job_tree.code("random.py")
    job_tree.write("input/data/train/a.csv", "")
    return job_tree.read()


def context(job: TrainingJob, text: str, **fields: Any) -> Context:
    """What is known of a failure that printed `text` last."""
    return Context(**{"text": text, "around": text, "job": job, "cluster": HERE, "code_folder": job.paths.code, **fields})


def test_what_was_printed_leads_to_its_hint(job: TrainingJob) -> None:
    def check(row: tuple[str, str, str]) -> None:
        name, printed, advice = (text.replace("{base}", job.paths.base).replace("{code}", job.paths.code) for text in row)
        cluster = TWO_HOSTS if name in ("rendezvous-timeout", "peer-lost") else HERE
        (best, text), *_ = matching(context(job, printed, cluster=cluster)) or [("no hint", "")]
        assert best == name and advice in text, f"{best}: {text}"
        assert "\n" not in text and len(text) < 700

    rows = [(name, printed, advice) for name, rows in PRINTED.items() for printed, advice in rows]
    check_each(rows, check, lambda row: f"{row[0]}: {row[1]!a}")


def test_every_hint_has_words_that_lead_to_it_or_a_job_that_does() -> None:
    rows = {hint.name for hint in HINTS} | {name for name, _ in SPECIAL}
    assert rows == PRINTED.keys() | PLAIN.keys() | TORCH.keys()


def test_no_pattern_takes_long_on_a_long_line_or_on_many_lines() -> None:
    """Bounded by the steps that a hang would take: with a quadratic pattern these texts take minutes each."""
    texts = ("y" * 60_000, "a: " * 20_000, "'/x'." * 12_000, 'File "/lib/python3/x", line 1\n    import x\n' * 1500)

    def check(hint: Any) -> None:
        for text in texts:
            re.search(hint.pattern, text[:60_000], re.MULTILINE)

    check_each(HINTS, check, lambda hint: hint.name)


@pytest.mark.parametrize(
    "words",
    [
        "",
        "ValueError: bad label 17",
        "loss: not found in the log",
        "KeyError: 'not found'",
        "ValueError: model: not found",
        "step 100: accuracy 0.93",
    ],
)
def test_words_that_mean_nothing_known_give_no_hint(words: str, job: TrainingJob) -> None:
    assert hint_for(context(job, words)) == ""


def test_an_error_that_the_script_lived_through_gives_no_hint(job: TrainingJob) -> None:
    assert hint_for(context(job, "ValueError: bad label 17", around="ValueError: bad label 17\nlast words")) == ""


def test_a_lost_server_is_no_lost_rank_where_there_is_one_rank_only(job: TrainingJob) -> None:
    alone = HERE.replace(processes_per_host=1)
    words = "ConnectionResetError: [Errno 104] Connection reset by peer"
    assert hint_for(context(job, words, cluster=alone)) == ""
    assert "another rank" in hint_for(context(job, words))


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        ({"stop_signal": 15, "signal": 15}, "has no handler for the signal"),
        ({"stop_signal": 15, "signal": 9, "killed_by_us": True, "waited": 110.04}, "had not ended 110.0 s after the stop"),
        ({"stop_signal": 15, "returncode": 3}, "the job was stopped from outside (a stop request"),
        ({"signal": 9, "oom_kills": 1}, "the container may use 16 GiB"),
        ({"returncode": 1, "oom_kills": 1}, "the container may use 16 GiB"),
        ({"signal": 9}, "got SIGKILL from outside"),
        ({"signal": 9, "killed_by_us": True}, ""),
        ({"signal": 4}, "built for a newer processor"),
        ({"signal": 7}, "/dev/shm has 64 MiB"),
        ({"signal": 11}, ""),
    ],
)
def test_the_way_of_dying_alone_leads_to_a_hint(fields: dict[str, Any], advice: str, job: TrainingJob) -> None:
    hint = hint_for(context(job, "", **fields))
    assert advice in hint and bool(advice) == bool(hint)


def test_the_way_of_dying_goes_before_what_was_printed(job: TrainingJob) -> None:
    assert "16 GiB" in hint_for(context(job, "OSError: [Errno 28] No space left on device", oom_kills=1))


def test_hints_name_a_folder_that_cannot_be_listed(job: TrainingJob, tmp_path: Path) -> None:
    words = f"FileNotFoundError: [Errno 2] No such file or directory: '{job.paths.input_data}/train/x'"
    for entry in Path(job.paths.input_data, "train").iterdir():
        entry.unlink()
    assert "it is empty" in hint_for(context(job, words))


NONE_ERRORS = (
    "TypeError: expected str, bytes or os.PathLike object, not NoneType",
    "TypeError: stat: path should be string, bytes, os.PathLike or integer, not NoneType",
    "TypeError: argument should be a str or an os.PathLike object where __fspath__ returns a str, not 'NoneType'",
    "TypeError: unsupported operand type(s) for +: 'NoneType' and 'str'",
    "TypeError: unsupported operand type(s) for /: 'NoneType' and 'str'",
    'TypeError: can only concatenate str (not "NoneType") to str',
    "ValueError: Invalid file path or buffer object type: <class 'NoneType'>",
    "AttributeError: 'NoneType' object has no attribute 'rstrip'",
    "FileNotFoundError: [Errno 2] No such file or directory: 'None/a.csv'",
)


def test_none_in_place_of_a_channels_path_names_the_channel_that_is_missing(job: TrainingJob, job_tree: Any) -> None:
    script = job_tree.code("train.py", "import os\nfolder = os.environ.get('SM_CHANNEL_TRAINING')\nos.listdir(folder)\n")

    def check(words: str) -> None:
        text = f'Traceback (most recent call last):\n  File "{script}", line 3, in <module>\n{words}'
        assert hint_for(context(job, text)) == (
            "the script reads SM_CHANNEL_TRAINING, which is not set: the job has no channel 'training'; channels are train "
            "(did you mean 'train'?)"
        )

    check_each(NONE_ERRORS, check)


@pytest.mark.parametrize("source", ["x = os.environ.get('SM_CHANNEL_TRAIN')\n", "x = None\n"])
def test_none_gives_no_hint_where_all_channels_that_the_script_reads_are_there(
    source: str, job: TrainingJob, job_tree: Any
) -> None:
    script = job_tree.code("train.py", source)
    hints = {words: hint_for(context(job, f'  File "{script}", line 3, in <module>\n{words}')) for words in NONE_ERRORS[:-1]}

    no_offenders({words: [hint] if hint else [] for words, hint in hints.items()}, "these words must give no hint")
