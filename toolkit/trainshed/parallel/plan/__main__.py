"""`python -m trainshed.parallel.plan`; with the variables of a plan that a job asks for, only a script and its arguments."""

import os
import signal
import sys

from trainshed.contract.wire.variables import PLAN_ONLY
from trainshed.machine.processes import die_with_parent

from .command import follow, main

if os.environ.get(PLAN_ONLY):
    die_with_parent(signal.SIGKILL)
    sys.exit(follow(sys.argv[1], sys.argv[2:]))
sys.exit(main())
