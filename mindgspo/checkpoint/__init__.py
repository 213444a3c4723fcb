"""Crash-safe checkpoints, the Hugging Face export, conversions of weights, and the run folder that holds them."""

from mindgspo.checkpoint.convert import Conversion, Converted, convert_weights
from mindgspo.checkpoint.export import export_huggingface
from mindgspo.checkpoint.origin import Origin
from mindgspo.checkpoint.rollback import roll_back
from mindgspo.checkpoint.run_folder import RunFolder, RunStatus, open_run_folder
from mindgspo.checkpoint.store import (
    Checkpoint,
    Keep,
    OpenCheckpoint,
    load_checkpoint,
    newest_checkpoint,
    open_checkpoint,
    save_checkpoint,
)

__all__ = [
    "Checkpoint",
    "Conversion",
    "Converted",
    "Keep",
    "OpenCheckpoint",
    "Origin",
    "RunFolder",
    "RunStatus",
    "convert_weights",
    "export_huggingface",
    "load_checkpoint",
    "newest_checkpoint",
    "open_checkpoint",
    "open_run_folder",
    "roll_back",
    "save_checkpoint",
]
