"""`python -m capwise` is the same command."""

import sys

from capwise.cli import main

if __name__ == "__main__":
    sys.exit(main())
