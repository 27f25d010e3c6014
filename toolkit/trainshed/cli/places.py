"""Where `trainshed run` runs a job: `--on PLACE` chooses the part of the runner, which reads all other words."""

from __future__ import annotations

from trainshed.base.errors import EXIT_JOB, TrainshedError, did_you_mean

PLACES = ("here", "slurm")


class PlaceError(TrainshedError):
    """There is no such place."""

    exit_code = EXIT_JOB


def main(arguments: list[str]) -> int:
    """`trainshed run`."""
    place, rest = split(arguments)
    if place == "slurm" and "--help" not in rest and "-h" not in rest:
        from trainshed.runner.places.slurm.submit import main as on_slurm

        return on_slurm(rest)
    from trainshed.runner.job.flags import main as here

    return here(rest)


def split(arguments: list[str]) -> tuple[str, list[str]]:
    """(place, all other words). Raises PlaceError."""
    place, rest, words = "here", [], list(arguments)
    while words:
        word = words.pop(0)
        if word == "--on" or word.startswith("--on="):
            place = word.partition("=")[2] or (words.pop(0) if words else "")
        else:
            rest.append(word)
    if place not in PLACES:
        hint = did_you_mean(place, PLACES) or f"one of {', '.join(PLACES)}"
        raise PlaceError(f"trainshed run --on {place!r}: there is no such place", hint=hint)
    return place, rest
