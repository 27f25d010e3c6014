"""EC2 spot: the interruption notice (two minutes) and the rebalance recommendation (earlier, if at all).

Source: EC2 User Guide, "Spot Instance interruption notices", "EC2 instance rebalance recommendations", IMDSv2.
"""

from __future__ import annotations

import calendar
import json
import time

from .http import Reply, ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_DATA = "/latest/meta-data"


class Ec2:
    """Asks every five seconds, as the guide advises; only once on a machine that is not a spot instance."""

    seconds = 5.0

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._endpoint = environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or "http://169.254.169.254"
        self._token = ""
        self._spot: bool | None = None
        self._rebalanced = False

    @property
    def nothing_to_watch(self) -> bool:
        """Tells whether this machine is known not to be a spot instance."""
        return self._spot is False

    def poll(self, now: float) -> list[tuple[str, str, bool, float | None]]:
        """Returns announcements: (source, reason, stop, deadline). Raises OSError or ValueError without a usable service."""
        if self._spot is None:
            life_cycle = self._get("/instance-life-cycle")
            self._spot = life_cycle is None or life_cycle.strip() == "spot"
            if not self._spot:
                return []
        announcements: list[tuple[str, str, bool, float | None]] = []
        if not self._rebalanced and self._get("/events/recommendations/rebalance") is not None:
            self._rebalanced = True
            reason = "EC2 says that this spot instance is at elevated risk (rebalance recommendation)"
            announcements.append(("ec2-rebalance", reason, False, None))
        action = self._get("/spot/instance-action")
        if action is not None:
            notice = json.loads(action)
            deadline = calendar.timegm(time.strptime(notice["time"], "%Y-%m-%dT%H:%M:%SZ"))
            reason = f"EC2 will {notice['action']} this spot instance in {max(0, deadline - now):.0f} s"
            announcements.append(("ec2", reason, True, float(deadline)))
        return announcements

    def _get(self, path: str) -> str | None:
        """A metadata value; None if it does not exist (404)."""
        for _ in range(2):
            if not self._token:
                lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}
                self._token = _good(ask(self._endpoint, "/latest/api/token", lifetime, method="PUT")).body
            reply = ask(self._endpoint, _DATA + path, {"X-aws-ec2-metadata-token": self._token})
            if reply.status == 404:
                return None
            if reply.status != 401:
                return _good(reply).body
            self._token = ""  # it has expired
        raise OSError("the metadata service refuses its own token")


def _good(reply: Reply) -> Reply:
    if reply.status != 200:
        raise OSError(f"the metadata service answers {reply.status}")
    return reply
