"""A parameter server of TensorFlow, for scripts that do not serve in that role themselves: a program of its own."""

from __future__ import annotations

import json
import os
import sys


def serve() -> None:
    """Serves variables as TF_CONFIG says, until this process is ended."""
    try:
        import tensorflow
    except ImportError as error:
        sys.exit(
            f"TensorFlow's parameter server cannot be started: {error}; trainshed_servers = script runs the script instead"
        )
    told = json.loads(os.environ["TF_CONFIG"])
    server = tensorflow.distribute.Server(
        tensorflow.train.ClusterSpec(told["cluster"]), job_name=told["task"]["type"], task_index=told["task"]["index"]
    )
    server.join()


if __name__ == "__main__":
    serve()
