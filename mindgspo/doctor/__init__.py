"""Whether a machine can run an experiment, what is wrong with it and the one thing to do about each; and the folder to
send to somebody who can help. Imports no MindSpore: it must answer where that does not load.

    this_machine() -> examine(machine, needs) -> findings -> report, bundle
"""

from mindgspo.doctor.bundle import report_lines, write_bundle
from mindgspo.doctor.examine import examine, facts, needs_of
from mindgspo.doctor.findings import Finding, Level, Needs
from mindgspo.doctor.machine import Machine, this_machine

__all__ = ["Finding", "Level", "Machine", "Needs", "examine", "facts", "needs_of", "report_lines", "this_machine",
           "write_bundle"]  # fmt: skip
