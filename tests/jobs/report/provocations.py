"""Jobs that really fail in the ways that the hints know, and the hint that has to stand in their failure files."""

from __future__ import annotations

from faults.harness import Case
from faults.process_cases import send

PARSER = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("-e", "--epochs", type=int)
parser.add_argument("-m", "--model-name", required={required})
parser.add_argument("--fast", action="store_true")
print(parser.parse_args())
"""

# Asks the loader for a version of the C library that nobody has, as a program made for a newer system does.
NEWER_LIBRARY = """\
import os, re, shutil, subprocess, sys
data = open(shutil.which("true"), "rb").read()
data = re.sub(rb"GLIBC_2[.](\\d+)\\0", rb"GLIBC_9.\\1\\0", data)
with open("newer", "wb") as file:
    file.write(data)
os.chmod("newer", 0o755)
sys.exit(subprocess.run(["./newer"]).returncode)
"""

ILLEGAL = """\
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(b"\\x0f\\x0b" if __import__("platform").machine() == "x86_64" else b"\\x00\\x00\\x00\\x00")
ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""

GLOO = "import datetime, os, time, torch, torch.distributed as dist\n"

WORKER = """\
import os, signal, time, torch
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
if __name__ == "__main__":
    for batch in DataLoader(Data(), num_workers=1):
        pass
"""

# Each hint with one or more jobs that earn it. `says` ends with words of the hint; the names are the table's.
PLAIN: dict[str, list[Case]] = {
    "stopped": [
        Case(
            "stopped from outside",
            143,
            ("handle SIGTERM to save a checkpoint before it ends",),
            code="import time\nprint('ready')\ntime.sleep(600)\n",
            act=send(15),
        ),
    ],
    "out-of-memory": [
        Case(
            "killed from outside",
            137,
            ("usually the host ran out of memory",),
            code="import os\nos.kill(os.getpid(), 9)\n",
        )
    ],
    "illegal-instruction": [
        Case("instruction that the processor lacks", 132, ("SIGILL", "built for a newer processor"), code=ILLEGAL)
    ],
    "bus-error": [Case("bus error", 135, ("/dev/shm has",), code="import os\nos.kill(os.getpid(), 7)\n")],
    "too-many-files": [
        Case(
            "too many open files",
            1,
            ("OSError: [Errno 24] Too many open files", "--ulimit nofile="),
            code="import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))\n"
            "files = [open('/dev/null') for _ in range(30)]\n",
        )
    ],
    "port-in-use": [
        Case(
            "port that is taken",
            1,
            ("Address already in use", "set trainshed_master_port, or MASTER_PORT, to a free one"),
            code="import socket\none = socket.create_server(('127.0.0.1', 0))\nsocket.create_server(one.getsockname())\n",
        )
    ],
    "peer-lost": [
        Case(
            "peer that goes away",
            1,
            ("rank 0 on algo-1", "ConnectionResetError", "hint: another rank ended first"),
            code="import os, socket, struct, time\n"
            "if os.environ['RANK'] == '0':\n"
            "    server = socket.create_server(('127.0.0.1', 0))\n"
            "    with open('port.new', 'w') as file:\n        file.write(str(server.getsockname()[1]))\n"
            "    os.rename('port.new', 'port')\n"
            "    server.accept()[0].recv(1)\n"
            "else:\n"
            "    while not os.path.exists('port'):\n        time.sleep(0.01)\n"
            "    peer = socket.create_connection(('127.0.0.1', int(open('port').read())))\n"
            "    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))\n"
            "    peer.close()\n",
            ranks=2,
        )
    ],
    "shadowed-module": [
        Case(
            "script of the name of a library's module",
            1,
            ("random.py in the code folder hides the module of that name", "rename it"),
            code="import tempfile\n",
            files={"code/random.py": "values = [3, 1, 2]\n"},
        ),
        Case(
            "script of the name of a library's module that fails itself",
            1,
            ("random.py in the code folder hides the module of that name",),
            code="import tempfile\n",
            files={"code/random.py": "import argparse\nargparse.ArgumentParser().wrong\n"},
        ),
    ],
    "module": [
        Case(
            "module that is not installed",
            1,
            ("No module named 'cv2'", "add opencv-python-headless to requirements.txt"),
            code="import sys\nsys.path = sys.path[:1]\nimport cv2\n",
        ),
        Case(
            "module of the user's, misspelled",
            1,
            ("No module named 'modles'", "the code folder has no 'modles'; did you mean 'models'?"),
            code="import modles\n",
            files={"code/models/__init__.py": ""},
        ),
    ],
    "glibc": [
        Case(
            "program for a newer system",
            1,
            ("version `GLIBC_9.", "a compiled package was built for a newer system"),
            code=NEWER_LIBRARY,
        )
    ],
    "exec-format": [
        Case(
            "program that is none",
            1,
            ("Exec format error", "built for another processor architecture"),
            code="import os, subprocess\nopen('prog', 'wb').write(b'\\x00\\x01')\nos.chmod('prog', 0o755)\n"
            "subprocess.run(['./prog'])\n",
        )
    ],
    "unrecognized-arguments": [
        Case(
            "argument that the script does not take",
            2,
            ("unrecognized arguments", "hyperparameter 'epoch_count' became arguments that the script does not take"),
            code=PARSER.format(required=False),
            hyperparameters={"epoch_count": 3},
        )
    ],
    "required-arguments": [
        Case(
            "argument that the script wants",
            2,
            ("required: -m/--model-name", "hyperparameter(s) 'model-name'; the job sets: epochs"),
            code=PARSER.format(required=True),
            hyperparameters={"epochs": 3},
        )
    ],
    "bad-argument": [
        Case(
            "argument with a value that does not parse",
            2,
            ("invalid int value: 'many'", "hyperparameter 'epochs' has a value that the script's parser rejects"),
            code=PARSER.format(required=False),
            hyperparameters={"epochs": "many"},
        ),
        Case(
            "flag with a value",
            2,
            ("unrecognized arguments: True", "hyperparameter 'fast' is True", "set trainshed_argv to flags"),
            code=PARSER.format(required=False),
            hyperparameters={"fast": True},
        ),
        Case(
            "value that begins with a dash",
            2,
            ("expected one argument", "begins with '-', which argparse takes for an option"),
            code=PARSER.format(required=False),
            hyperparameters={"model-name": "-tiny"},
        ),
    ],
    "channel-variable": [
        Case(
            "channel variable that is not there",
            1,
            ("KeyError: 'SM_CHANNEL_TRAINING'", "the job has no channel 'training'; channels are train"),
            code="import os\nos.environ['SM_CHANNEL_TRAINING']\n",
            files={"input/data/train/a.txt": ""},
        ),
        Case(
            "hyperparameter variable that is not there",
            1,
            ("KeyError: 'SM_HP_EPOCHS'", "the job does not set SM_HP_EPOCHS"),
            code="import os\nos.environ['SM_HP_EPOCHS']\n",
        ),
    ],
    "channel-is-none": [
        Case(
            "path of a channel that is not there",
            1,
            (
                "TypeError",
                "the script reads SM_CHANNEL_TEST, which is not set: the job has no channel 'test'; channels are train",
            ),
            code=(
                "import argparse, os\nparser = argparse.ArgumentParser()\n"
                "parser.add_argument('--train', default=os.environ.get('SM_CHANNEL_TRAIN'))\n"
                "parser.add_argument('--test', default=os.environ.get('SM_CHANNEL_TEST'))\n"
                "open(os.path.join(parser.parse_args().test, 'a.txt'))\n"
            ),
            files={"input/data/train/a.txt": ""},
        )
    ],
    "disk-full": [
        Case(
            "disk that is full",
            1,
            ("[Errno 28] No space left on device", "a disk is full; free:"),
            code="with open('/dev/full', 'w') as file:\n    file.write('x')\n",
        )
    ],
    "permission": [
        Case(
            "program without its execute bit",
            126,
            ("./tool: Permission denied", "./tool may not be used or run by uid"),
            files={"code/train.sh": "#!/bin/sh\n./tool\n", "code/tool": "#!/bin/sh\n"},
        )
    ],
    "missing-file": [
        Case(
            "channel that the job has not",
            1,
            ("there is no channel 'trian'; channels are train (did you mean 'train'?)",),
            code="import os\nopen(os.environ['SM_INPUT_DATA_DIR'] + '/trian/a.txt')\n",
            files={"input/data/train/a.txt": ""},
        ),
        Case(
            "file that the channel does not hold",
            1,
            ("channel 'train' does not contain it; it holds a.txt, b.txt",),
            code="import os\nopen(os.environ['SM_CHANNEL_TRAIN'] + '/c.txt')\n",
            files={"input/data/train/a.txt": "", "input/data/train/b.txt": ""},
        ),
        Case("relative path", 1, ("the path is relative to", "SM_CHANNEL_<NAME>"), code="open('data/train.csv')\n"),
        Case(
            "absolute path of another machine",
            1,
            ("/home/alice/data does not exist in this container",),
            code="open('/home/alice/data/train.csv')\n",
        ),
        Case(
            "program that is not installed",
            1,
            ("no-such-tool is not installed in the image",),
            code="import subprocess\nsubprocess.run(['no-such-tool'])\n",
        ),
    ],
    "spawn": [
        Case(
            "script without a guard",
            1,
            ('put the script\'s main part under `if __name__ == "__main__":`',),
            code="import multiprocessing, sys\n"
            "process = multiprocessing.get_context('spawn').Process(target=print)\n"
            "process.start()\nprocess.join()\nsys.exit(process.exitcode)\n",
        )
    ],
    "command-missing": [
        Case(
            "command that the shell does not find",
            127,
            ("no-such-tool is not installed in the image, or not on PATH",),
            files={"code/train.sh": "#!/bin/sh\nno-such-tool --fast\n"},
        ),
        Case(
            "command that bash does not find",
            127,
            ("no-such-tool is not installed in the image, or not on PATH",),
            files={"code/train.sh": "#!/bin/bash\nno-such-tool --fast\n"},
        ),
    ],
    "syntax": [
        Case(
            "module that does not parse",
            1,
            ("lib.py:1", "does not parse with this image's Python"),
            code="import lib\n",
            files={"code/lib.py": "def f(:\n"},
        ),
    ],
    "recursion": [
        Case(
            "endless recursion",
            1,
            ("RecursionError", "calls itself without an end condition"),
            code="def f():\n    f()\nf()\n",
        )
    ],
    "unpicklable": [
        Case(
            "worker that cannot be pickled",
            1,
            ("move lambdas and local classes to the top of a module",),
            code="import multiprocessing\n"
            "def main():\n    multiprocessing.get_context('spawn').Process(target=lambda: 0).start()\n"
            "if __name__ == '__main__':\n    main()\n",
        )
    ],
}

# torchrun's own agent between us and the ranks: the rank and its status have to come through.
AGENT = [
    Case(
        "exception of a rank below torch's agent",
        1,
        ("rank 1 on algo-1 exited with 1: ValueError: bad label 17", "at train.py:3"),
        code="import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('bad label 17')\ntime.sleep(600)\n",
        ranks=2,
        hyperparameters={"trainshed_engine": "torchrun"},
    ),
    Case(
        "exit status of a rank below torch's agent",
        3,
        ("rank 1 on algo-1 exited with 3; its last line: out of patience",),
        code="import os, sys, time\n"
        "if os.environ['RANK'] == '1':\n    print('out of patience', file=sys.stderr)\n    sys.exit(3)\ntime.sleep(600)\n",
        ranks=2,
        hyperparameters={"trainshed_engine": "torchrun"},
    ),
]

TORCH: dict[str, list[Case]] = {
    "no-gpu": [
        Case(
            "GPU that is not there",
            1,
            ("Torch not compiled with CUDA enabled", "start the container with --gpus all"),
            code="import torch\ntorch.cuda.is_available() or torch.zeros(1).cuda()\n",
        )
    ],
    "interface": [
        Case(
            "interface that is not there",
            1,
            ("Unable to find address for: nope0", "set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME"),
            code=GLOO + "dist.init_process_group('gloo')\n",
            ranks=1,
            env={"GLOO_SOCKET_IFNAME": "nope0"},
        )
    ],
    "rendezvous-timeout": [
        Case(
            "rank that never comes",
            1,
            ("rank 0 on algo-1", "1/2 clients joined", "1 of 2 ranks joined; a rank on this host did not reach"),
            code="import datetime, os, time\nif os.environ['RANK'] == '0':\n"
            "    import torch.distributed as dist\n"
            "    dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=8))\ntime.sleep(600)\n",
            ranks=2,
        )
    ],
    "collective-timeout": [
        Case(
            "rank that skips a step",
            1,
            ("rank 0 on algo-1", "Timed out waiting 1000ms for recv", "a rank did not join a collective in time"),
            code=GLOO + "dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=60))\n"
            "dist.barrier()\n"
            "dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=1))\n"
            "if dist.get_rank() == 0:\n    dist.all_reduce(torch.ones(1))\ntime.sleep(600)\n",
            ranks=2,
        )
    ],
    "worker-memory": [
        Case(
            "data-loader worker killed", 1, ("a data-loader worker was killed, usually because memory ran out",), code=WORKER
        )
    ],
}
