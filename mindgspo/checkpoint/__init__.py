"""Crash-safe checkpoints, the Hugging Face export, conversions of weights, and the run folder that holds them."""

from mindgspo.checkpoint.convert import Conversion, Converted, convert_weights
from mindgspo.checkpoint.export import export_huggingface
from mindgspo.checkpoint.going_back import go_back
from mindgspo.checkpoint.opened import OpenCheckpoint, open_checkpoint
from mindgspo.checkpoint.origin import Origin
from mindgspo.checkpoint.retention import Keep
from mindgspo.checkpoint.run_folder import RunFolder, RunStatus, open_run_folder
from mindgspo.checkpoint.steps import newest_checkpoint
from mindgspo.checkpoint.store import Checkpoint, load_checkpoint, save_checkpoint

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
    "go_back",
    "load_checkpoint",
    "newest_checkpoint",
    "open_checkpoint",
    "open_run_folder",
    "save_checkpoint",
]
