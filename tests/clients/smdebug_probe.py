"""Run in smdebug's environment: prints, as JSON, every sample that Amazon's own reader finds below a profiler's folder."""

import json
import sys
import time

from smdebug.profiler.system_metrics_reader import LocalSystemMetricsReader

HOUR = 3600
reader = LocalSystemMetricsReader(sys.argv[1])
events = reader.get_events(0, (time.time() + HOUR) * 1e6)
fields = [(one.node_id, one.type, one.name, one.dimension, one.timestamp, one.value) for one in events]
print("EVENTS" + json.dumps(fields))
