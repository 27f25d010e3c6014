from .runner.api import JobFailed as JobFailed
from .runner.api import Training as Training
from .runner.api import find as find
from .runner.api import make_job as make_job
from .runner.api import predict as predict
from .runner.api import run as run
from .runner.api import runs as runs

__version__: str
