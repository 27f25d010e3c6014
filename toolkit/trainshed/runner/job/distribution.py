"""How a job's ranks are started: `distribution` in our form, and in that of SageMaker's estimators."""

from __future__ import annotations

from trainshed.contract.distributions import named, owner, traits_of
from trainshed.contract.wire.pipeline import PipelineError, read_settings
from trainshed.contract.wire.roles import read_roles
from trainshed.contract.wire.variables import PREFIX, of_setting

from .checker import Checker
from .fields import DISTRIBUTION, Field
from .job import DistributionSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_SDK_FORM = ("smdistributed", "mpi")  # what SageMaker's estimators take instead of our fields


def read_distribution(fields: Checker, row: Field) -> DistributionSpec:
    """The distribution; problems are noted in `fields`."""
    if "smdistributed" in fields.mapping(row.name):
        return _by_amazons_libraries(fields, row)
    inner = fields.inner(row, [inner.name for inner in row.rows if inner.name not in _SDK_FORM])
    given = {r.name: inner.read(r) for r in DISTRIBUTION if r.kind != "mapping"}
    given["kind"] = named(given["kind"])
    given["parameters"] = _parameters(inner, "parameters")
    given["roles"] = numbers(inner, "roles", read_roles)
    if given["max_restarts"] and not given["engine"] and traits_of(given["kind"]).uses_agent and not _warm(fields):
        given["engine"] = "torchrun"  # torch's agent, which also goes on with other numbers of ranks
    if given["accelerate"] and "kind" not in inner.values:
        given["kind"] = owner("accelerate")
    distribution = DistributionSpec(**given)
    _check(inner, distribution)
    return distribution


def _warm(fields: Checker) -> bool:
    """Tells whether the job asks for warm starts, which are not for ranks that torch's agent starts."""
    for field, name in (("hyperparameters", f"{PREFIX.lower()}warm_start"), ("environment", of_setting("warm_start"))):
        node = fields.node(field)
        if node is not None and isinstance(node.value, dict) and name in node.value:
            return str(node.value[name].value) == "auto"
    return False


def _check(fields: Checker, distribution: DistributionSpec) -> None:
    """Notes what this kind of distribution does not take."""
    kind, traits = distribution.kind, distribution.traits
    if traits.uses_all_devices and distribution.engine not in ("", "trainshed"):
        fields.problem("engine", f"starts no processes of the distribution {kind!r}")
    for name in ("processes_per_host", "engine"):
        if getattr(distribution, name) and not traits.has_ranks and name in fields.values:
            fields.problem(name, f"has no effect with the distribution {kind!r}, which is one process per host")
    if traits.counted_by and distribution.processes_per_host > 1:
        fields.problem("processes_per_host", f"has no meaning for the distribution {kind!r}", traits.counted_by)
    for name in ("accelerate", "parameters", "roles", "servers"):
        if getattr(distribution, name) and name not in traits.takes:
            hint = "leave kind out, or write torchrun" if name == "accelerate" else ""
            fields.problem(name, f"is for the distribution {owner(name)!r}", hint, value="")


def numbers(fields: Checker, name: str, read: Callable[[object], dict[str, int]]) -> dict[str, int]:
    """A mapping to whole numbers, as `read` checks it; {} where it is absent."""
    if fields.node(name) is None:
        return {}
    try:
        return read({key: node.plain() for key, node in fields.mapping(name).items()})
    except ValueError as error:
        fields.problem(name, str(error), value="")
        return {}


def _parameters(fields: Checker, name: str) -> dict[str, object]:
    """The settings of a pipeline, checked as its ranks will read them."""
    if fields.node(name) is None:
        return {}
    values: dict[str, object] = {key: node.plain() for key, node in fields.mapping(name).items()}
    try:
        read_settings(values, name)
    except PipelineError as error:
        fields.problem(name, error.message.removeprefix(f"{name}: "), error.hint, value="")
    return values


def _by_amazons_libraries(fields: Checker, row: Field) -> DistributionSpec:
    """SageMaker's form for Amazon's libraries, with MPI's options beside that for model parallelism."""
    outer = fields.inner(row, _SDK_FORM)
    library = _nested(outer, "smdistributed", "modelparallel", "dataparallel")
    data = _nested(
        library, "dataparallel", "enabled", "custom_mpi_options"
    )  # the options: of EFA and NCCL, for its own server
    if data.flag("enabled"):
        if library.node("modelparallel") is not None:
            library.problem(
                "dataparallel", "cannot be used beside modelparallel: with ddp: true that has replicas", value=""
            )
        return DistributionSpec(kind="torchrun", for_amazons_library=True)
    inner = _nested(library, "modelparallel", "enabled", "parameters")
    options = _nested(outer, "mpi", "enabled", "processes_per_host", "custom_mpi_options")
    if not inner.flag("enabled"):
        return DistributionSpec()
    return DistributionSpec(
        kind="pipeline",
        processes_per_host=options.read(row.row("processes_per_host")),
        parameters=_parameters(inner, "parameters"),
        for_amazons_library=True,
        mpi=options.flag("enabled"),
        mpi_options=options.text("custom_mpi_options"),
    )


def _nested(fields: Checker, name: str, *known: str) -> Checker:
    made = Checker(fields.mapping(name), fields.problems, f"{fields.prefix}{name}.")
    made.unknown(known)
    return made
