from collections.abc import Sequence

from mindspore import Tensor, Type
from mindspore.mint import distributed as distributed

def empty(size: Sequence[int], *, dtype: Type | None = None) -> Tensor: ...
def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]: ...
