"""What the operators of an emulated card compute; importing this enters them into the table."""

from mindgspo.ascend.emulator.operators import (  # noqa: F401
    attention,
    creation,
    elementwise,
    graph_engine,
    indexing,
    matrix,
    normalization,
    reduction,
)
