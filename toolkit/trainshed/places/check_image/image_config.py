"""The configuration of an image: ENTRYPOINT, CMD, STOPSIGNAL, variables, volumes, size. Pure."""

from __future__ import annotations

from typing import Any

from trainshed.base.check import Check, ok, warn

GOOD_SIGNALS = ("", "SIGTERM", "TERM", "15", "SIGINT", "INT", "2", "SIGQUIT", "QUIT", "3", "SIGHUP", "HUP", "1")
LARGE = 12e9  # bytes; beyond this pulling takes minutes on every new machine
_INITS = ("tini", "dumb-init", "docker-init")
_SHELLS = tuple([shell, "-c"] for shell in ("/bin/sh", "/bin/bash", "sh", "bash"))


def environment_of(known: dict[str, Any]) -> dict[str, str]:
    """The image's variables."""
    pairs = (item.partition("=") for item in (known.get("Config") or {}).get("Env") or [])
    return {name: value for name, _, value in pairs}


def is_gpu_image(known: dict[str, Any]) -> bool:
    """Returns whether the image is made for NVIDIA GPUs, as far as its variables tell."""
    variables = environment_of(known)
    return any(name.startswith(("CUDA_", "NVIDIA_", "NV_CUDA", "NCCL_VERSION")) for name in variables)


def check_config(known: dict[str, Any]) -> list[Check]:
    """The checks, from what `docker image inspect` prints of an image."""
    config = known.get("Config") or {}
    return [
        _entrypoint(config.get("Entrypoint") or []),
        _command(config.get("Cmd") or [], config.get("Entrypoint") or []),
        _stop_signal(str(config.get("StopSignal") or "")),
        _volumes(config.get("Volumes") or {}),
        _buffering(environment_of(known)),
        *_nvidia(known),
        _size(int(known.get("Size") or 0)),
    ]


def _entrypoint(entrypoint: list[str]) -> Check:
    if not entrypoint:
        return ok("ENTRYPOINT", "none, so `train` is process 1")
    text = " ".join(entrypoint)
    if entrypoint[:2] in _SHELLS:
        fix = 'write it as a list: ENTRYPOINT ["program"], or drop it'
        return warn(
            "ENTRYPOINT",
            f"shell form ({text}): the shell consumes the argument `train` and does not forward stop signals",
            fix,
        )
    name = entrypoint[0].rsplit("/", 1)[-1]
    if name in _INITS and "--" not in entrypoint:
        fix = f'ENTRYPOINT ["{entrypoint[0]}", "--"], or drop it: train reaps and passes signals on itself'
        return warn("ENTRYPOINT", f"{text} may interpret the command's options as its own", fix)
    return ok("ENTRYPOINT", text)


def entrypoint_of(known: dict[str, Any]) -> list[str]:
    """The image's ENTRYPOINT, [] for none."""
    return list((known.get("Config") or {}).get("Entrypoint") or [])


def runs_train_only(known: dict[str, Any]) -> bool:
    """Returns whether the image's ENTRYPOINT is `train`, which takes every command for its own argument."""
    return any(part.rsplit("/", 1)[-1] == "train" for part in entrypoint_of(known)[-1:])


def is_ours(entrypoint: list[str]) -> bool:
    """Returns whether it is the command `trainshed`, whose first argument is what to do: `train` for one."""
    return any(part.rsplit("/", 1)[-1] == "trainshed" for part in entrypoint[-1:])


def _command(command: list[str], entrypoint: list[str]) -> Check:
    if command[:2] in _SHELLS:
        words = " ".join(command[2:]).split()
        if "train" in words[-1:] and words[:1] != ["exec"]:
            return warn(
                "CMD",
                f"shell form ({' '.join(words)}): the shell is process 1 and does not forward stop signals, so "
                "`docker stop` kills the script before it can save",
                'CMD ["train"]',
            )
        command = words
    if any(part == "train" or part.endswith("/train") for part in [*entrypoint, *command][-2:]):
        return ok("CMD", " ".join(command) or "in the ENTRYPOINT")
    shown = " ".join(command) or "none"
    return warn("CMD", f"{shown}: SDK v3's local mode passes no command and expects the image to train", 'CMD ["train"]')


def _stop_signal(number: str) -> Check:
    if number.upper() in GOOD_SIGNALS:
        return ok("STOPSIGNAL", number or "SIGTERM (default)")
    return warn("STOPSIGNAL", f"{number}: the script does not get a signal that it can handle", "STOPSIGNAL SIGTERM")


def _volumes(volumes: dict[str, Any]) -> Check:
    below = sorted(path for path in volumes if path == "/opt/ml" or path.startswith("/opt/ml/"))
    if below:
        return warn("VOLUME", f"{', '.join(below)}: hides what the image or a mount has there", "remove the VOLUME line")
    return ok("VOLUME", "none below /opt/ml")


def _buffering(variables: dict[str, str]) -> Check:
    if variables.get("PYTHONUNBUFFERED"):
        return ok("PYTHONUNBUFFERED", variables["PYTHONUNBUFFERED"])
    fix = "ENV PYTHONUNBUFFERED=1"
    return warn("PYTHONUNBUFFERED", "not set: train sets it for the script, but other commands print late", fix)


def _nvidia(known: dict[str, Any]) -> list[Check]:
    if not is_gpu_image(known):
        return []
    variables = environment_of(known)
    missing = [name for name in ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES") if not variables.get(name)]
    if missing:
        fix = "ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        return [warn("NVIDIA", f"{' and '.join(missing)} not set: some platforms then give the container no GPU", fix)]
    if not {"compute", "all"} & set(variables["NVIDIA_DRIVER_CAPABILITIES"].split(",")):
        fix = "ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        return [warn("NVIDIA", f"NVIDIA_DRIVER_CAPABILITIES={variables['NVIDIA_DRIVER_CAPABILITIES']}: no CUDA", fix)]
    return [ok("NVIDIA", f"devices {variables['NVIDIA_VISIBLE_DEVICES']}, {variables['NVIDIA_DRIVER_CAPABILITIES']}")]


def _size(size: int) -> Check:
    text = f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
    if size > LARGE:
        return warn("size", text, "see `docker history`; leave out caches (pip --no-cache-dir), compilers and tests")
    return ok("size", text)
