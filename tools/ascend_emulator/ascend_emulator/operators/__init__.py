"""What the operators of an emulated card compute; importing this enters them into the table."""

from ascend_emulator.operators import (  # noqa: F401
    attention,
    cache,
    creation,
    elementwise,
    graph_engine,
    graph_movement,
    grouped_matrix,
    indexing,
    matrix,
    movement,
    normalization,
    reduction,
    rotary,
)
