"""One training job as the platform, the user and the environment describe it; `reading.read_job` makes it."""

from __future__ import annotations

from trainshed.base.record import Record

from .distributions import DEFAULT, traits_of
from .wire.compile_plan import CompilerRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .config import (
        Channel,
        CheckpointConfig,
        DebugHookConfig,
        MetricDefinition,
        ProfilerConfig,
        ResourceConfig,
        TensorboardConfig,
    )
    from .distributions import DistributionTraits
    from .hyperparameters import Hyperparameters
    from .paths import Paths
    from .settings import Settings


class Distribution(Record):
    """How the job's ranks are started, and who asked for it.

    kind: the name of a distribution (`distributions`).
    asked_by: the hyperparameter or variable that asks for it, "" for the default.
    processes_per_host: 0 where the hardware decides.
    groups: instance groups that take part; () means all.
    pipeline: settings for the ranks of a `pipeline`, by name (contract/wire/pipeline.py).
    """

    kind: str = DEFAULT
    asked_by: str = ""
    processes_per_host: int = 0
    groups: tuple[str, ...] = ()
    pipeline: dict[str, Any] = {}  # noqa: RUF012

    @property
    def traits(self) -> DistributionTraits:
        """The traits of this kind of distribution."""
        return traits_of(self.kind)


class TrainingJob(Record):
    """Everything `train` knows before it looks at the machine."""

    name: str
    paths: Paths
    hyperparameters: Hyperparameters
    channels: tuple[Channel, ...]
    resources: ResourceConfig
    settings: Settings
    distribution: Distribution
    program: str  # the script or module to run, "" where nothing names one
    source: str  # where its code is: folder, archive or URI, "" for the usual places
    training_module: str = ""  # SAGEMAKER_TRAINING_MODULE: `package.module:function` that launches the script itself
    region: str = ""
    log_level: int = 20
    compiler: CompilerRequest = CompilerRequest()
    checkpoint: CheckpointConfig | None = None
    metric_definitions: tuple[MetricDefinition, ...] = ()
    tensorboard: TensorboardConfig | None = None
    debug_hook: DebugHookConfig | None = None
    profiler: ProfilerConfig | None = None
    opaque: dict[str, Any] = {}  # noqa: RUF012
    input_data_config: dict[str, Any] = {}  # noqa: RUF012
    warnings: tuple[str, ...] = ()

    @property
    def profiler_folder(self) -> str:
        """The folder where the machine's samples, the steps' times and traces go."""
        return self.profiler.local_path if self.profiler is not None else self.paths.profiler

    @property
    def measures_steps(self) -> bool:
        """Tells whether the ranks measure their steps; a trace of some of them needs it."""
        return self.settings.profile == "auto" or (self.profiler is not None and self.profiler.traced is not None)

    def channel(self, name: str) -> Channel | None:
        """A channel by name."""
        return next((channel for channel in self.channels if channel.name == name), None)
