"""`python -m trainshed`: the same as the command `trainshed`."""

import sys

from trainshed.cli import main

if __name__ == "__main__":
    sys.exit(main())
