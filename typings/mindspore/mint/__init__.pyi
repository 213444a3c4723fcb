from collections.abc import Sequence

from mindspore import Tensor, Type
from mindspore.mint import distributed as distributed

def empty(size: Sequence[int], *, dtype: Type | None = None) -> Tensor: ...
