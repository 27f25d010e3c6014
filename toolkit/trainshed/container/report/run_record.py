"""The run record: one JSON file a host that says what ran, on what, for how long, and how it ended."""

from __future__ import annotations

import os
import sys
import time

import trainshed
from trainshed.base import quick_json
from trainshed.base.disk_reserve import Room
from trainshed.base.files import write_atomic
from trainshed.base.secrets import mask_arguments, mask_leaves, mask_mapping
from trainshed.contract.wire.fingerprints import RECORD_KEY
from trainshed.contract.wire.secret_names import environment_secrets
from trainshed.machine.installed import environment, installed, normalized

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainshed.base.voice import Voice
    from trainshed.contract.cluster import Cluster
    from trainshed.contract.job import TrainingJob
    from trainshed.contract.outcome import Failure

    from ..notices import Interruption
    from ..program import Program
    from ..supervisor.launch_plan import LaunchPlan, Outcome

FORMAT = 1
PACKAGES = ("torch", "transformers", "accelerate", "lightning", "numpy", "torch_xla")


class RunRecord:
    """Collects facts while the job runs; `write` puts the present state on disk.

    The file is `output/data/run/<host>.json`; times are seconds since the epoch, phases have their own seconds.

    Args:
        voice: of the run; what it knows to be secret is masked in every text of the record when that is written.

    Attributes:
        problem: why the record is not on disk as it is here, "" while it is.
    """

    def __init__(self, voice: Voice, memory: str = "") -> None:
        self._voice = voice
        self._memory = memory
        self.problem = ""
        self._others: list[dict[str, Any]] = []  # restarts that were not the agent's
        self.started = time.time()
        self._phase_start = self.started
        self.path = ""
        self.room: Room | None = None
        self.data: dict[str, Any] = {
            "format": FORMAT,
            "state": "Starting",
            "started": self.started,
            "phases": [],
            "versions": {"trainshed": trainshed.__version__, "python": sys.version.split()[0]},
        }

    @property
    def host(self) -> str:
        """The host that the record is of, "" before that is known."""
        return os.path.basename(self.path).removesuffix(".json")

    def phase(self, name: str) -> None:
        """Ends the phase that began at the last call (or the start) and gives it this name."""
        now = time.time()
        self.data["phases"].append(
            {"name": name, "started": self._phase_start, "seconds": round(now - self._phase_start, 6)}
        )
        self._phase_start = now

    def job(self, job: TrainingJob) -> None:
        """The job as it was read; values of names that look secret are masked."""
        self.path = f"{job.paths.output_data}/run/{job.resources.current_host}.json"
        self.data["job"] = {
            "name": job.name,
            "hyperparameters": mask_mapping(job.hyperparameters.user),
            "settings": job.settings.plain(),
            "distribution": job.distribution.plain(),
            "channels": [channel.plain() for channel in job.channels],
            "resources": job.resources.raw,
            "program": job.program,
            "source": job.source,
            "warnings": list(job.warnings),
        }
        self.data["paths"] = job.paths.plain()

    def cluster(self, cluster: Cluster) -> None:
        """The job's hosts and this host's hardware."""
        self.path = f"{os.path.dirname(self.path)}/{cluster.current_host}.json"
        self.data["cluster"] = {**cluster.plain(), "world_size": cluster.world_size}

    def data_seen(self, fingerprints: dict[str, dict[str, Any]]) -> None:
        """The fingerprints of this host's channels."""
        if fingerprints:
            self.data[RECORD_KEY] = fingerprints

    def plan(self, program: Program, plan: LaunchPlan) -> None:
        """Records what is started on this host."""
        self.data["program"] = program.plain()
        self.data["plan"] = {
            "launcher": plan.launcher,
            "processes": [
                {"rank": spec.rank, "argv": shown_arguments(spec.argv, spec.env), "cwd": spec.cwd, "log": spec.log}
                for spec in plan.shown
            ],
            "grace_seconds": plan.grace_seconds,
        }
        if plan.compiler:
            self.data["compiler"] = {"choice": plan.compiler}

    def running(self) -> None:
        """The script has started; from now on the disk may fill up."""
        self.room = Room(self.data["paths"]["output"])
        self.phase("preparing")
        self.data.setdefault("resuming", self._newest())
        found = environment()
        self.data["environment"] = found
        self.data["versions"].update(_that_matter(found["packages"]))
        self.data["state"] = "Training"
        self.write()

    def ranks_started(self, warm: int, plain: int, why: str, seconds: float) -> None:
        """How the ranks of an attempt were started: see `warm_start.ranks.Started`."""
        start = {"warm": warm, "plain": plain, "why": why, "seconds": seconds}
        self.data["starts"] = [*self.data.get("starts", []), start]

    def compiled(self, backend: str, reports: dict[str, Any]) -> None:
        """The compiler's reports of this host's ranks."""
        self.data["compiler"] = {**self.data.get("compiler", {}), "backend": backend, "ranks": reports}

    def restarted(self, failure: Failure, instead: str = "") -> None:
        """The script failed and is started again.

        Args:
            instead: the one rank that is; "" for all of them.
        """
        if not instead:
            self.phase("training")
        summary = f"{failure.summary}; {instead} replaced in place" if instead else failure.summary
        told = {"reason": summary, "place": failure.place, "exit_code": failure.exit_code}
        reason = {"at": time.time(), **told, **self._newest()}
        self.data.setdefault("restarts", []).append(reason)
        self._others.append(reason)
        if instead:
            self.write()

    def _newest(self) -> dict[str, Any]:
        """The newest checkpoint there is: what ranks did after it was `saved` is lost."""
        folders = [folder for folder in (self.data["paths"]["checkpoints"], self._memory) if _holds_any(folder)]
        if not folders:
            return {"step": -1, "saved": 0.0}
        from ..supervisor.progress import newest_checkpoint

        step, saved = max(map(newest_checkpoint, folders))
        return {"step": step, "saved": round(saved, 3)}

    def held_up(self, episodes: list[dict[str, Any]]) -> None:
        """Ranks that were slower than the others during an attempt, and for which steps."""
        if episodes:
            self.data["slow_ranks"] = [*self.data.get("slow_ranks", []), *episodes]

    def restarted_by_agent(self, events: str) -> None:
        """The restarts that torch's elastic agent has noted in this file."""
        try:
            with open(events) as file:
                restarts = [quick_json.loads(line) for line in file]
        except (OSError, ValueError):
            return
        self.data["restarts"] = sorted([*restarts, *self._others], key=lambda restart: float(restart.get("at", 0.0)))

    def ended(
        self,
        outcome: Outcome | None,
        failure: Failure | None,
        exit_code: int,
        interruption: Interruption | None = None,
    ) -> None:
        """The end of the job: state, exit status, every rank's end."""
        stopped = bool(outcome and (outcome.stop_signal or (outcome.stopped_by and not failure)))
        stopped = stopped or bool(failure.kind == "Interrupted" if failure else interruption)
        interrupted = interruption is not None and not interruption.plain_stop and failure is None
        state = "Interrupted" if interrupted else "Stopped" if stopped else "Failed" if failure else "Completed"
        self.data.update(state=state, ended=time.time(), seconds=round(time.time() - self.started, 6), exit_code=exit_code)
        if outcome is not None:
            self.data["outcome"] = {
                "stop_signal": outcome.stop_signal,
                "stopped_by": outcome.stopped_by,
                "killed": outcome.killed,
                "left_behind": outcome.left_behind,
                "timed_out": outcome.timed_out,
                "ranks": [
                    {"rank": r.spec.rank, "returncode": r.returncode, "seconds": round(r.ended, 6)} for r in outcome.results
                ],
            }
        if interruption is not None:
            self.data["interruption"] = interruption.plain()
        if failure is not None:
            self.data["failure"] = {**failure.plain(), "details": "", "tail": ""}
        self.write()

    def write(self) -> None:
        """Puts the record on disk; a full or read-only disk loses the record, never the job."""
        if not self.path:
            return
        # One line a key: readable enough, and several times faster than the indenting encoder, which is pure Python.
        shown = mask_leaves(self.data, self._voice.secrets)
        lines = ",\n".join(
            f"{quick_json.dumps(key)}: {quick_json.dumps(value, default=str)}" for key, value in shown.items()
        )
        try:
            write_atomic(self.path, f"{{\n{lines}\n}}\n")
            self.problem = ""
        except OSError as error:
            self.problem = f"the run record {self.path} cannot be written: {error.strerror}"


def shown_arguments(argv: tuple[str, ...], env: dict[str, str]) -> list[str]:
    """A command line for showing, secrets masked."""
    return mask_arguments(list(argv), environment_secrets(env))


def installed_versions() -> dict[str, str]:
    """Versions of the packages that matter."""
    return _that_matter(installed(sys.path)[0])


def _that_matter(versions: dict[str, str]) -> dict[str, str]:
    return {name: versions[normalized(name)] for name in PACKAGES if normalized(name) in versions}


def _holds_any(folder: str) -> bool:
    try:
        return bool(os.listdir(folder))
    except OSError:
        return False
