"""`python -m trainshed.parallel.plan`."""

import sys

from .command import main

sys.exit(main())
