"""The notebook of examples/: what it has stored is what comes out, up to numbers."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from running import PROJECT

NOTEBOOK = PROJECT / "examples" / "notebook.ipynb"


def outputs(cell: dict[str, Any]) -> list[str]:
    """The lines that a cell has put out, without what another machine may change."""
    texts = [output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"]
             for output in cell.get("outputs", [])]  # fmt: skip
    lines = "\n".join("".join(text) for text in texts).splitlines()
    return [re.sub(r"[+-]?\d[\d.,:%]*|\*+|\s+|/\S+/(?=runs/)", "", line) for line in lines]


def test_what_is_stored_is_whole_and_small() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1)), "run once, from top to bottom"
    assert {output["output_type"] for cell in code for output in cell["outputs"]} == {"stream", "execute_result"}
    assert {output.get("name", "stdout") for cell in code for output in cell["outputs"]} == {"stdout"}, "no warnings"
    assert NOTEBOOK.stat().st_size < 200_000


@pytest.mark.slow
def test_it_runs_and_puts_out_what_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = (pytest.importorskip(name, reason="needs the extra dev") for name in ("nbformat", "nbclient"))
    (tmp_path / "arithmetic").symlink_to(PROJECT / "examples" / "arithmetic")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    stored = [outputs(cell) for cell in notebook.cells]
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=1500, resources=place, coalesce_streams=True).execute()
    assert [outputs(cell) for cell in notebook.cells] == stored
    assert (tmp_path / "runs" / "notebook" / "export" / "model.safetensors").is_file()
