"""Rows of files or of the generated task -> prepared data sets -> prompts in a resumable order; batches.

MindSpore is imported only when a MindRecord file is written or read.
"""

from mindgspo.data.dataset import PromptDataset, inspect_dataset, open_dataset
from mindgspo.data.dataset_info import DatasetInfo
from mindgspo.data.prepare import prepare_dataset
from mindgspo.data.stream import PromptStream, StreamState

__all__ = [
    "DatasetInfo",
    "PromptDataset",
    "PromptStream",
    "StreamState",
    "inspect_dataset",
    "open_dataset",
    "prepare_dataset",
]
