"""Conformance with other suites: files of cases made by their own functions, and how far our losses are from them.

MindSpore is imported only when cells are asked.

    cases       file -> checked cases (strict, definitions, advantages: their configurations)
    compare     tolerances, and the numpy twins in float64
    cells       MindSpore cells in float32 (graphs)
    run         the command and its report
"""
