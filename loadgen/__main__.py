"""`python -m loadgen`."""

import sys

from loadgen.cli.main import main

if __name__ == "__main__":  # worker processes may import this module again
    sys.exit(main())
