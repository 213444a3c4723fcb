from collections.abc import Sequence

from mindspore import Tensor, Type

def initializer(init: str, shape: Sequence[int], dtype: Type) -> Tensor: ...
