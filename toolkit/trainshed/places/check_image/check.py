"""`trainshed check-image IMAGE`: checks from outside, through the container engine, whether an image can train.

First its configuration, then three short containers: one that echoes, one that inspects, and, if trainshed is installed
inside, its doctor.
"""

from __future__ import annotations

import json
from typing import Any

from trainshed.base.check import Check, fail, ok, warn

from ..container_engine import Engine, EngineError, hint_for, near_image, reason
from .image_config import check_config, entrypoint_of, is_ours, runs_train_only
from .image_probe import PROBE, check_probe, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 300.0  # for each container
_NEEDS_NO_SHELL = 'ENTRYPOINT ["python3", "-I", "-m", "trainshed"] and CMD ["train"], or a base image with a shell'


def examine(image: str, engine: Engine, say: Callable[[str], None]) -> list[Check]:
    """All checks of an image. Raises EngineError if there is no such image.

    Args:
        say: gets what is looked at next: each container may take long.
    """
    known = engine.inspect_image(image)
    if known is None:
        raise EngineError(
            f"image {image} does not exist here", hint=near_image(image, engine) or f"{engine.kind} pull {image}"
        )
    found = check_config(known)
    say(f"asking {image} to run a command")
    found.append(check_entrypoint(image, engine, known))
    say("looking around inside")
    started = entrypoint_of(known)[-1:] if runs_train_only(known) else []
    done = engine.run("run", "--rm", "--entrypoint", "/bin/sh", image, "-c", PROBE, "sh", *started, timeout=SECONDS)
    if done.returncode != 0 and not done.stdout:
        return [*found, *without_shell(image, engine, known, reason(done.stderr), say)]
    facts = parse(done.stdout)
    found += check_probe(facts, known)
    if facts.get("python"):
        say("starting it as a user that it does not know")
        found.append(check_other_user(image, engine, facts))
    if facts.get("trainshed"):
        say("running `trainshed doctor` inside")
        found += check_inside(image, engine)
    return found


def without_shell(image: str, engine: Engine, known: dict[str, Any], why: str, say: Callable[[str], None]) -> list[Check]:
    """The checks of an image without /bin/sh: the file `train` needs one, and Python starts without it."""
    if not is_ours(entrypoint_of(known)):
        return [fail("shell", f"/bin/sh cannot be run, which `train` needs: {why}", _NEEDS_NO_SHELL)]
    say("running `trainshed doctor` inside")
    return [ok("shell", "there is no /bin/sh, and the ENTRYPOINT needs none"), *check_inside(image, engine)]


def check_entrypoint(image: str, engine: Engine, known: dict[str, Any]) -> Check:
    """Checks whether a command given to the image is what runs; the SDKs run `chmod` this way, users `bash`."""
    if is_ours(entrypoint_of(known)):
        return ok("commands", "are trainshed's own, by the ENTRYPOINT")
    if runs_train_only(known):
        fix = 'drop ENTRYPOINT and set CMD ["train"]'
        return warn("commands", f"ENTRYPOINT is `train`, so only that runs, not `{engine.kind} run {image} bash`", fix)
    done = engine.run("run", "--rm", image, "echo", "trainshed-asks", timeout=SECONDS)
    if done.stdout.strip().endswith("trainshed-asks") and done.returncode == 0:
        return ok("commands", "run as they are given")
    said = reason(done.stderr) if done.stderr.strip() else f"it printed {done.stdout.strip()[:80]!r}"
    fix = 'remove ENTRYPOINT, or let it end in `exec "$@"`'
    return fail(
        "commands", f"`{engine.kind} run {image} echo ok` prints something else: {said}", hint_for(done.stderr) or fix
    )


def check_other_user(image: str, engine: Engine, facts: dict[str, str]) -> Check:
    """Checks whether it runs as a user that the image does not know, as for callers of `trainshed run` who are not root."""
    command = ["train", "--version"] if facts.get("trainshed") else [facts["python"], "-c", "pass"]
    done = engine.run(
        "run", "--rm", "--user", "12345:12345", "--entrypoint", command[0], image, *command[1:], timeout=SECONDS
    )
    if done.returncode == 0:
        return ok("any user", f"`{' '.join(command)}` runs as uid 12345")
    return warn(
        "any user",
        f"`{' '.join(command)}` fails as uid 12345: {reason(done.stderr)}",
        "make what it needs readable: RUN chmod -R a+rX the folder",
    )


def check_inside(image: str, engine: Engine) -> list[Check]:
    """The checks of `trainshed doctor` inside the image; their names start with `inside: `."""
    done = engine.run(
        "run", "--rm", "--entrypoint", "trainshed", "--shm-size", "2g", image, "doctor", "--json", timeout=SECONDS
    )
    try:
        checks: list[dict[str, Any]] = json.loads(done.stdout)["checks"]
        return [
            Check(name=f"inside: {item['name']}", level=item["level"], message=item["message"], fix=item["fix"])
            for item in checks
            if item["name"] != "shm"  # the probe has looked at that without --shm-size
        ]
    except (ValueError, KeyError, TypeError):
        said = reason(done.stderr)
        return [
            fail("inside", f"`trainshed doctor` fails: {said}", "install the same version of trainshed inside as outside")
        ]
