"""The report of a job that is over, `output/data/report.html`: written by a process of its own, by the first host."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.base.voice import Voice
    from trainshed.contract.paths import Paths

    from .run_record import RunRecord

SECONDS = 30.0  # that it may take; it takes one where the machine is not busy
STOPPED_SECONDS = 10.0  # the same where somebody wants the job to end


def write_report(paths: Paths, record: RunRecord, voice: Voice, *, stopped: bool) -> None:
    """Writes the report where there is something to be seen, and says where it is. Costs the report at worst, never the job.

    Args:
        stopped: somebody waits for the end of the job.
    """
    if record.data.get("cluster", {}).get("rank") != 0 or not _measured(paths):
        return
    import json
    import subprocess

    from trainshed.base.wings import has_wing
    from trainshed.machine.isolation import isolated

    if not has_wing("studio"):
        return

    seconds = STOPPED_SECONDS if stopped else SECONDS
    command = isolated("trainshed.studio.pages", paths.output, paths.output_data, str(seconds))
    try:
        done = subprocess.run(
            command,
            input=json.dumps(voice.secrets).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds + 1,
            cwd="/",
            start_new_session=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        voice.say(f"warning: the report was not written: {error}")
        return
    said = done.stdout.decode("utf-8", "replace").strip().splitlines()
    if done.returncode == 0 and said:
        voice.say(f"report: {said[-1]}")
    elif done.returncode < 0:
        voice.say(f"warning: the report was not written: it took more than {seconds:.0f} s; `trainshed report` makes it")
    else:
        voice.say(f"warning: the report was not written: {said[-1] if said else 'no reason is known'}")


def _measured(paths: Paths) -> bool:
    """Whether the job has metrics or a profile."""
    profiler = f"{paths.output}/profiler"
    if os.path.exists(f"{paths.config}/profilerconfig.json"):
        from trainshed.observe.place import profiler_folder

        profiler = profiler_folder(paths.output)
    # Samples of the machine alone, which every job has, are no reason for a page.
    steps = f"{profiler}/steps"
    for folder in (paths.metrics, paths.scraped_metrics, steps, f"{paths.output}/tensorboard"):
        try:
            if os.listdir(folder):
                return True
        except OSError:
            continue
    return False
