"""The welcome of `train` where there is no job: a short card of what to do."""

from __future__ import annotations

import trainshed
from trainshed.machine.hardware import probe


def card() -> str:
    """The card: what this is, and the three next steps."""
    import os
    import sys

    from .report.run_record import installed_versions

    hardware = probe(os.environ)
    python = sys.version.split()[0]
    versions = "".join(
        f" · {name} {version}" for name, version in installed_versions().items() if name in ("torch", "transformers")
    )
    gpus = f"{hardware.gpus} GPU(s)" if hardware.gpus else "no GPU"
    return f"""\
trainshed {trainshed.__version__} · Python {python}{versions} · {hardware.cpus} CPU(s), {gpus}

This image trains what is mounted at /opt/ml:
  /opt/ml/code/train.py                            your script (and requirements.txt)
  /opt/ml/input/config/hyperparameters.json        {{"sagemaker_program": "train.py", "epochs": "3"}}
  /opt/ml/input/data/<channel>/                    your data; the model goes to /opt/ml/model

  docker run -v $PWD/job:/opt/ml IMAGE train             run the job in ./job
  docker run -v $PWD/job:/opt/ml IMAGE train --dry-run   show what would be run
  docker run IMAGE trainshed doctor                      check this image"""
