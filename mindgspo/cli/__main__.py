"""`python -m mindgspo.cli`: what a worker process is started with."""

import sys

from mindgspo.cli import main

if __name__ == "__main__":
    sys.exit(main())
