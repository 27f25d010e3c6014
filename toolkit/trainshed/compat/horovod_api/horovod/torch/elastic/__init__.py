"""`hvd.elastic` for jobs whose ranks are those that they start with: one round, whose commits survive restarts of the job.

Nobody comes or goes while the ranks run, so no callback of `register_reset_callbacks` is called then. When `train` starts
all ranks again (docs/restarts.md), `run` goes on from the last commit; callbacks are called if the job then has more or
fewer ranks.
"""

from .run import run
from .sampler import ElasticSampler
from .state import ObjectState, State, TorchState

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]
