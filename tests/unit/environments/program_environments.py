"""Environments in another program, for `test_program`."""

import sys
from typing import ClassVar

from mindgspo.environments import ProgramEnvironment


class Counting(ProgramEnvironment):
    command = (sys.executable, "counting_program.py")
    settings: ClassVar = {"turns": 3}


class Newer(Counting):
    settings: ClassVar = {"protocol": 2}


class Toolless(Counting):
    settings: ClassVar = {"says": {"tools": ["add"]}}


class Refusing(Counting):
    settings: ClassVar = {"says": {"error": "no level 7"}}


class Dying(ProgramEnvironment):
    command = (sys.executable, "-c", "raise SystemExit('no package games')")


class Missing(ProgramEnvironment):
    command = ("/nowhere/games",)


class Unnamed(ProgramEnvironment):
    pass
