"""Checks whether a machine can run an experiment, lists each problem with one fix, and collects a folder to send to a
helper. Does not import MindSpore, because it must work where MindSpore does not load.

    this_machine() -> examine(machine, needs) -> problems -> report_lines, write_bundle
"""
