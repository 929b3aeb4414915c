"""`python -m serving.cli`: the same as `cloudmatrix`."""

import sys

from serving.cli.command_line import main

if __name__ == "__main__":
    sys.exit(main())
