"""`python -m pydflash`: the command line."""

import sys

from pydflash.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
