"""Job folders that both toolkits get: `train` of sagemaker-training 5.1.4 and ours run them, and what differs is told.

    python tests/clients/peer_trees.py [WORD ...]

With words, only the trees whose names hold one of them; without, docs/evidence/contract.md is written anew. Exit
status 1 where a tree differs in anything but what it says. Every difference that we mean is a row of
`support/peer_differences.py`, from which docs/contract.md has its table.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if not __package__:  # run as a script
    tests = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(tests), str(tests.parent / "toolkit")]

from support import evidence
from support.free_ports import free_ports
from support.paths import TOOLKIT
from support.peer_differences import by_name, fits

LIMIT = 300.0  # seconds; nothing here takes a tenth of it

# What the job's script reports of itself. `PROBE` starts it from other languages, with its own name in front.
PROBE = """\
import json, os, sys
arguments = sys.argv[1:] if os.environ.get("PROBED") else sys.argv
with open(os.environ["PROBE_REPORT"], "w") as file:
    json.dump({"argv": arguments, "cwd": os.getcwd(), "variables": dict(os.environ)}, file)
"""
SHELL = '#!/bin/sh\nPROBED=1 exec "$PROBE_PYTHON" "$PROBE" "$0" "$@"\n'
FRAMEWORK = "{before}\ndef main():\n    {body}\n"
# Variables that say something of the toolkit's own place, or of this harness.
OWN = frozenset({"PYTHONPATH", "PROBE_REPORT", "PROBE_PYTHON", "PROBED", "SAGEMAKER_BASE_DIR", "_", "SHLVL", "OLDPWD"})
HOSTS = ("127.0.0.1", "127.0.0.2")  # addresses have the advantage that they are found


@dataclass(frozen=True)
class Tree:
    """One job for both.

    hyperparameters, resources, channels: the platform's config files; text as it is, None for an absent file. A resource
        config names its `hosts`; each of them runs, as `current_host`, where it names none.
    code: files of /opt/ml/code; `outside`: files beside /opt/ml, which `{outside}` in hyperparameters and variables means.
    environ: more variables of the container.
    left: files below /opt/ml that an earlier run left.
    differs: what differs, by the names in `support/peer_differences.py`.
    """

    name: str
    hyperparameters: Any = field(default_factory=lambda: {"sagemaker_program": "train.py"})
    resources: Any = field(default_factory=lambda: {"hosts": ["algo-1"], "current_host": "algo-1"})
    channels: Any = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=lambda: {"train.py": PROBE})
    outside: Mapping[str, str | bytes] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)
    differs: tuple[str, ...] = ()

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that run."""
        config = self.resources if isinstance(self.resources, dict) else {}
        return tuple(config.get("hosts", ())) if "current_host" not in config else (config["current_host"],)

    def lay_out(self, folder: Path, host: str) -> dict[str, str]:
        """Writes the tree for one host; returns the variables that its `train` starts with."""
        base, outside = folder / "ml", folder / "outside"
        (base / "input/config").mkdir(parents=True)
        for made in (base / "input/data", base / "code", base / "output", base / "model", outside):
            made.mkdir()
        resources = self.resources
        if isinstance(resources, dict):
            resources = {"current_host": host, **resources}
        config = {"hyperparameters": self.hyperparameters, "resourceconfig": resources, "inputdataconfig": self.channels}
        for name, value in config.items():
            if name == "hyperparameters" and isinstance(value, dict):
                value = {key: item if isinstance(item, str) else json.dumps(item) for key, item in value.items()}
            if value is not None:
                text = value if isinstance(value, str) else json.dumps(value)
                (base / f"input/config/{name}.json").write_text(text.replace("{outside}", str(outside)))
        if isinstance(self.channels, dict):
            for name in self.channels:
                (base / "input/data" / name).mkdir()
        for root, files in ((base / "code", self.code), (outside, self.outside), (base, self.left)):
            for name, content in files.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content if isinstance(content, bytes) else content.encode())
        (folder / "probe.py").write_text(PROBE)
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PROBE": str(folder / "probe.py"),
            "PROBE_PYTHON": sys.executable,
            "PROBE_REPORT": str(folder / "report.json"),
            "SAGEMAKER_BASE_DIR": str(base),
            "AWS_EC2_METADATA_DISABLED": "true",
            **{
                name: value.replace("{outside}", str(outside)).replace("{code}", str(base / "code"))
                for name, value in self.environ.items()
            },
        }


@dataclass(frozen=True)
class Seen:
    """What one toolkit did with a tree on one host. script: what the script saw, {} if it never ran."""

    status: int
    success: bool
    failure: bool
    script: dict[str, Any]
    text: str


def run(tree: Tree, folder: Path, command: list[str], more: Mapping[str, str]) -> list[Seen]:
    """Runs a tree on all its hosts at once."""
    hosts = tree.hosts or ("",)
    places = [folder / f"host{number}" for number in range(len(hosts))]
    started = []
    for place, host in zip(places, hosts, strict=True):
        place.mkdir(parents=True)
        environ = {**more, **tree.lay_out(place, host)}
        path = [one["PYTHONPATH"] for one in (more, environ) if "PYTHONPATH" in one]
        if path:
            environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path))
        with (place / "printed").open("wb") as printed:
            started.append(
                subprocess.Popen(
                    command, env=environ, cwd=place, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT
                )
            )
    try:
        statuses = [process.wait(LIMIT) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    return [_seen(place, status) for place, status in zip(places, statuses, strict=True)]


def _seen(place: Path, status: int) -> Seen:
    report, output = place / "report.json", place / "ml/output"
    text = (place / "printed").read_text(errors="replace")
    if (output / "failure").exists():
        text += (output / "failure").read_text(errors="replace")
    script = json.loads(report.read_text().replace(str(place), "{folder}")) if report.exists() else {}
    return Seen(status, (output / "success").exists(), (output / "failure").exists(), script, text)


def theirs(tree: Tree, folder: Path, peer: Path) -> list[Seen]:
    """What sagemaker-training makes of a tree. peer: the Python of its environment."""
    # Its wait for host names that nobody knows takes 15 minutes.
    return run(tree, folder, [str(peer), "-m", "sagemaker_training.cli.train"], {"SM_STUDIO_LOCAL_MODE": "true"})


def ours(tree: Tree, folder: Path) -> list[Seen]:
    """What trainshed makes of a tree."""
    more = {"PYTHONPATH": str(TOOLKIT), "MASTER_PORT": str(free_ports(2)), "TMPDIR": str(folder)}
    folder.mkdir(parents=True, exist_ok=True)
    return run(tree, folder, [sys.executable, "-m", "trainshed.container.main"], more)


def differences(tree: Tree, real: list[Seen], mine: list[Seen]) -> set[str]:
    """Names of everything in which the two differ: status, success, failure, ran, argv, `$0`, cwd, variables, fields."""
    found: set[str] = set()
    for peer, own in zip(real, mine, strict=True):
        for name in ("status", "success", "failure"):
            if getattr(peer, name) != getattr(own, name):
                found.add(name)
        if bool(peer.script) != bool(own.script):
            found.add("ran")
        elif peer.script:
            found |= _script_differences(peer.script, own.script, set(tree.environ))
    return found


def _script_differences(peer: dict[str, Any], own: dict[str, Any], given: set[str]) -> set[str]:
    found = set()
    if peer["argv"][:1] != own["argv"][:1]:
        found.add("argv[0]")
    if peer["argv"][1:] != own["argv"][1:]:
        found.add("argv")
    if peer["cwd"] != own["cwd"]:
        found.add("cwd")
    for name, value in peer["variables"].items():
        other = own["variables"].get(name)
        if name in OWN or value == other or name == "SM_STUDIO_LOCAL_MODE":
            continue
        if name != "SM_TRAINING_ENV":
            found.add(name)
            continue
        fields, mine = json.loads(value), json.loads(other or "{}")
        found |= {f"SM_TRAINING_ENV.{key}" for key in fields if fields[key] != mine.get(key)}
    return found


# --- the trees ------------------------------------------------------------------------------------------------------------


def _program(name: str, content: str = PROBE, **more: Any) -> Tree:
    return Tree(f"program {name!r}", {"sagemaker_program": name}, code={name.lstrip("/"): content}, **more)


def _script(what: str, code: str, *differs: str) -> Tree:
    return Tree(what, code={"train.py": code}, differs=differs)


def _framework(what: str, body: str, *differs: str, before: str = "") -> Tree:
    code = {"launcher.py": FRAMEWORK.format(before=before, body=body), "train.py": PROBE}
    environ = {"SAGEMAKER_TRAINING_MODULE": "launcher:main", "PYTHONPATH": "{code}"}
    return Tree(f"framework module that {what}", code=code, environ=environ, differs=differs)


def _hyperparameters(what: str, values: Any, *differs: str, environ: Mapping[str, str] | None = None) -> Tree:
    if isinstance(values, dict):
        values = {"sagemaker_program": "train.py", **values}
    return Tree(what, values, environ=environ or {}, differs=differs)


def _resources(what: str, *differs: str, hyperparameters: Mapping[str, Any] | None = None, **fields: Any) -> Tree:
    values = {"hosts": ["algo-1"], "current_host": "algo-1", **fields}
    return Tree(
        what,
        {"sagemaker_program": "train.py", **(hyperparameters or {})},
        resources={name: value for name, value in values.items() if value is not None},
        differs=differs,
    )


def _group(name: str, *hosts: str) -> dict[str, Any]:
    return {"instance_group_name": name, "instance_type": "ml.c5.xlarge", "hosts": list(hosts)}


def _archive(**files: str) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"{name}.py")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return data.getvalue()


HPS = {
    "epochs": 3,
    "lr": "1e-3",
    "k": "5",
    "name": "a b",
    "fp16": True,
    "x": None,
    "sizes": [1, "2"],
    "opt": {"b": 1, "a": "x"},
}
TWO = {"hosts": list(HOSTS)}
SPELLING = ("number spelling",)
BETTER = ("runs where the peer stops",)

TREES = [
    # --- hyperparameters
    _hyperparameters("hyperparameters of every kind", HPS, *SPELLING),
    _hyperparameters(
        "whole numbers and text", {"epochs": 3, "name": "größe 列車", "empty": "", "quoted": '"7"', "z": "00501"}
    ),
    _hyperparameters("names that collide or that no shell reads", {"lr": 1, "LR": 2, "learning-rate": 3, "a.b": 4, "ä": 5}),
    _hyperparameters("infinite numbers", {"a": "NaN", "b": "-Infinity", "c": "1E400"}, *SPELLING),
    _hyperparameters("numbers with a point", {"a": "1.10", "b": "0.5"}, *SPELLING),
    _hyperparameters(
        "reserved names", {"sagemaker_other": 1, "_tuning_objective_metric": "loss", "default_user_module_name": "m"}
    ),
    _hyperparameters("settings of ours", {"trainshed_stacks": "off"}, "settings of ours"),
    _hyperparameters("empty hyperparameters file", "", *BETTER),
    _hyperparameters("hyperparameters with a byte order mark", '\ufeff{"sagemaker_program": "train.py"}', *BETTER),
    _hyperparameters("no hyperparameters file", None, *BETTER),
    _hyperparameters("hyperparameters that are not JSON", '{"a": 1', "status 2"),
    # --- names of the job, region, level
    _hyperparameters("job named by the hyperparameter", {"sagemaker_job_name": "by-hp"}, "job name"),
    _hyperparameters("job named by the variable", {}, "job name", environ={"TRAINING_JOB_NAME": "by-variable"}),
    _hyperparameters("job named by both", {"sagemaker_job_name": "by-hp"}, environ={"TRAINING_JOB_NAME": "by-variable"}),
    _hyperparameters("region of the hyperparameter", {"sagemaker_region": "eu-1"}, environ={"AWS_REGION": "us-1"}),
    _hyperparameters("region of AWS_DEFAULT_REGION", {}, environ={"AWS_DEFAULT_REGION": "d", "AWS_REGION": "a"}),
    _hyperparameters("region of AWS_REGION alone", {}, "region", environ={"AWS_REGION": "us-west-2"}),
    _hyperparameters("region of SAGEMAKER_REGION alone", {}, "region", environ={"SAGEMAKER_REGION": "us-west-2"}),
    _hyperparameters("log level of the hyperparameter", {"sagemaker_container_log_level": 10}),
    _hyperparameters("log level of the variable", {}, "log level", environ={"SAGEMAKER_CONTAINER_LOG_LEVEL": "10"}),
    # --- hosts and groups
    Tree("two hosts", resources=TWO),
    Tree("no resource config", resources=None, differs=BETTER),
    Tree("empty resource config", resources="", differs=BETTER),
    Tree("no channels file", channels=None, differs=BETTER),
    _resources("one group", instance_groups=[_group("g", "algo-1")], current_group_name="g"),
    _resources(
        "the job names its only group",
        instance_groups=[_group("g", "algo-1")],
        current_group_name="g",
        hyperparameters={"sagemaker_distribution_instance_groups": ["g"]},
    ),
    _resources(
        "parameter server and a group",
        instance_groups=[_group("g", "algo-1")],
        current_group_name="g",
        hyperparameters={"sagemaker_parameter_server_enabled": True},
    ),
    _resources("parameter server without groups", hyperparameters={"sagemaker_parameter_server_enabled": True}),
    _resources("mirrored strategy", hyperparameters={"sagemaker_multi_worker_mirrored_strategy_enabled": True}),
    _resources(
        "group by its name in the docs",
        "group's other name",
        instance_groups=[_group("g", "algo-1")],
        current_instance_group="g",
    ),
    Tree(
        "two groups of one host each, distribution on the first",
        {"sagemaker_program": "train.py", "sagemaker_distribution_instance_groups": ["a"]},
        resources={
            **TWO,
            "current_host": HOSTS[0],
            "instance_groups": [_group("a", HOSTS[0]), _group("b", HOSTS[1])],
            "current_group_name": "a",
        },
    ),
    _resources("current host that is not among the hosts", "contradictions", current_host="algo-9"),
    _resources("ml.trn2.48xlarge", current_instance_type="ml.trn2.48xlarge"),
    *(
        _resources(f"topology: {shown}", topology=value)
        for shown, value in {
            "a list": [{"hostName": "algo-1", "capacityUnitId": "cu"}],
            "an object": {"algo-1": "cu"},
            "text": "flat",
            "nothing": [],
        }.items()
    ),
    # --- channels
    Tree("channels with dashes, dots and capitals", channels={"train-data": {}, "Eval.v2": {"TrainingInputMode": "File"}}),
    # --- the program
    Tree("program in a folder", {"sagemaker_program": "sub/train.py"}, code={"sub/train.py": PROBE}),
    Tree(
        "program of the variable", code={"train.py": "exit(9)", "other.py": PROBE}, environ={"SAGEMAKER_PROGRAM": "other.py"}
    ),
    _program("run.sh", SHELL),
    _program("train", SHELL),
    _program("tool", "#!/usr/bin/env python3\nimport sys\n" + PROBE),
    Tree("shell script in a folder", {"sagemaker_program": "bin/run.sh", "a b": "c d"}, code={"bin/run.sh": SHELL}),
    *(_program(name, differs=BETTER) for name in ("my script.py", "größe.py", "train@v2.py", "-u.py")),
    Tree("program './train.py'", {"sagemaker_program": "./train.py"}, differs=BETTER),
    Tree(
        "program by its absolute path",
        {"sagemaker_program": "{outside}/train.py"},
        outside={"train.py": PROBE},
        differs=BETTER,
    ),
    Tree("no program named", {}, differs=BETTER),
    Tree("program that does not exist", {"sagemaker_program": "gone.py"}),
    # --- where the code is
    Tree(
        "source in a folder",
        {"sagemaker_program": "train.py", "sagemaker_submit_directory": "{outside}"},
        code={},
        outside={"train.py": PROBE},
        differs=("folder in place",),
    ),
    Tree(
        "source in an archive",
        {"sagemaker_program": "train.py", "sagemaker_submit_directory": "{outside}/s.tar.gz"},
        code={},
        outside={"s.tar.gz": _archive(train=PROBE)},
    ),
    Tree(
        "source by a file URL",
        {"sagemaker_program": "train.py", "sagemaker_submit_directory": "file://{outside}"},
        code={},
        outside={"train.py": PROBE},
        differs=BETTER,
    ),
    Tree(
        "source named, and code baked into the image",
        {"sagemaker_program": "train.py", "sagemaker_submit_directory": "{outside}"},
        outside={"train.py": "exit(9)"},
    ),
    Tree(
        "source of the variable",
        {"sagemaker_program": "train.py"},
        outside={"train.py": "exit(9)"},
        environ={"SAGEMAKER_SUBMIT_DIRECTORY": "{outside}"},
        differs=("source of the variable",),
    ),
    Tree(
        "source that does not exist",
        {"sagemaker_program": "train.py", "sagemaker_submit_directory": "/gone"},
        code={},
        differs=("exit status",),
    ),
    # --- how scripts end
    _script("script that succeeds", "pass\n"),
    _script("script that exits with 0", "exit(0)\n"),
    _script("script that exits with 1", "exit(1)\n"),
    _script("script that exits with a message", "exit('no improvement')\n"),
    _script("script that exits with 3", "exit(3)\n", "exit status"),
    _script("script that raises", "raise ValueError('bad')\n"),
    _script("script that is killed", "import os\nos.kill(os.getpid(), 9)\n", "exit status"),
    _script("script that does not parse", "def (\n"),
    _script(
        "script that writes its reason and fails",
        "import os\nopen(os.environ['SM_OUTPUT_DIR'] + '/failure', 'w').write('mine')\nexit(1)\n",
    ),
    _script(
        "script that writes a reason and succeeds",
        "import os\nopen(os.environ['SM_OUTPUT_DIR'] + '/failure', 'w').write('mine')\n",
        "one outcome",
    ),
    Tree("failure of an earlier run, then success", left={"output/failure": "old"}, differs=("one outcome",)),
    Tree(
        "success of an earlier run, then failure",
        code={"train.py": "exit(1)"},
        left={"output/success": ""},
        differs=("one outcome",),
    ),
    # --- launchers of an image's own
    _framework("returns", "pass"),
    _framework("raises ValueError", "raise ValueError('bad')"),
    _framework("raises OSError with a number", "open('/gone')"),
    _framework("raises OSError while it is imported", "pass", before="open('/gone')"),
    _framework("raises OSError without a number", "raise OSError('no number')", "framework errors"),
    _framework("raises OSError with a text for a number", "raise OSError('five', 'x')"),
    _framework("raises the client's error", "from sagemaker_training import errors; raise errors.ClientError('bad')"),
    _framework("exits with 3", "raise SystemExit(3)", "framework errors"),
    _framework("exits with 0", "raise SystemExit(0)", "framework errors"),
    _framework("does not exist", "pass", before="import no_such_module"),
    # --- variables of the image's own
    Tree("folder of the image's own", environ={"SM_MODEL_DIR": "{outside}/model"}, differs=("the image's folders",)),
]
# Together they go through every part of the comparison; the rest is for `make test-all`.
QUICK = (
    "hyperparameters of every kind",
    "job named by both",
    "the job names its only group",
    "program 'tool'",
    "framework module that raises OSError with a number",
)


def verdict(found: set[str], tree: Tree) -> set[str]:
    """What differs without being meant to, and `missing: NAME` for what was said to differ and does not."""
    allowed = {name: set(by_name(name).what) for name in tree.differs}
    unmeant = {item for item in found if not any(fits(item, what) for what in allowed.values())}
    gone = {f"missing: {name}" for name, what in allowed.items() if not any(fits(item, what) for item in found)}
    return unmeant | gone


def compare(tree: Tree, folder: Path, peer: Path) -> tuple[list[Seen], list[Seen], set[str]]:
    """Runs a tree through both: what each did, and what differs."""
    real, mine = theirs(tree, folder / "peer", peer), ours(tree, folder / "ours")
    return real, mine, differences(tree, real, mine)


def main(words: list[str]) -> int:
    """Prints a row for each tree, and writes the page of all; returns the exit status."""
    from clients import venvs

    peer, wrong = venvs.make("peer"), 0
    chosen = [tree for tree in TREES if not words or any(word in tree.name for word in words)]

    def one(tree: Tree) -> tuple[Tree, list[Seen], list[Seen], set[str]]:
        with tempfile.TemporaryDirectory(prefix="peer-trees-") as folder:
            return tree, *compare(tree, Path(folder), peer)

    rows = ["| job | sagemaker-training | trainshed | what differs | meant |", "|---|---|---|---|---|"]
    same: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        for tree, real, mine, found in pool.map(one, chosen):
            bad = verdict(found, tree)
            shown = ", ".join(sorted(found)) or "nothing"
            row = f"| {tree.name} | {ended(real)} | {ended(mine)} | {shown} | {', '.join(tree.differs)} |"
            print(row, flush=True)
            rows += [row] if found else []
            same += [] if found else [tree.name]
            if bad:
                wrong += 1
                print(f"{tree.name}: {sorted(bad)}\n{real[0].text}\n{mine[0].text}", file=sys.stderr)
    total = f"{len(chosen)} jobs, {wrong} with a difference that is not meant."
    print(total)
    if not words:
        evidence.write("contract", "\n".join((total, "", *rows, "", f"Nothing differs: {'; '.join(same)}.")))
    return 1 if wrong else 0


def ended(seen: list[Seen]) -> str:
    """How a job ended, in a few words."""

    def words(one: Seen) -> list[str]:
        signs = {"success": one.success, "failure": one.failure, "ran": bool(one.script)}
        return [str(one.status), *(name for name, there in signs.items() if there)]

    return "; ".join(", ".join(words(one)) for one in seen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
