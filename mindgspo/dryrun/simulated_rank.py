"""The calls into MindSpore that a simulated rank needs. Called by `child`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mindspore import nn


def join_simulated_cluster() -> None:
    """Be rank RANK_ID of RANK_SIZE; no other process is met. The device is chosen before."""
    from mindspore import communication

    communication.init()


def compiled_text(cell: nn.Cell) -> str:
    """MindSpore's text of the graph that `cell.compile` made last, functions and local shapes included."""
    from mindspore._c_expression import dump_func_graph
    from mindspore.graph.api import _cell_graph_executor

    return dump_func_graph(_cell_graph_executor._get_func_graph(cell, cell.current_phase))
