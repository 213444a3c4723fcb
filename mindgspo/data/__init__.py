"""Data: files or the generated task -> prepared data sets -> prompts in a resumable order. The room's door.

What enters: the `data` section of the configuration and a tokenizer. What leaves: `Prompt`s. Called by the
trainer and the command line. MindSpore is imported only when a MindRecord file is written or read.
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
