"""The folder of the environments, as worker processes have it on their path."""

import sys

from running import PROJECT

sys.path.insert(0, str(PROJECT / "examples" / "environments"))
