"""How `trainshed plan` asks the script to be planned."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

from trainshed.contract.wire.variables import PLAN_HOW

from .host_links import Hosts, link_of


@dataclass(frozen=True)
class How:
    """The options beside the settings of a job.

    count: whether operations are counted instead of timed.
    ranks: to choose stages, tensor ranks and replicas for; 0 where the settings say them.
    gbits: Gbit/s between ranks; between those of several hosts, where `ranks_per_host` is given.
    gbits_host: Gbit/s between ranks of one host; 0 for `gbits`.
    ranks_per_host: 0 where nobody has told.
    slower: how many times longer the devices take than a counted device of 10 TFLOP/s, or than this machine.
    crowd: how many times longer work takes where all ranks of a host work than where one does, for they share its cores.
    latency, latency_host: seconds of a message, between hosts and within one; 0 for those of gloo within a host.
    device: kind of the ranks' devices; "" for that of this process.
    emit: file of plain torch to write as well; "" for none.
    limit_mib: memory of a rank, where a job asks for its own degrees; 0 where the settings say it.
    """

    count: bool = False
    ranks: int = 0
    gbits: float = 16.0
    gbits_host: float = 0.0
    ranks_per_host: int = 0
    slower: float = 1.0
    crowd: float = 1.0
    latency: float = 0.0
    latency_host: float = 0.0
    limit_mib: int = 0
    device: str = ""
    emit: str = ""

    def hosts(self) -> Hosts:
        """Who shares a host, and how ranks talk."""
        sums_all = self.device == "cpu"
        inside = link_of(self.gbits_host or self.gbits, self.latency_host or self.latency, sums_all=sums_all)
        return Hosts(self.ranks_per_host, inside, link_of(self.gbits, self.latency, sums_all=sums_all), self.crowd)

    def text(self) -> str:
        """For the variable that the script's process reads."""
        return json.dumps(asdict(self))


def how_asked() -> How:
    """Reads what this process was asked for."""
    return How(**json.loads(os.environ.get(PLAN_HOW) or "{}"))
