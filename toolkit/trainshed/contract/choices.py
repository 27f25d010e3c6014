"""Choices that hyperparameters, settings and variables decide together: program, distribution, compiler and their like."""

from __future__ import annotations

import os

from trainshed.base.errors import Problem, did_you_mean, near_name, shorten

from .distributions import DEFAULT, owner, traits_of
from .hyperparameters import truthy
from .job import Distribution
from .settings import Settings, read_settings
from .wire import compile_plan
from .wire.compile_plan import CompilerRequest
from .wire.variables import of_setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .config import ResourceConfig
    from .hyperparameters import Hyperparameters

# What Amazon's images have in SAGEMAKER_TRAINING_MODULE: their launchers of the distributions that trainshed launches.
PEERS_LAUNCHERS = ("sagemaker_pytorch_container.training:main", "sagemaker_tensorflow_container.training:main")
# Flags of the platform that choose a distribution, in the order in which the first one set wins. SDK v2 sends
# `pytorchddp` of its PyTorch class as the smddp flag, so that flag is plain DDP here.
DATA_PARALLEL = "sagemaker_distributed_dataparallel_enabled"
PYTORCH_DDP = "sagemaker_pytorch_ddp_enabled"
DISTRIBUTION_FLAGS = (
    ("sagemaker_mpi_enabled", "mpi"),
    (PYTORCH_DDP, "torchrun"),
    ("sagemaker_torch_distributed_enabled", "torchrun"),
    (DATA_PARALLEL, "torchrun"),
    ("sagemaker_pytorch_xla_multi_worker_enabled", "xla"),
    ("sagemaker_multi_worker_mirrored_strategy_enabled", "tensorflow"),
    ("sagemaker_parameter_server_enabled", "parameter_server"),
)
PROCESSES_PER_HOST = "sagemaker_mpi_num_of_processes_per_host"
GROUPS = "sagemaker_distribution_instance_groups"
_REGIONS = ("AWS_DEFAULT_REGION", "SAGEMAKER_REGION", "AWS_REGION")
KNOWN_RESERVED = frozenset(
    {name for name, _ in DISTRIBUTION_FLAGS}
    | {
        "sagemaker_program",
        "sagemaker_submit_directory",
        "sagemaker_job_name",
        "sagemaker_region",
        "sagemaker_container_log_level",
        "sagemaker_s3_output",
        PROCESSES_PER_HOST,
        "sagemaker_mpi_custom_mpi_options",
        "sagemaker_mpi_num_processes",
        "sagemaker_instance_type",
        GROUPS,
        "sagemaker_distributed_dataparallel_custom_mpi_options",
        compile_plan.ENABLED,
        compile_plan.DEBUG,
        "sagemaker_toolkit_native_launcher_enabled",
        "sagemaker_estimator_class_name",
        "sagemaker_estimator_module",
        "sagemaker_enable_cloudwatch_metrics",
        "sagemaker_requirements",
    }
)
LOG_LEVELS = {
    "CRITICAL": 50,
    "FATAL": 50,
    "ERROR": 40,
    "WARNING": 30,
    "WARN": 30,
    "INFO": 20,
    "DEBUG": 10,
    "NOTSET": 0,
}


class Choices:
    """Decides what several sources may name. Adds to `problems` and `warnings` as it goes.

    Args:
        hyperparameters: the job's.
        file: where they come from, for problems.
        environ: the environment of `train`.
    """

    def __init__(
        self,
        hyperparameters: Hyperparameters,
        file: str,
        environ: Mapping[str, str],
        problems: list[Problem],
        warnings: list[str],
    ) -> None:
        self._hps = hyperparameters
        self._file = file
        self._environ = environ
        self._problems = problems
        self._warnings = warnings
        self.settings = self._without_overridden(read_settings(hyperparameters.reserved, file, environ, problems))

    def warn_of_unknown_names(self) -> None:
        """Warns of misspelt `sagemaker_*` hyperparameters."""
        for name in self._hps.reserved:
            if name.startswith("sagemaker_") and name not in KNOWN_RESERVED:
                near = near_name(name, KNOWN_RESERVED)
                if near:
                    self._warnings.append(f"hyperparameter {name!r} is not known to any toolkit: {near}")

    def text(self, name: str) -> str:
        """A hyperparameter that must be a string; "" where it is absent."""
        value = self._hps.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            self._problems.append(Problem(self._file, "must be a string", name, str(value)))
            return ""
        return value

    def program(self) -> str:
        """The script: SAGEMAKER_PROGRAM wins over the hyperparameter, as in Amazon's toolkit.

        Next comes our own setting, last what SDK v3 and Amazon's toolkit export.
        """
        named = self.text("sagemaker_program")
        variable = self._environ.get("SAGEMAKER_PROGRAM") or ""
        if variable and named and os.path.normpath(variable) != os.path.normpath(named):
            self._warnings.append(
                f"running {shorten(variable)!r}: variable SAGEMAKER_PROGRAM overrides the hyperparameter "
                f"sagemaker_program = {shorten(named)!r}; unset the variable to run that"
            )
        exported = self._environ.get("SM_ENTRY_SCRIPT") or self._environ.get("SM_USER_ENTRY_POINT") or ""
        return variable or named or self.settings.program or exported

    def source(self) -> str:
        """The place of the code: a folder, an archive or a URI; "" for the usual places."""
        named = self.text("sagemaker_submit_directory") or self.settings.source
        environ = self._environ
        return named or environ.get("SAGEMAKER_SUBMIT_DIRECTORY") or environ.get("SM_SOURCE_DIR") or ""

    def training_module(self) -> str:
        """The image's own launcher, `package.module:function`; "" for Amazon's, which trainshed replaces."""
        name = self._environ.get("SAGEMAKER_TRAINING_MODULE") or ""
        module, colon, function = name.partition(":")
        if name and not (colon and function.isidentifier() and all(part.isidentifier() for part in module.split("."))):
            self._problems.append(
                Problem("variable SAGEMAKER_TRAINING_MODULE", "must look like package.module:function", value=name)
            )
        if name in PEERS_LAUNCHERS:
            self._warnings.append(f"SAGEMAKER_TRAINING_MODULE = {name} is not called: trainshed starts the script itself")
            return ""
        return name

    def region(self) -> str:
        """The AWS region, "" where nothing names one; in the peer's order, then by the names that it does not read."""
        named = self.text("sagemaker_region")
        return named or next(filter(None, map(self._environ.get, _REGIONS)), None) or ""

    def log_level(self) -> int:
        """The level as a number (20), written as a number or a word ("INFO"); 20, with a warning, for anything else."""
        value = self._hps.get("sagemaker_container_log_level", self._environ.get("SAGEMAKER_CONTAINER_LOG_LEVEL") or 20)
        level = LOG_LEVELS.get(str(value).strip().upper())
        if level is not None:
            return level
        try:
            return int(float(str(value)))
        except (ValueError, OverflowError):
            self._warnings.append(f"sagemaker_container_log_level = {str(value)[:40]!r} is not a log level; using INFO")
            return LOG_LEVELS["INFO"]

    def distribution(self, resources: ResourceConfig) -> Distribution:
        """How ranks are started, on which hosts, and how many on each."""
        kind, asked_by = self._kind()
        traits = traits_of(kind)
        pipeline = self._pipeline() if "parameters" in traits.takes else {}
        processes = self._processes_per_host()
        groups = self._groups(resources)
        if not groups and asked_by:
            groups = [resources.current_group_name]
        for name in ("roles", "servers"):
            if getattr(self.settings, name) and name not in traits.takes:
                self._warnings.append(f"trainshed_{name} is for the distribution {owner(name)}; this is {kind}")
        kinds = {one.instance_type for one in resources.instance_groups if one.name in groups}
        if len(kinds) > 1 and traits.has_ranks and not traits.counted_by and not processes:
            self._warnings.append(
                f"hosts of several types ({', '.join(sorted(kinds))}) take part, and ranks must be equally many on each: "
                "set trainshed_processes_per_host"
            )
        return Distribution(
            kind=kind, asked_by=asked_by, processes_per_host=processes, groups=tuple(groups), pipeline=pipeline
        )

    def compiler(self, distribution: Distribution) -> CompilerRequest:
        """Returns what the job asks of the compiler; trainshed's own setting wins over the platform's flags."""
        settings, flag = self.settings, self._hps.get(compile_plan.ENABLED)
        if settings.compiler:
            backend, asked_by = settings.compiler, "trainshed_compiler"
        elif flag is not None:
            backend, asked_by = "auto" if truthy(flag) else "off", compile_plan.ENABLED
        elif distribution.traits.compiles:  # SDK v2's `pytorchxla` is a way to ask for the compiler
            asked_by = distribution.asked_by
            backend = "xla" if asked_by == "trainshed_distribution" else "auto"
        else:
            return CompilerRequest()
        return CompilerRequest(
            backend=backend,
            asked_by=asked_by,
            debug=truthy(self._hps.get(compile_plan.DEBUG)),
            mode=settings.compiler_mode,
            regional=settings.compiler_regional,
            dynamic=settings.compiler_dynamic,
        )

    def _without_overridden(self, settings: Settings) -> Settings:
        """Drops settings from variables (the image's, perhaps) where a platform hyperparameter decides the same."""
        flag, kind = self._flag()
        for name, winner, decided in (
            ("distribution", flag, kind),
            ("processes_per_host", PROCESSES_PER_HOST, self._hps.get(PROCESSES_PER_HOST)),
            ("compiler", compile_plan.ENABLED, None),
        ):
            value, won = getattr(settings, name), self._hps.get(winner)
            if not value or won in (None, "") or self._hps.get(f"trainshed_{name}") not in (None, ""):
                continue
            settings = settings.replace(**{name: getattr(Settings, name)})
            if value != decided:
                self._warnings.append(
                    f"ignoring variable {of_setting(name)} = {value}: the job's hyperparameter {winner} = {won} overrides it"
                )
        return settings

    def _flag(self) -> tuple[str, str]:
        """The platform's flag that chooses the distribution, and its kind; ("", "") where none is set."""
        return next(((flag, kind) for flag, kind in DISTRIBUTION_FLAGS if truthy(self._hps.get(flag))), ("", ""))

    def _kind(self) -> tuple[str, str]:
        """The kind of distribution and who asked for it; our own setting wins."""
        if self.settings.distribution:
            return self.settings.distribution, "trainshed_distribution"
        flag, kind = self._flag()
        if self._wants_pipeline(flag):
            return "pipeline", flag or "trainshed_pipeline"
        if not kind and self.settings.accelerate:
            return "torchrun", "trainshed_accelerate"
        return kind or DEFAULT, flag

    def _wants_pipeline(self, flag: str) -> bool:
        """Whether the job is for Amazon's model parallel library, or names a pipeline of ours.

        SDK v2 sends `mp_parameters` with MPI's flag for version 1 of that library, which has pipelines, and with torchrun's
        for version 2, which has none (its `mp_parameters` then name no partitions).
        """
        asked = self._hps.user.get("mp_parameters")
        if flag == "sagemaker_mpi_enabled" and asked not in (None, ""):
            return True
        partitions = isinstance(asked, dict) and ("partitions" in asked or "pipeline_parallel_degree" in asked)
        return bool(self.settings.pipeline) or (partitions and bool(flag))

    def _pipeline(self) -> dict[str, Any]:
        from .wire.pipeline import parameters_of  # only such jobs need it

        parameters, wrong = parameters_of(self._hps.user.get("mp_parameters"), self.settings.pipeline)
        self._problems += [Problem(self._file, message, name, suggestion=hint) for name, message, hint in wrong]
        return parameters

    def _processes_per_host(self) -> int:
        number = self._hps.get(PROCESSES_PER_HOST)
        if self.settings.processes_per_host or number in (None, ""):
            return self.settings.processes_per_host
        if isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= 4096:
            return number
        self._problems.append(Problem(self._file, "must be a whole number of at least 1", PROCESSES_PER_HOST, str(number)))
        return 0

    def _groups(self, resources: ResourceConfig) -> list[str]:
        """The instance groups that the distribution is for, as the job names them."""
        groups = self._hps.get(GROUPS) or []
        if not isinstance(groups, list) or not all(isinstance(group, str) for group in groups):
            self._problems.append(Problem(self._file, "must be a list of group names", GROUPS, str(groups)))
            return []
        known = [group.name for group in resources.instance_groups]
        for group in groups:
            if known and group not in known:
                message = f"is not one of the job's groups ({', '.join(known)})"
                self._problems.append(Problem(self._file, message, GROUPS, group, did_you_mean(group, known)))
        return groups
