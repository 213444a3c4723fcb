"""Loads an exported model into a running `mindgspo serve`, which otherwise waits for the weights of its trainer.

python examples/environments/load_weights.py runs/judge-model-sft/export http://127.0.0.1:8765

The server takes folders below those that it was given by --weights-dir. The model gets a file more, weights.json: the
SHA-256 of each tensor.
"""

import hashlib
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np

from mindgspo.io import write_json
from mindgspo.rollout.weights_folder import MANIFEST
from mindgspo.tensor_files.reader import open_tensors

VERSION = 1


def load(folder: Path, url: str) -> None:
    """Raises OSError, of which urllib's error for a status is one."""
    with open_tensors(folder) as tensors:
        sha256 = {
            name: hashlib.sha256(np.ascontiguousarray(tensors.read(name)).data).hexdigest() for name in tensors.tensors
        }
    write_json(folder / MANIFEST, {"version": VERSION, "sha256": sha256})
    body = json.dumps({"folder": str(folder.absolute()), "version": VERSION}).encode()
    urllib.request.urlopen(urllib.request.Request(f"{url}/update_weights", body), timeout=300).close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/environments/load_weights.py FOLDER URL")
    try:
        load(Path(sys.argv[1]), sys.argv[2].rstrip("/"))
    except urllib.error.HTTPError as error:
        sys.exit(f"{sys.argv[2]}: status {error.code}: {error.read(1000).decode('utf-8', 'replace')}")
    except OSError as error:
        sys.exit(f"{sys.argv[2]}: {error}")
