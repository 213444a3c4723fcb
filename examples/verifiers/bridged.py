"""Environments of the package verifiers as mindgspo's, by the bridge in this folder.

MINDGSPO_VERIFIERS_PYTHON names the Python that has verifiers: python3 -m venv /opt/verifiers, then
/opt/verifiers/bin/pip install verifiers==0.4.0
"""

import os

from mindgspo.environments import ProgramEnvironment

SERVE = (os.environ.get("MINDGSPO_VERIFIERS_PYTHON", "python3"), "verifiers_bridge.py", "serve")


class Guessing(ProgramEnvironment):
    command = (*SERVE, "guessing", "--args", '{"rows": "../environments/data/guess_train.jsonl"}')


class Products(ProgramEnvironment):
    command = (*SERVE, "products")


class ReversedText(ProgramEnvironment):
    command = (*SERVE, "reversed_text")
