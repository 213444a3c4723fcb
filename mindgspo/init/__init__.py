"""`mindgspo init`: from a model folder and a file of questions to an experiment that fits the machine.

Public: `write_experiment`. Without MindSpore; nothing of the user's files is executed.
"""

from mindgspo.init.command import SetupRequest, write_experiment

__all__ = ["SetupRequest", "write_experiment"]
