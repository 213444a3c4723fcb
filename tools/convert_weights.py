#!/usr/bin/env python3
"""Write a model's weights in another layout, type or number of files: `mindgspo convert weights` under another name.

python tools/convert_weights.py runs/gsm8k/checkpoints/step_00000100 export --dtype bfloat16 --max-shard-size 5GB
python tools/convert_weights.py Qwen2.5-7B-Instruct mindformers --layout mindformers --format ckpt
"""

from __future__ import annotations

import sys

from mindgspo.cli import main

if __name__ == "__main__":
    sys.exit(main(["convert", "weights", *sys.argv[1:]]))
