"""A real Slurm cluster of two nodes on this machine: a slurmd in each of two namespaces, slurmctld on the first node.

A node has a network of its own (one cable joins the two: a bridge would be subject to this machine's firewall), a name of
its own, and folders of its own for the daemons. Everything lies below one folder and is gone when the cluster is closed.
Needs root, iproute2, and Debian's slurmctld, slurmd, slurm-client and munge.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from pathlib import Path

from support.free_ports import free_ports

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "ip", "unshare", "nsenter")
LIMIT = 300.0  # seconds; a hang must not hang the tests


def missing() -> str:
    """Why there can be no cluster here, "" where there can."""
    if os.geteuid() != 0:
        return "a Slurm cluster in namespaces needs root"
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    absent = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


class Cluster:
    """Two nodes, `<name>1` and `<name>2`, in the partitions `normal` and, whose jobs preempt those, `urgent`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tag = f"ts{secrets.token_hex(3)}"  # of namespaces and devices, whose names may have 15 letters
        self.nodes = ("node1", "node2")
        self.net = f"10.{90 + secrets.randbelow(100)}.{secrets.randbelow(250)}"
        self.enter = ("nsenter", f"--net=/run/netns/{self.tag}1")  # what a command of a user starts with
        self.daemons: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **os.environ,
            "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
            "SLURM_CONF": f"{folder}/slurm.conf",
        }
        for name in list(self.environment):
            if name.startswith("SLURM_") and name != "SLURM_CONF":
                del self.environment[name]
        try:
            self._network()
            self._munge()
            self._write_configuration()
            self._slurm()
        except BaseException:
            self.close()
            raise

    def run(self, *command: str) -> str:
        """What a command prints that knows this cluster."""
        done = subprocess.run([*self.enter, *command], env=self.environment, capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def clear(self) -> None:
        """Ends all jobs, and waits until the nodes are free."""
        self.run("scancel", "--full", "--signal=KILL", "--user=root")
        self.run("scancel", "--user=root")
        self._until(lambda: not self.run("squeue", "--noheader").strip(), "jobs do not end")
        self._until(lambda: self._states() == ["idle", "idle"], "both nodes are not idle")

    def close(self) -> None:
        """Ends the jobs and daemons, and removes the network."""
        for process in reversed(self.daemons):
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._end_what_is_left()
        for number in (1, 2):
            subprocess.run(["ip", "netns", "del", f"{self.tag}{number}"], capture_output=True, check=False)

    # --- making it ---

    def _ip(self, *arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    def _network(self) -> None:
        first, second = f"{self.tag}1", f"{self.tag}2"
        for space in (first, second):
            self._ip("netns", "add", space)
        self._ip("link", "add", "eth0", "netns", first, "type", "veth", "peer", "name", "eth0", "netns", second)
        for number, space in enumerate((first, second), 1):
            self._ip("-n", space, "addr", "add", f"{self.net}.{number}/24", "dev", "eth0")
            self._ip("-n", space, "link", "set", "lo", "up")
            self._ip("-n", space, "link", "set", "eth0", "up")

    def _munge(self) -> None:
        """A munge of our own: its key, socket and log are ours, and it runs as whoever we are."""
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        self._start(
            "munged",
            "--foreground",
            "--force",  # it does not like folders that others may write to, above ours
            f"--key-file={key}",
            f"--socket={self.folder}/munge.socket",
            f"--pid-file={self.folder}/munged.pid",
            f"--log-file={self.folder}/munged.log",
            f"--seed-file={self.folder}/munged.seed",
        )
        self._until(lambda: (self.folder / "munge.socket").exists(), "munged")

    def _write_configuration(self) -> None:
        port = free_ports(2)
        (self.folder / "state").mkdir()
        for node in self.nodes:
            (self.folder / node).mkdir()
        hosts = "".join(f"{self.net}.{number} {node}\n" for number, node in enumerate(self.nodes, 1))
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
        cpus = os.cpu_count() or 1
        lines = [
            "ClusterName=test",
            f"SlurmctldHost=node1({self.net}.1)",
            f"SlurmctldPort={port}",
            f"SlurmdPort={port + 1}",
            "SlurmUser=root",
            "AuthType=auth/munge",
            # A job that is queued again waits for as long as its old credentials hold: two minutes by default.
            f"AuthInfo=socket={self.folder}/munge.socket,cred_expire=5",
            f"StateSaveLocation={self.folder}/state",
            f"SlurmctldPidFile={self.folder}/slurmctld.pid",
            f"SlurmctldLogFile={self.folder}/slurmctld.log",
            f"SlurmdPidFile={self.folder}/%n/slurmd.pid",
            f"SlurmdLogFile={self.folder}/%n/slurmd.log",
            f"SlurmdSpoolDir={self.folder}/%n/spool",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "MpiDefault=none",
            "SelectType=select/linear",
            "SchedulerType=sched/builtin",
            "SchedulerParameters=sched_interval=1",
            "PreemptType=preempt/partition_prio",
            "PreemptMode=REQUEUE",
            "ReturnToService=2",
            "SlurmdTimeout=20",
            "KillWait=30",
            "PrologFlags=NoHold",
            *(
                f"NodeName={n} NodeAddr={self.net}.{i} CPUs={cpus} CoresPerSocket={cpus} State=UNKNOWN"
                for i, n in enumerate(self.nodes, 1)
            ),
            "PartitionName=normal Nodes=ALL Default=YES State=UP PriorityTier=1 GraceTime=30",
            "PartitionName=urgent Nodes=ALL State=UP PriorityTier=9 PreemptMode=OFF",
        ]
        (self.folder / "slurm.conf").write_text("\n".join(lines) + "\n")

    def _slurm(self) -> None:
        configuration = ("-f", f"{self.folder}/slurm.conf")
        self._start(*self._inside(1), "slurmctld", "-D", *configuration)
        for number, node in enumerate(self.nodes, 1):
            self._start(*self._inside(number), "slurmd", "-D", "-N", node, *configuration)
        self._until(lambda: self._states() == ["idle", "idle"], "both nodes are not idle")

    def _inside(self, number: int) -> tuple[str, ...]:
        """What runs a command as on a node. Not `ip netns exec`: its /sys has no control groups, which slurmd looks for."""
        setup = f'hostname node{number} && mount --bind "{self.folder}/hosts" /etc/hosts && exec "$@"'
        space = ("nsenter", f"--net=/run/netns/{self.tag}{number}", "unshare", "--uts", "--mount")
        return (*space, "sh", "-c", setup, "sh")

    def _states(self) -> list[str]:
        command = [*self.enter, "sinfo", "-h", "-N", "-p", "normal", "-o", "%t"]
        done = subprocess.run(command, env=self.environment, capture_output=True)
        return done.stdout.decode().split()

    def _start(self, *command: str) -> None:
        with open(self.folder / f"{len(self.daemons)}.out", "wb") as out:
            self.daemons.append(
                subprocess.Popen(
                    command,
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _until(self, condition: object, what: str) -> None:
        end = time.monotonic() + LIMIT
        while not condition():  # type: ignore[operator]
            ended = [process.args for process in self.daemons if process.poll() is not None]
            assert not ended and time.monotonic() < end, f"{what}; ended: {ended}\n{self.logs()}"
            time.sleep(0.1)

    def logs(self) -> str:
        """The last lines of all daemons."""
        files = [
            *sorted(self.folder.glob("*.log")),
            *sorted(self.folder.glob("*/slurmd.log")),
            *sorted(self.folder.glob("*.out")),
        ]
        return "\n".join(f"--- {path.name}\n" + path.read_text(errors="replace")[-2000:] for path in files)

    def _end_what_is_left(self) -> None:
        """Kills whatever still lives in the nodes' namespaces or speaks of this cluster."""
        mark = f"SLURM_CONF={self.folder}/slurm.conf".encode()
        end = time.monotonic() + 10
        while time.monotonic() < end:
            left = []
            for name in filter(str.isdigit, os.listdir("/proc")):
                try:
                    if int(name) != os.getpid() and mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                        left.append(int(name))
                except OSError:
                    continue
            if not left:
                return
            for pid in left:
                try:
                    os.kill(pid, 9)
                except OSError:
                    pass
            time.sleep(0.05)


if __name__ == "__main__":  # a cluster to play with: prints what to export, until Enter is pressed
    import tempfile

    with tempfile.TemporaryDirectory(prefix="slurm") as name:
        made = Cluster(Path(name))
        print(f"export SLURM_CONF={name}/slurm.conf", file=sys.stderr, flush=True)
        try:
            input()
        finally:
            made.close()
