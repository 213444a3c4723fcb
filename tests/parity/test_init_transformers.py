"""From a folder that transformers saved, rows with odd columns and a reward to a trained model that it loads: `mindgspo
init`, `check`, `run`, without an editor."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_folders import KINDS, write_folder_by_transformers, write_reward, write_rows
from running import mindgspo

from mindgspo.cli import main

transformers = pytest.importorskip("transformers", reason="needs the `parity` extra")
pytest.importorskip("torch", reason="needs the `parity` extra")

pytestmark = pytest.mark.parity


def begun(folder: Path, kind: str) -> Path:
    """The experiment that `mindgspo init` writes, checked."""
    rows = write_rows(folder / "pens.jsonl")
    reward = write_reward(folder / "reward.py")
    model = write_folder_by_transformers(folder / "hf", kind, rows)
    out = folder / "new.yaml"
    words = ["--model", model, "--data", rows, "--reward", reward, "--out", out]
    assert main(["init", *map(str, words)]) == 0
    assert main(["check", str(out)]) == 0
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_every_family_as_transformers_saves_it_passes_init_and_check(kind: str, tmp_path: Path, capsys) -> None:
    begun(tmp_path, kind)
    said = capsys.readouterr().out
    assert "weights fit its config.json" in said and said.endswith("\nok\n")


def test_from_nothing_to_a_trained_model_that_transformers_loads(tmp_path: Path) -> None:
    experiment = begun(tmp_path, "Qwen3Moe")
    run = mindgspo("run", experiment, "trainer.max_steps=2", "rollout.max_new_tokens=32", cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    export = tmp_path / "runs" / "new" / "export"
    model, report = transformers.AutoModelForCausalLM.from_pretrained(export, output_loading_info=True)
    assert type(model).__name__ == "Qwen3MoeForCausalLM"
    assert not any(report.values())
    before = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    changed = [name for name, weight in model.state_dict().items() if not weight.equal(before.state_dict()[name])]
    assert "model.layers.0.mlp.gate.weight" in changed and "model.embed_tokens.weight" in changed
    tokenizer = transformers.AutoTokenizer.from_pretrained(export)
    question = [{"role": "user", "content": "Tom has 3 pens."}]
    ids = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    assert model.generate(**ids, max_new_tokens=4).shape[1] > ids["input_ids"].shape[1]
