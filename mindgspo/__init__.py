"""GSPO post-training of language models on MindSpore. The names below are those of docs/python.md; each of them imports
what it needs when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mindgspo.api import Run, generate, score, train

__all__ = ["Run", "generate", "score", "train"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'mindgspo' has no attribute {name!r}")
    from mindgspo import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
