"""Emulated Ascend cards: MindSpore's Ascend backend runs, and everything below it is this package.

    native/      C++: memory, streams, capture of operator arguments, HCCL between processes, MindSpore's own kernels
    launcher     puts a process on a card and runs what is launched
    contract     what CANN's documentation allows an operator to be given
    operators/   what the operators compute, in numpy or through `mindgspo_kernels`
    signatures.txt  the prototypes of CANN's operators: only these exist, as on a card

Device memory is host memory, every launch is synchronous, results are rounded to the output's dtype.
"""
