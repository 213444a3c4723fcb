"""Whether a machine can run an experiment, what is wrong with it and the one thing to do about each; and the folder to
send to somebody who can help. Imports no MindSpore: it must answer where that does not load.

    this_machine() -> examine(machine, needs) -> problems -> report_lines, write_bundle
"""
