"""What stands in for CANN on a machine without an Ascend: the dry run and emulated cards.

toolchain        real CANN, or stand-ins for its libraries (stand_ins, symbols, wheel, python_packages)
dryrun/          compiles any rank's graph with MindSpore's Ascend front end, and measures its memory
emulator/        executes MindSpore's Ascend backend: device memory is host memory, operators follow CANN's
                 documentation
"""
