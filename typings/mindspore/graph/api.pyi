from typing import Any

from mindspore import Tensor, nn

class _CellGraphExecutor:
    def __call__(self, cell: nn.Cell, *inputs: Tensor, phase: str) -> Any: ...
    def _get_func_graph(self, cell: nn.Cell, phase: str) -> object: ...

_cell_graph_executor: _CellGraphExecutor
