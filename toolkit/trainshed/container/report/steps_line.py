"""The line at the end of a job whose steps were measured: what holds it up, and what to try next."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.base.voice import Voice

    from .run_record import RunRecord


def say_verdict(folder: str, record: RunRecord, voice: Voice) -> None:
    """Says and records the verdict on this host's ranks.

    Args:
        folder: the profiler's.
    """
    from trainshed.observe.bottleneck import read_verdict

    try:
        verdict = read_verdict(folder)
    except Exception as error:  # of files that the ranks have written: how the job ended does not depend on them
        voice.say(f"profile: no verdict: {type(error).__name__}: {error}")
        return
    if verdict is None:
        voice.say("profile: no verdict: fewer than ten optimizer steps of torch's were measured")
        return
    record.data["steps"] = {
        "cause": verdict.cause,
        "share": round(verdict.share, 4),
        "verdict": verdict.sentence(),
        "step_seconds": round(verdict.step_seconds, 6),
        "samples_a_second": verdict.samples_a_second,
        "slowest_rank": verdict.slowest,
    }
    voice.say(f"profile: {verdict.sentence()}")
