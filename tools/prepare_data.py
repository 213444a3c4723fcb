#!/usr/bin/env python3
"""Turn a file of questions and answers, or the generated arithmetic task, into a prepared data set.

    python tools/prepare_data.py --format gsm8k --input train.jsonl --tokenizer Qwen2.5-3B --output data/gsm8k-train
    python tools/prepare_data.py --format gsm8k --file_path train.jsonl --vocab_path Qwen2.5-3B/vocab.json \\
        --merges_file_path Qwen2.5-3B/merges.txt --output_path data/gsm8k-train

The second command says the same in MindRLHF's words. The result is a folder with a MindRecord file and dataset.json, to
be named in an experiment's YAML as `data.train: {format: prepared, path: data/gsm8k-train}`. This is `mindgspo data
prepare`, with all of its options.
"""

from __future__ import annotations

import sys

from mindgspo.cli import main

if __name__ == "__main__":
    sys.exit(main(["data", "prepare", *sys.argv[1:]]))
