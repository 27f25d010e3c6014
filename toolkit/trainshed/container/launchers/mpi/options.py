"""mpirun's command line and variables.

The user's options go on the command line, ours into variables: Open MPI itself then lets the user's win, parameter by
parameter, without our knowing what each of them means. Variables that the image or the user sets win over ours, too.
"""

from __future__ import annotations

import os

from trainshed.base.errors import LaunchError, shorten
from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.contract.cluster import Cluster
    from trainshed.contract.hyperparameters import Hyperparameters

    from ..launch import Launch

# The first that is set counts; the second comes with Amazon's data-parallel library, whose jobs may ask for MPI.
OPTION_NAMES = ("sagemaker_mpi_custom_mpi_options", "sagemaker_distributed_dataparallel_custom_mpi_options")
_COUNT = ("-np", "--np", "-n", "--n", "-c")
# Open MPI 4.1 and 5 each read their own and leave the other's alone.
_DEFAULTS = {
    # Hosts are reached through us, never through ssh or a scheduler's own launcher.
    "OMPI_MCA_plm": "rsh",
    "PRTE_MCA_plm": "ssh",
    "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
    "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
    "OMPI_MCA_ras": "^slurm,tm,lsf,gridengine,loadleveler",
    "PRTE_MCA_ras": "^slurm,pbs,lsf,gridengine,flux",
    # Each host's daemon gets its variables from that host's `train`.
    "OMPI_MCA_plm_rsh_pass_environ_mca_params": "0",
    "PRTE_MCA_plm_ssh_pass_environ_mca_params": "0",
    # Hosts keep the job's names for them, which need not be their own and need not resolve.
    "OMPI_MCA_orte_keep_fqdn_hostnames": "1",
    "PRTE_MCA_prte_keep_fqdn_hostnames": "1",
    "OMPI_MCA_if_base_do_not_resolve": "1",
    "PRTE_MCA_prte_do_not_resolve": "1",
    # Ranks have threads and data-loader workers of their own: one core each would be too few.
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_rmaps_base_mapping_policy": "slot",
    "PRTE_MCA_rmaps_default_mapping_policy": "slot",
    # Copies between processes through the kernel need a right that containers do not have.
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "OMPI_MCA_btl": "^openib",  # warns on every start where there is no such network
}
_ROOT = {f"{family}_ALLOW_RUN_AS_ROOT{suffix}": "1" for family in ("OMPI", "PRTE") for suffix in ("", "_CONFIRM")}


class MpirunOptions(Record):
    """The user's options of mpirun.

    arguments: for its command line.
    variables: for the ranks' environment (`-x NAME=value`, `--NCCL_DEBUG`).
    count: ranks in all, "" for every slot.
    """

    arguments: tuple[str, ...] = ()
    variables: dict[str, str] = {}  # noqa: RUF012 (records are frozen; nobody writes into a default)
    count: str = ""
    notes: tuple[str, ...] = ()

    def mention(self, parameter: str) -> bool:
        """Returns whether the user sets an MCA parameter."""
        return parameter in self.arguments


def read(hyperparameters: Hyperparameters) -> MpirunOptions:
    """The user's options, split as a shell would.

    Raises:
        LaunchError: they are no text, or a quote is open.
    """
    name = next((name for name in OPTION_NAMES if hyperparameters.get(name)), OPTION_NAMES[0])
    text = hyperparameters.get(name) or ""
    if not isinstance(text, str):
        raise LaunchError(f"{name} = {shorten(str(text))} must be a string of mpirun options")
    import shlex  # slow to load, and only MPI jobs need it

    try:
        words = shlex.split(text)
    except ValueError as error:
        raise LaunchError(
            f"{name} = {shorten(text)!r} cannot be split into words: {str(error).lower()}",
            hint="write it as you would in a shell, every quote closed",
        ) from error
    arguments: list[str] = []
    variables: dict[str, str] = {}
    words.reverse()
    while words:
        word = words.pop()
        option, given, value = word.partition("=")
        if word in ("-x", "--x") and words and "=" in words[-1]:
            # The value stays off command lines, which anybody may read.
            key, _, variables[key] = words.pop().partition("=")
        elif option in ("--NCCL_DEBUG", "-NCCL_DEBUG") and (given or words):  # sagemaker-training's own
            variables["NCCL_DEBUG"] = value if given else words.pop()
        else:
            arguments.append(word)
    count = hyperparameters.get("sagemaker_mpi_num_processes")
    if count in (None, "") or any(word in _COUNT for word in arguments):
        return MpirunOptions(arguments=tuple(arguments), variables=variables)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise LaunchError(f"sagemaker_mpi_num_processes = {shorten(str(count))} must be a whole number of at least 1")
    return MpirunOptions(arguments=tuple(arguments), variables=variables, count=str(count))


def command_line(cluster: Cluster, chosen: MpirunOptions) -> tuple[str, ...]:
    """mpirun's options: hosts with their slots, then the user's. Without a count there is a rank for every slot."""
    slots = cluster.processes_per_host
    several = len(cluster.hosts) > 1
    hosts = ",".join(f"{host}:{slots}" for host in cluster.hosts) if several else f"localhost:{slots}"
    count = ("-np", chosen.count) if chosen.count else ()
    # Attached, the daemons stay children of `train`, which sees how they end and what they say.
    return ("--leave-session-attached", "--host", hosts, *count, *chosen.arguments)


def defaults(launch: Launch, chosen: MpirunOptions, agent: tuple[str, ...]) -> dict[str, str]:
    """Variables for mpirun and the daemons of this host, over which all others win."""
    command = " ".join(agent)
    return {
        **_DEFAULTS,
        **(_ROOT if os.geteuid() == 0 else {}),
        **_network(launch, chosen),
        "OMPI_MCA_plm_rsh_agent": command,
        "PRTE_MCA_plm_ssh_agent": command,
    }


def of_this_host(launch: Launch, chosen: MpirunOptions) -> dict[str, str]:
    """Variables of a rank that depend on its host; interfaces need not have the same name everywhere."""
    cluster = launch.cluster
    return {
        **_network(launch, chosen),
        "GROUP_RANK": str(cluster.rank),
        "GROUP_WORLD_SIZE": str(len(cluster.hosts)),
    }


def _network(launch: Launch, chosen: MpirunOptions) -> dict[str, str]:
    """The interface that leads to the other hosts, for Open MPI's two kinds of traffic, where nobody chose another."""
    interface = launch.cluster.interface
    found: dict[str, str] = {}
    for parameter, family in (("btl_tcp_if", "OMPI"), ("oob_tcp_if", "OMPI"), ("prte_if", "PRTE")):
        names = (f"{parameter}_include", f"{parameter}_exclude")
        taken = any(chosen.mention(name) or f"{family}_MCA_{name}" in launch.environment for name in names)
        # Open MPI 5 talks over loopback only where there is nothing else, and refuses to be told so.
        if interface and not taken and not (interface == "lo" and family == "PRTE"):
            found[f"{family}_MCA_{names[0]}"] = interface
    return found


def common(launch: Launch) -> dict[str, str]:
    """The variables that every rank gets beside Open MPI's own variables; the user's values win."""
    threads = max(1, launch.cluster.hardware.cpus // launch.cluster.processes_per_host)
    home = os.path.expanduser("~")
    return {
        "OMP_NUM_THREADS": str(threads),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "HOME": home if os.path.isabs(home) else "/",  # without it Open MPI 5 does not start
    }


def torch_rank(of_open_mpi: dict[str, str]) -> dict[str, str]:
    """torch.distributed's names for a rank's numbers, from Open MPI's; {} where Open MPI did not set them."""
    names = {
        "RANK": "OMPI_COMM_WORLD_RANK",
        "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
        "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
        "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
    }
    if not all(of_open_mpi.get(name, "").isdigit() for name in names.values()):
        return {}
    return {ours: of_open_mpi[theirs] for ours, theirs in names.items()}
