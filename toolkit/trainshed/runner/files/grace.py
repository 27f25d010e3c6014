"""How long a stopped host has, beyond the script's own grace (`Job.grace_seconds`), before something kills it.

Within the grace `train` lets the script end; then it kills what remains, decides why, and writes its report. Each party that
may kill a host waits until the one before it has had its time.
"""

from __future__ import annotations

# For `train` to end what remains and to report: with the default grace of 110 s, the platform's 120 s. Container engines
# kill at the end of it.
REPORT_SECONDS = 10.0
# The runner kills only what the engine has left.
KILL_SECONDS = REPORT_SECONDS + 2.0
# Hosts on several machines agree over the network on who failed before they report.
CLUSTER_REPORT_SECONDS = 2 * REPORT_SECONDS
