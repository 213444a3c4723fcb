"""Crash-safe checkpoints, the Hugging Face export, and the run folder that holds them."""

from mindgspo.checkpoint.export import export_huggingface
from mindgspo.checkpoint.run_folder import RunFolder, RunStatus, open_run_folder
from mindgspo.checkpoint.store import Checkpoint, load_checkpoint, newest_checkpoint, save_checkpoint

__all__ = [
    "Checkpoint",
    "RunFolder",
    "RunStatus",
    "export_huggingface",
    "load_checkpoint",
    "newest_checkpoint",
    "open_run_folder",
    "save_checkpoint",
]
