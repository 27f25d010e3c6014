"""`train --dry-run`: the first four steps, printed."""

from __future__ import annotations

import os

from trainshed.base.secrets import is_secret_name, mask_text
from trainshed.contract.distributions import traits_of
from trainshed.contract.wire.secret_names import environment_secrets

from .hangs.hang_watch import stops_on_hang
from .launchers import launcher_of
from .launchers.binding import format_list
from .launchers.network_settings import explained, network_settings
from .launchers.rank_environment import interface_variables
from .report.run_record import shown_arguments

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.contract.cluster import Cluster
    from trainshed.contract.job import TrainingJob

    from .planning import Planned
    from .supervisor.launch_plan import LaunchPlan


def describe(planned: Planned) -> str:
    """Describes what would be run, for a person; secrets masked."""
    import shlex

    job, cluster, program, plan = planned.job, planned.cluster, planned.program, planned.plan
    first = plan.rank or (*plan.processes, *reversed(plan.later))[0]
    rows = [
        ("job", job.name or "(no name)"),
        ("base", job.paths.base),
        ("program", f"{program.name} ({program.kind}) in {program.folder}"),
        ("install", f"{program.requirements or 'nothing'}" + (" and the package" if program.installs else "")),
        ("hosts", f"{', '.join(cluster.hosts)} (this is {cluster.current_host}, node rank {cluster.rank})"),
        ("scheduler", f"{cluster.scheduler}: {cluster.evidence}"),
        (
            "hardware",
            f"{cluster.hardware.cpus} CPUs, {cluster.hardware.gpus} GPUs, {cluster.hardware.neurons} Neuron cores",
        ),
        (
            "launcher",
            f"{plan.launcher}, asked for by {job.distribution.asked_by or 'default'}; {_ranks(cluster, plan)}",
        ),
    ]
    if plan.compiler:
        rows.append(("compiler", plan.compiler))
    if traits_of(plan.launcher).has_ranks:
        rows.append(
            (
                "rendezvous",
                f"{cluster.address}:{cluster.port}" + (f" over {cluster.interface}" if cluster.interface else ""),
            )
        )
    for channel in job.channels:
        rows.append(("channel", f"{channel.name}: {channel.input_mode}, {channel.path}, {_size(channel.path)}"))
    for spec in plan.shown:
        name = spec.helper or ("each rank" if spec is plan.rank else "command" if spec.rank is None else f"rank {spec.rank}")
        rows.append((name, shlex.join(shown_arguments(spec.argv, spec.env))))
    bound = [f"rank {spec.rank}: {format_list(spec.cpus)}" for spec in plan.processes if spec.cpus]
    if bound:
        rows.append(("CPUs", "; ".join(bound)))
    network = network_settings(cluster, job.resources.current_instance_type)
    if network.evidence:
        rows.append(("network", network.evidence))
    rows += [("network", line) for line in explained({**network.variables, **interface_variables(cluster)}, first.env)]
    rows += [
        ("directory", first.cwd),
        ("logs", os.path.dirname(first.log)),
        (
            "signals",
            f"SIGTERM, SIGINT, SIGHUP, SIGQUIT go to the script, SIGKILL follows after {plan.grace_seconds:g} s",
        ),
        ("hangs", _hangs(job, plan)),
        ("resume", _resume(job.paths.checkpoints)),
    ]
    rows += [("warning", text) for text in (*job.warnings, *plan.notes)]
    lines = [f"{name:<10} {mask_text(text)}" for name, text in rows]
    shared = {k: v for k, v in first.env.items() if os.environ.get(k) != v}
    for spec in plan.shown:
        shared = {name: value for name, value in shared.items() if spec.env.get(name) == value}
    lines += ["", "environment (what train adds or changes):", *_variables(shared, "  ")]
    for spec in plan.shown:
        own = {k: v for k, v in spec.env.items() if k not in shared and os.environ.get(k) != v}
        if own:
            lines += [f"environment of {spec.helper or f'rank {spec.rank}'}:", *_variables(own, "  ")]
    return "\n".join(lines)


def _variables(values: dict[str, str], indent: str) -> list[str]:
    secrets = environment_secrets(values)
    shown = []
    for name in sorted(values):
        text = "******" if is_secret_name(name) and values[name] else mask_text(values[name], secrets)
        shown.append(f"{indent}{name}={text if len(text) <= 300 else text[:297] + '...'}")
    return shown


def _ranks(cluster: Cluster, plan: LaunchPlan) -> str:
    if plan.rank is not None:
        return f"{cluster.world_size} rank(s) on {len(cluster.hosts)} host(s), as mpirun maps them"
    if described := launcher_of(plan.launcher).describe(cluster, plan):
        return described
    if plan.processes[0].rank is None:
        return f"{len(plan.processes)} process on this host"
    return f"{len(plan.processes)} rank(s) on this host of {cluster.world_size}"


def _hangs(job: TrainingJob, plan: LaunchPlan) -> str:
    seconds = job.settings.hang_seconds
    does = "stopped" if stops_on_hang(job, plan) else "reported, and continues"
    when = f"a job without progress for {seconds:g} s is {does}" if seconds else "not detected"
    answers = "" if job.settings.stacks == "on" else "; without Python stacks (trainshed_stacks = off)"
    return f"{when}; SIGUSR1 reports where all ranks are{answers}"


def _size(path: str) -> str:
    """Number of files and bytes below a path, counting at most 10,000 files."""
    if not os.path.isdir(path):
        return "one file" if os.path.isfile(path) else "missing"
    count = size = 0
    for root, _, names in os.walk(path):
        for name in names:
            try:
                size += os.lstat(f"{root}/{name}").st_size
            except OSError:
                continue
            count += 1
            if count >= 10_000:
                return "more than 10,000 files"
    return f"{count} file(s), {size / 1e6:.1f} MB"


def _resume(folder: str) -> str:
    try:
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError:
        return f"{folder} does not exist: starts from the beginning"
    if not names:
        return f"{folder} is empty: starts from the beginning"
    return f"{folder} holds {len(names)} entries, the script may resume: {', '.join(names[-3:])}"
