from typing import Any

from mindspore import Tensor
from mindspore.ops import Primitive

class FlashAttentionScore(Primitive):
    def __init__(self, head_num: int, *, scale_value: float, input_layout: str, sparse_mode: int) -> None: ...
    def __call__(self, *inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
