"""Hosts that are network namespaces, each with one link to a bridge, which can be slowed down, cut and mended.

Tests make them; their ranks (`link_workers`) enter them and change the links while they train.
"""

from __future__ import annotations

import ctypes
import os
import subprocess

_NETWORK = 0x40000000  # CLONE_NEWNET


class LinkedHosts:
    """So many hosts of this machine.

    Args:
        name: of the namespaces, short.
        addresses: the first three numbers of their addresses.
    """

    def __init__(self, name: str, count: int, addresses: str = "10.79.0") -> None:
        self.bridge, self.spaces = f"{name}-bridge", [f"{name}-{number}" for number in range(count)]
        self.first = f"{addresses}.1"
        self._addresses = addresses

    def make(self) -> None:
        """Makes them."""
        run("ip", "netns", "add", self.bridge)
        run("ip", "-n", self.bridge, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", self.bridge, "link", "set", "br0", "up")
        for number, space in enumerate(self.spaces):
            run("ip", "netns", "add", space)
            peer = ("type", "veth", "peer", "name", f"p{number}", "netns", self.bridge)
            run("ip", "link", "add", "link0", "netns", space, *peer)
            run("ip", "-n", self.bridge, "link", "set", f"p{number}", "master", "br0", "up")
            run("ip", "-n", space, "addr", "add", f"{self._addresses}.{number + 1}/24", "dev", "link0")
            for device in ("link0", "lo"):
                run("ip", "-n", space, "link", "set", device, "up")

    def remove(self) -> None:
        """Removes them, as far as they are there."""
        for space in (*self.spaces, self.bridge):
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)

    def limit(self, megabits: int) -> None:
        """Limits what each host sends and receives; 0: not any more."""
        for number, space in enumerate(self.spaces):
            for where, device in ((space, "link0"), (self.bridge, f"p{number}")):
                tc = ("tc", "-n", where, "qdisc")
                if megabits:
                    rate = ("tbf", "rate", f"{megabits}mbit", "burst", "64kb", "latency", "400ms")
                    run(*tc, "replace", "dev", device, "root", *rate)
                else:
                    run(*tc, "del", "dev", device, "root")

    def cut(self, host: int) -> None:
        """Nothing passes the link of a host any more."""
        run("ip", "-n", self.bridge, "link", "set", f"p{host}", "down")

    def mend(self, host: int) -> None:
        """It does again."""
        run("ip", "-n", self.bridge, "link", "set", f"p{host}", "up")

    def enter(self, rank: int, each: int) -> None:
        """This process becomes a rank on its host: before its first thread."""
        host = rank // each
        with open(f"/run/netns/{self.spaces[host]}") as space:
            if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), _NETWORK):
                raise OSError(ctypes.get_errno(), f"cannot enter {self.spaces[host]}")
        os.environ |= {"MASTER_ADDR": self.first, "GLOO_SOCKET_IFNAME": "link0", "GROUP_RANK": str(host)}


def run(*words: str) -> None:
    """Runs a command; AssertionError with its words where it fails."""
    finished = subprocess.run(words, capture_output=True, text=True, check=False)
    assert not finished.returncode, f"{' '.join(words)}: {finished.stderr.strip()}"
