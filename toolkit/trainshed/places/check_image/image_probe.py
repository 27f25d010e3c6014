"""Inspects an image from inside: a shell script that prints facts, and the checks of those facts."""

from __future__ import annotations

import re
from typing import Any

from trainshed.base.check import LEAST_PYTHON, Check, fail, ok, warn

# Plain POSIX sh: the image may have nothing else. One `name=value` a line. $1: the program ENTRYPOINT starts as `train`.
PROBE = r"""
say() { printf '%s=%s\n' "$1" "$2"; }
train=$(command -v train)
say train "$train"
if [ -n "$train" ] && ! grep -q trainshed "$train" 2>/dev/null; then say train_is_foreign yes; fi
entry=${1:+$(command -v "$1")}
if [ -n "$entry" ] && ! grep -q trainshed "$entry" 2>/dev/null; then say foreign_entrypoint "$entry"; fi
say own_train "$(IFS=:; for folder in $PATH; do grep -ls trainshed "$folder/train" 2>/dev/null; done | head -n 1)"
say code "$(find /opt/ml/code -mindepth 1 -maxdepth 1 2>/dev/null | head -n 4 | tr '\n' ' ')"
say bash "$(command -v bash)"
say python3 "$(command -v python3)"
say python_alias "$(command -v python)"
python=$(command -v python3 || command -v python)
say uid "$(id -u)"
say shm "$(df -k /dev/shm 2>/dev/null | tail -n 1 | tr -s ' ' | cut -d ' ' -f 2)"
say baked "$(find /opt/ml -mindepth 1 -maxdepth 2 ! -path '/opt/ml/code*' ! -type d 2>/dev/null | head -n 4 | tr '\n' ' ')"
say baked_folders "$(find /opt/ml -mindepth 1 -maxdepth 1 ! -path /opt/ml/code 2>/dev/null | head -n 4 | tr '\n' ' ')"
if [ -n "$python" ]; then
    say python "$python"
    say version "$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null)"
    say pip "$("$python" -m pip --version 2>/dev/null | cut -d ' ' -f 1,2)"
    say trainshed "$(cd / && "$python" -c 'import trainshed; print(trainshed.__version__)' 2>/dev/null)"
fi
say done yes
"""
_INSTALL = "RUN pip install trainshed"


def parse(text: str) -> dict[str, str]:
    """Returns the facts, name -> value; the value of what was not found is empty."""
    pairs = (line.partition("=") for line in text.splitlines() if re.match(r"[a-z_0-9]+=", line))
    return {name: value.strip() for name, _, value in pairs}


def check_probe(facts: dict[str, str], known: dict[str, Any]) -> list[Check]:
    """The checks, from the probe's facts and what `docker image inspect` prints."""
    version = tuple(int(part) for part in re.findall(r"\d+", facts.get("version", ""))[:2])
    found = [
        _train(facts),
        _python(facts, version),
        ok("pip", facts["pip"])
        if facts.get("pip")
        else warn("pip", "missing, so requirements.txt of a job cannot be installed", "install python3-pip"),
        ok("bash", facts["bash"])
        if facts.get("bash")
        else warn("bash", "missing: SDK v3 starts its jobs with /bin/bash", "install bash"),
        ok("trainshed", facts["trainshed"])
        if facts.get("trainshed")
        else (warn if facts.get("train") else fail)("trainshed", "cannot be imported", _INSTALL),
        _baked(facts),
        ok("user", f"uid {facts.get('uid')}" + (" (root)" if facts.get("uid") == "0" else "")),
        _shm(facts.get("shm", "")),
    ]
    return found


def _train(facts: dict[str, str]) -> Check:
    train, own = facts.get("train", ""), facts.get("own_train", "")
    foreign = facts.get("foreign_entrypoint")
    if foreign:
        fix = f'ENTRYPOINT ["{own}"]' if own else _INSTALL + ", and drop ENTRYPOINT"
        return (warn if own else fail)("train", f"{foreign}, which ENTRYPOINT starts, is not trainshed's", fix)
    if not train:
        return fail("train", "is not on PATH: `docker run IMAGE train` ends with an error", _INSTALL)
    if facts.get("trainshed") and facts.get("train_is_foreign"):
        where = f"; trainshed's is {own}" if own else ""
        fix = "put the folder of trainshed's first on PATH, or remove the other program"
        return warn("train", f"{train} is what `docker run IMAGE train` runs, and it is not trainshed's{where}", fix)
    return ok("train", train)


def _python(facts: dict[str, str], version: tuple[int, ...]) -> Check:
    if not facts.get("python"):
        return fail("python", "missing", "start from an image with Python, such as python:3.12-slim")
    text = f"{facts.get('version')} at {facts['python']}"
    if version < LEAST_PYTHON:
        return fail("python", text, "use Python 3.10 or newer")
    if not facts.get("python_alias") or not facts.get("python3"):
        missing = "python" if not facts.get("python_alias") else "python3"
        return warn(
            "python",
            f"{text}, but `{missing}` is missing, which some launchers call",
            f"RUN ln -s {facts['python']} /usr/local/bin/{missing}",
        )
    return ok("python", text)


def _baked(facts: dict[str, str]) -> Check:
    baked = facts.get("baked") or facts.get("baked_folders")
    if baked:
        return warn("/opt/ml", f"holds {baked}: hidden when a job is mounted there", "keep only /opt/ml/code in the image")
    if facts.get("code"):
        return ok("/opt/ml", "holds only code, which a mount on /opt/ml itself (docker run -v JOB:/opt/ml) hides")
    return ok("/opt/ml", "is empty")


def _shm(kilobytes: str) -> Check:
    size = int(kilobytes) * 1024 if kilobytes.isdigit() else 0
    text = f"/dev/shm has {size / (1 << 20):.0f} MiB"
    if size >= 1 << 30:
        return ok("shm", text)
    return warn("shm", f"{text} with plain `docker run`", "docker run --shm-size 2g; `trainshed run` does so")
