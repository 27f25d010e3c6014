"""What is told of hyperparameters that a script's argparse did not take, and that nothing else changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from trainshed.container.launchers.rank_environment import STACKS_HOOK

HPS = {"lr": 0.1, "amp": False, "epochz": 3, "k": 4}
PASSED = ["--amp", "False", "--epochz", "3", "-k", "4", "--lr", "0.1"]
PARSER = "import argparse, sys\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float)\n"
ALL = "for name in ('--amp', '--epochz', '-k'): p.add_argument(name)\n"
UNTAKEN, BOOL = "did not take", "type=bool makes True"
LISTED = "hyperparameters 'amp', 'epochz', 'k'"
# name: the script, what is told of it, and whether that comes before the script's `print("on")`
SCRIPTS = {
    "dropped in a function": (
        "def main():\n    args, _ = p.parse_known_args()\n    return args\nmain()\n",
        [UNTAKEN, LISTED],
        False,
    ),
    "dropped in the module": ("args, unknown = p.parse_known_args()\n", [UNTAKEN, LISTED], False),
    "dropped by its index": ("args = p.parse_known_args()[0]\n", [UNTAKEN, LISTED], False),
    "looked at by the script": ("args, rest = p.parse_known_args()\nsys.stdout.write(str(rest)[:0])\n", [], False),
    "into a namespace": ("p.parse_known_args(namespace=argparse.Namespace())\n", [UNTAKEN, LISTED], False),
    "rewritten before": (
        "args, _ = p.parse_known_args([one.replace('epochz', 'lr') for one in sys.argv[1:] if 'am' not in one])\n",
        [UNTAKEN, "hyperparameter 'k'"],
        False,
    ),
    "a second parser takes the rest": (
        f"args, rest = p.parse_known_args()\np = argparse.ArgumentParser()\n{ALL}p.parse_args(rest)\n",
        [],
        False,
    ),
    "looked at in a function": (
        "args, rest = p.parse_known_args()\n"
        "def more():\n    q = argparse.ArgumentParser()\n"
        "    for name in ('--amp', '--epochz', '-k'): q.add_argument(name)\n"
        "    q.parse_args(rest)\nmore()\n",
        [],
        False,
    ),
    "in another module, which may be read": (
        "import types\nexec(compile('import sys\\nargs, rest = p.parse_known_args()', 'opts.py', 'exec'), "
        "{'__name__': 'opts', 'p': p})\n",
        [],
        False,
    ),
    "parsed in steps": (f"opt, _ = p.parse_known_args()\n{ALL}p.parse_args()\n", [], False),
    "told while it runs": (
        "args, _ = p.parse_known_args()\nimport gc\ngc.callbacks[-1].__self__.at -= 60\ngc.collect()\n",
        [UNTAKEN, LISTED],
        True,
    ),
    "a forked process": (
        "import os\nargs, _ = p.parse_known_args()\nif not os.fork(): sys.exit()\nos.wait()\n",
        [UNTAKEN],
        False,
    ),
    "with the first word of sys.argv": (
        "args, _ = p.parse_known_args(sys.argv[1:])\nsys.stdout.write(sys.argv[0][:0])\n",
        [UNTAKEN, LISTED],
        False,
    ),
    "handed to a program": (
        "import subprocess\nargs, _ = p.parse_known_args()\nsubprocess.run([sys.executable, '-c', '', *sys.argv[1:]])\n",
        [],
        False,
    ),
    "handed on by another function": (
        "def parse():\n    args, _ = p.parse_known_args()\n    return args\n"
        "def rest():\n    return sys.argv[1:]\nparse()\nrest()\n",
        [],
        False,
    ),
    "the rest in a list": ("args, *rest = p.parse_known_args()\nsys.stdout.write(str(*rest)[:0])\n", [], False),
    "handed on with a star": ("def main(args, *rest):\n    pass\nmain(*p.parse_known_args())\n", [], False),
    "the rest becomes sys.argv": ("args, sys.argv[1:] = p.parse_known_args()\n", [], False),
    "a global that others read": (
        "def parse():\n    global rest\n    args, rest = p.parse_known_args()\n"
        "def later():\n    return rest\nparse()\nlater()\n",
        [],
        False,
    ),
    "read from a variable": (
        "import os\nargs, _ = p.parse_known_args()\nepochs = os.environ.get('SM_HP_EPOCHZ')\n",
        [UNTAKEN, "hyperparameters 'amp', 'k'"],
        False,
    ),
    "all read from a variable": ("import os\nargs, _ = p.parse_known_args()\nos.environ['SM_HPS']\n", [], False),
    "all taken": (f"{ALL}args = p.parse_args()\n", [], False),
    "a bool": (
        f"p.add_argument('--amp', type=bool)\n{ALL.replace(chr(39) + '--amp' + chr(39) + ', ', '')}p.parse_args()\n",
        [BOOL, "'amp'"],
        True,
    ),
    "another parser, of other words": (
        f"{ALL}p.parse_args()\nargparse.ArgumentParser().parse_known_args(['--z'])\n",
        [],
        False,
    ),
    "never parsed": ("", [], False),
}


def ran(tmp_path: Path, script: str, arguments: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "train.py").write_text(script)
    environ = {"PATH": os.defpath, "PYTHONPATH": STACKS_HOOK, "PYTHONUNBUFFERED": "1"}
    given = {"SM_HPS": json.dumps(HPS), "SM_USER_ARGS": json.dumps(PASSED)}
    return subprocess.run(
        [sys.executable, "train.py", *arguments],
        cwd=tmp_path,
        env={**environ, **given, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_what_no_parser_takes_is_told_once_and_what_one_takes_is_not(tmp_path: Path) -> None:
    wrong = []
    for name, (rest, parts, early) in SCRIPTS.items():
        done = ran(tmp_path, f"{PARSER}{rest}print('on', flush=True)\n", PASSED)
        lines = [line for line in done.stdout.splitlines() if line.startswith("trainshed: ")]
        told = "\n".join(lines)
        first = done.stdout.startswith("trainshed: ")
        if done.returncode or len(lines) != bool(parts) or any(part not in told for part in parts) or first != early:
            wrong.append((name, done.stdout))
    assert not wrong


def test_other_processes_ranks_and_errors_are_left_alone(tmp_path: Path) -> None:
    script = f"{PARSER}args, _ = p.parse_known_args()\n"
    assert ran(tmp_path, script, ["--lr", "1", "--other", "2"]).stdout == "", "a program that the script starts"
    assert ran(tmp_path, script, PASSED, RANK="1").stdout == ""
    assert ran(tmp_path, script, PASSED, OMPI_COMM_WORLD_RANK="1").stdout == ""
    assert ran(tmp_path, script, PASSED, SM_CURRENT_HOST_RANK="1").stdout == "", "the other host tells it"
    assert UNTAKEN in ran(tmp_path, script, PASSED, SM_CURRENT_HOST_RANK="0").stdout
    assert ran(tmp_path, script, PASSED, SM_HPS="no JSON").stdout == ""
    refused = ran(tmp_path, f"{PARSER}p.parse_args()\n", PASSED)
    assert refused.returncode == 2 and "unrecognized arguments" in refused.stdout and "trainshed" not in refused.stdout


def test_nothing_of_it_is_left_in_python(tmp_path: Path) -> None:
    looks = "import sys\nprint([one for one in sys.meta_path if 'Argparse' in str(one)] != [], 'argparse' in sys.modules)\n"
    looks += "import argparse\n"
    looks += "print([one for one in sys.meta_path if 'Argparse' in str(one)], vars(argparse.__loader__).keys())\n"
    looks += "print(argparse.ArgumentParser.parse_known_args.__qualname__)\n"
    looks += "import inspect, pickle, typing\nparse = argparse.ArgumentParser.parse_known_args\n"
    looks += "print(pickle.loads(pickle.dumps(parse)) is parse, inspect.signature(parse), typing.get_type_hints(parse))\n"
    plain = {"name", "path"}

    lines = ran(tmp_path, looks, PASSED).stdout.splitlines()

    assert lines[0] == "True False" and lines[2] == "ArgumentParser.parse_known_args"
    assert lines[3] == "True (self, args=None, namespace=None) {}"
    assert lines[1] == f"[] dict_keys({[*sorted(plain)]})"
    assert ran(tmp_path, looks, [], SM_USER_ARGS="[]").stdout.startswith("False"), "nothing waits where nothing is passed"
