"""Run with the user's Python: has `accelerate launch` go up to where it starts processes, and notes their environment.

`python -m trainshed.container.launchers.accelerated.query_child QUESTION ANSWER`; both are JSON files. The question has
`values` (the configuration), `file` (its name, for people) and `deepspeed` (whether `values` names a file of DeepSpeed's);
the answer has `variables` and `notes`, or `refused` and `hint`.

Accelerate starts ranks through `torch.distributed.run.run`, and a single process through `subprocess.Popen`
(accelerate.commands.launch); both are replaced here, in this process alone.
"""

from __future__ import annotations

import json
import os
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

# Sections whose keys Accelerate takes with this prefix, and silently drops where it knows none of that name.
_SECTIONS = {"fsdp_config": "fsdp_", "fp8_config": "fp8_", "dynamo_config": "dynamo_", "deepspeed_config": "",
             "megatron_lm_config": "", "parallelism_config": ""}  # fmt: skip
# Read from the file by other ways than the launcher's arguments.
_NO_ARGUMENTS = ("fsdp_version", "fsdp_ignored_modules")


class Reached(BaseException):
    """The launcher wants to start processes. Not an Exception, which it would report as theirs."""

    def __init__(self, environment: dict[str, str]) -> None:
        super().__init__()
        self.environment = environment


def answer(question: dict[str, Any], scratch: str) -> dict[str, Any]:
    """Accelerate's answer. scratch: a folder for its configuration file."""
    try:
        import torch.distributed.run as torchrun
        from accelerate.commands import launch
    except ImportError as error:
        return {
            "refused": f"Accelerate cannot be imported in this image: {error}",
            "hint": "add accelerate to requirements.txt",
        }

    def stop_at_ranks(*_: object) -> NoReturn:
        raise Reached(dict(os.environ))

    def stop_at_process(*_: object, env: dict[str, str], **__: object) -> NoReturn:
        raise Reached(dict(env))

    torchrun.run = stop_at_ranks
    launch.subprocess = types.SimpleNamespace(Popen=stop_at_process)
    launch.default_config_file = ""  # that of whoever built the image is not this job's
    before = dict(os.environ)
    values = question["values"]
    config = f"{scratch}/accelerate.json"
    if question["deepspeed"]:
        arguments = ["--use_deepspeed", "--deepspeed_config_file", values["deepspeed_config_file"], "--mixed_precision=no",
                     "--num_machines=1", f"--num_processes={values['num_processes']}", "--main_process_port=0"]  # fmt: skip
    else:
        with open(config, "w", encoding="utf-8") as stream:
            json.dump(values, stream)
        arguments = ["--config_file", config]
    parser = launch.launch_command_parser()
    given = parser.parse_args([*arguments, "train.py"])
    known = set(vars(given))
    try:
        launch.launch_command(given)
    except Reached as reached:
        told = {name: value for name, value in reached.environment.items() if before.get(name) != value}
        return {"variables": told, "notes": _dropped(values, known, question["file"])}
    except Exception as error:  # whatever it is, it is about the file
        message = " ".join(str(error).split()).replace(config, question["file"])
        kind = "" if isinstance(error, (ValueError, ImportError, RuntimeError)) else f"{type(error).__name__}: "
        return {"refused": f"Accelerate refuses it: {kind}{message}", "hint": ""}
    return {"refused": "Accelerate would start no process with it", "hint": ""}


def _dropped(values: dict[str, Any], known: set[str], file: str) -> list[str]:
    """Notes about keys of sections that Accelerate passes over in silence."""
    notes = []
    for section, prefix in _SECTIONS.items():
        given = values.get(section)
        for key in given if isinstance(given, dict) else ():
            name = key if key.startswith(prefix) else prefix + key
            if name not in known and name not in _NO_ARGUMENTS:
                notes.append(f"{file}: {section}.{key} has no effect: the installed Accelerate does not know it")
    return notes


def main() -> None:
    """Reads the question, writes the answer."""
    with open(sys.argv[1], encoding="utf-8") as stream:
        question = json.load(stream)
    told = answer(question, os.path.dirname(sys.argv[2]))
    with open(sys.argv[2], "w", encoding="utf-8") as stream:
        json.dump(told, stream)


if __name__ == "__main__":
    main()
