"""Names a rank that holds up the others while it does, where the steps are measured (`profile: auto`).

A watcher of the supervisor's loop. Each host reads its own ranks' paces (observe.pace) and hands what is new to host 0,
which judges (observe.lagging) and says one line when a rank falls behind, and one when it keeps up again:

    {"type": "pace", "ranks": [...], "stolen": 0.02, "throttled": {"0": 4}}

Every job loads this module, so functions import what only a measured job needs.
"""

from __future__ import annotations

import os
import time

from .supervisor.watcher import FOREVER, Watcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainshed.observe.pace import Pace
    from trainshed.observe.stragglers import Around, Lagging

    from .roster.roster import Roster
    from .supervisor.watcher import Supervised

EVERY = 0.5  # seconds between two looks at the files
GPU_EVERY = 10.0  # seconds between two looks at what holds the GPUs' clocks down
MOST_SAID = 20  # lines; a rank that comes and goes all day fills no log
_TAIL = 1 << 16  # bytes of a file of samples: more than one sample


class SlowRanks(Watcher):
    """This host's part; host 0's knows all ranks.

    Args:
        folder: the profiler's; "" where the steps are not measured.
        host: this host's name.
        gpus: whether it has some.
    """

    def __init__(self, folder: str, host: str, gpus: bool, roster: Roster) -> None:
        self._folder, self._host, self._gpus, self._roster = folder, host, gpus, roster
        self._next = 0.0
        self._sent: dict[int, tuple[int, int]] = {}  # by rank of this host: process and blocks
        self._times: tuple[int, int] | None = None  # of the CPUs: all, and stolen
        self._throttled: dict[int, int] = {}
        self._next_gpus = 0.0
        self._said = 0
        self._lagging: Lagging | None = None  # host 0's
        self._paces: dict[str, list[Pace]] = {}  # likewise, by host
        self._around: dict[str, Around] = {}
        if folder and roster.leads:
            roster.listen("pace", self.heard)

    def pause(self) -> float:
        return max(0.0, self._next - time.monotonic()) if self._folder else FOREVER

    def turn(self, run: Supervised) -> None:
        now = time.monotonic()
        if not self._folder or now < self._next:
            return
        if run.stopping:
            self._next = now + FOREVER
            return
        # Host 0 reads a message of each host: with many hosts, less often.
        self._next = now + EVERY * max(1.0, len(self._roster.names) / 16)
        self._look(now)
        if self._roster.leads and self._paces:
            self._judge(run)

    def episodes(self) -> list[dict[str, Any]]:
        """Who was behind when, for the run record; on host 0 alone."""
        return [one.plain() for one in self._lagging.episodes] if self._lagging is not None else []

    def run_over(self) -> None:
        """The files are of no use any more."""
        if self._folder:
            from trainshed.base.files import remove
            from trainshed.observe.pace import path_of

            for rank in self._sent:
                remove(path_of(self._folder, self._host, rank))

    # --- this host ---

    def _look(self, now: float) -> None:
        from trainshed.observe.pace import read_paces
        from trainshed.observe.stragglers import Around

        # What an earlier attempt has left, or a rank that has ended, says nothing of now.
        paces = [pace for pace in read_paces(self._folder, self._host) if os.path.exists(f"/proc/{pace.pid}")]
        latest = {pace.rank: (pace.pid, pace.blocks) for pace in paces}
        if latest == self._sent:
            return
        self._sent = latest
        if self._gpus and now >= self._next_gpus:
            self._next_gpus = now + GPU_EVERY
            self._throttled = _throttled(self._folder, self._host)
        around = Around(self._stolen(), self._throttled)
        if self._roster.leads:
            self._paces[self._host], self._around[self._host] = paces, around
            return
        throttled = {str(gpu): bits for gpu, bits in around.throttled.items()}
        ranks = [pace.plain() for pace in paces]
        if not self._roster.send({"type": "pace", "ranks": ranks, "stolen": around.stolen, "throttled": throttled}):
            self._sent = {}  # again when there is a connection

    def _stolen(self) -> float:
        """Since the last time; /proc/stat counts in its eighth number what other machines took (proc_stat(5))."""
        try:
            with open("/proc/stat") as file:
                numbers = [int(word) for word in file.readline().split()[1:9]]
        except (OSError, ValueError):
            return 0.0
        before, self._times = self._times, (sum(numbers), numbers[7] if len(numbers) == 8 else 0)
        if before is None or self._times[0] <= before[0]:
            return 0.0
        return max(0.0, min(1.0, (self._times[1] - before[1]) / (self._times[0] - before[0])))

    # --- host 0 ---

    def heard(self, host: str, message: dict[str, Any]) -> None:
        """Another host's part; one that cannot be read is left out."""
        from trainshed.observe.pace import Pace
        from trainshed.observe.stragglers import Around

        try:
            paces = [Pace.of(fields) for fields in message["ranks"]]
            stolen, throttled = float(message["stolen"]), {int(gpu): int(bits) for gpu, bits in message["throttled"].items()}
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            return
        self._paces[host] = [pace for pace in paces if pace.host == host]
        self._around[host] = Around(stolen, throttled)

    def _judge(self, run: Supervised) -> None:
        from trainshed.observe.stragglers import Lagging

        if self._lagging is None:
            self._lagging = Lagging()
        paces = [pace for host in self._roster.present() for pace in self._paces.get(host, [])]
        for change in self._lagging.take(paces, self._around):
            if self._said < MOST_SAID:
                run.say(change.text)
            elif self._said == MOST_SAID:
                run.say("slow ranks: no further lines; the rest is in the run record")
            self._said += 1


def _throttled(folder: str, host: str) -> dict[int, int]:
    """By number of this host's GPUs, what held their clocks down at the last sample; {} where nothing is sampled."""
    from trainshed.base.files import open_plain
    from trainshed.observe.system import files_below, sample_of

    found: dict[int, int] = {}
    for path in files_below(folder)[-1:]:
        try:
            with open_plain(path, links=False) as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
                lines = file.read().splitlines()
        except OSError:
            continue
        for line in lines:
            if (sample := sample_of(line)) is not None and sample[0][3] == "GPUThrottleReasons" and sample[0][0] == host:
                number = sample[0][2].removeprefix("gpu")
                if number.isdecimal():
                    found[int(number)] = int(sample[2])
    return found
