"""The MindRecord file of a prepared data set: the only place that calls MindSpore's writer and reader.

MindSpore is imported inside the functions, so that reading jsonl and parquet needs none of it. The columns
are those of `dataset_info.COLUMNS`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from mindgspo.data.dataset_info import COLUMNS, RECORD_NAME
from mindgspo.types import Prompt

SCHEMA = {
    "index": {"type": "int64"},
    "prompt_ids": {"type": "int32", "shape": [-1]},
    "prompt_text": {"type": "string"},
    "answer": {"type": "string"},
    "data_source": {"type": "string"},
    "solution": {"type": "string"},
    "extra_info": {"type": "string"},
}
assert SCHEMA.keys() == COLUMNS.keys()
# Bytes. MindSpore's own 32 MB pages and 16 MB header make 50 MB of the smallest data set. A row must fit a
# page.
PAGE_SIZE = 4 << 20
HEADER_SIZE = 2 << 20
ROWS_PER_WRITE = 1024


def write_records(prompts: Iterable[Prompt], folder: Path) -> None:
    """Write all prompts into `folder`. The file knows its own name: rename the folder, never the file."""
    from mindspore.mindrecord import FileWriter

    writer = FileWriter(str(folder / RECORD_NAME), shard_num=1)
    writer.set_header_size(HEADER_SIZE)
    writer.set_page_size(PAGE_SIZE)
    writer.add_schema(SCHEMA, "mindgspo prompts")
    chunk: list[dict[str, object]] = []
    for prompt in prompts:
        chunk.append(_to_record(prompt))
        if len(chunk) == ROWS_PER_WRITE:
            writer.write_raw_data(chunk)
            chunk = []
    if chunk:
        writer.write_raw_data(chunk)
    writer.commit()


def read_records(folder: Path) -> Iterator[Prompt]:
    """The prompts in the order in which they were written."""
    from mindspore.dataset import MindDataset

    records = MindDataset(str(folder / RECORD_NAME), columns_list=list(SCHEMA), shuffle=False, num_parallel_workers=1)
    for record in records.create_dict_iterator(num_epochs=1, output_numpy=True):
        ids = np.ascontiguousarray(record["prompt_ids"], dtype=np.int32)
        ids.flags.writeable = False
        yield Prompt(
            index=int(record["index"]),
            ids=ids,
            text=record["prompt_text"].item(),
            answer=record["answer"].item(),
            data_source=record["data_source"].item(),
            solution=record["solution"].item(),
            extra_info=json.loads(record["extra_info"].item()),
        )


def _to_record(prompt: Prompt) -> dict[str, object]:
    return {
        "index": prompt.index,
        "prompt_ids": prompt.ids,
        "prompt_text": prompt.text,
        "answer": prompt.answer,
        "data_source": prompt.data_source,
        "solution": prompt.solution,
        "extra_info": json.dumps(dict(prompt.extra_info)),
    }
