"""Environments: tasks of several turns, in which something answers what the policy says.

A user's file needs these names: `from mindgspo.environments import End, Environment, Row, Turn`, or
`ProgramEnvironment` for one in another program. Only the standard library is imported, so that worker processes start
fast.
"""

from mindgspo.environments.program import ProgramEnvironment
from mindgspo.environments.protocol import End, Environment, Message, Row, Turn

__all__ = ["End", "Environment", "Message", "ProgramEnvironment", "Row", "Turn"]
