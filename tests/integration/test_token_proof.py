"""What is trained is what was sampled, with the chat templates of published models: 1,024 episodes of each."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from chat_templates import chat_tokenizer
from running import read_lines, sets, succeeded, training_lines, write_experiment

ANSWERS = [{"role": "tool", "content": ' "5"\n\u00e9'}, {"role": "user", "content": "And <twice> that?"}]
GAME = f"""
from mindgspo.environments import End, Environment

class Game(Environment):
    tools = ("add",)

    def step(self, turn):
        if turn.number == 3:
            return End(reward=len(set(turn.text)) / 20)
        return [{ANSWERS}[turn.number - 1]]

    def cut(self, reason):
        return End(reward=0.0)

    def add(self, a: int, b: int) -> int:
        \"\"\"Add two numbers.

        Args:
            a: the first
            b: the second
        \"\"\"
        return a + b
"""
THOUGHT = "<think>\nhm\n</think>\n\n"


def solution(name: str, number: int) -> list[dict[str, str]]:
    thought = THOUGHT if name == "qwen3" else ""
    turns = [
        '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>',
        f"It is {number}.",
        "10 \u4f60",
    ]
    said = [{"role": "assistant", "content": thought + text} for text in turns]
    return [said[0], ANSWERS[0], said[1], ANSWERS[1], said[2]]


@pytest.mark.slow
@pytest.mark.parametrize("name", [
    "qwen2_5", "qwen3", "qwen3 without thoughts", "llama3", "llama3_1", "llama3_2", "smollm2"
])  # fmt: skip
def test_trained_is_what_was_sampled(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = chat_tokenizer(name, tmp_path / "published")
    config = write_experiment(tmp_path)
    (tmp_path / "game.py").write_text(GAME, encoding="utf-8")
    for file, count in (("rows", 256), ("held_out", 2)):
        rows = [{"q": f"How many are {i} and 3?", "a": "1", "s": solution(name, i % 9)} for i in range(count)]
        (tmp_path / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    theirs: Any = transformers.AutoTokenizer.from_pretrained(tokenizer.path)
    columns = "{prompt: q, answer: a, solution: s, data_source_name: game}"
    succeeded("run", config, *sets(
        f"tokenizer.path={tokenizer.path}", f"tokenizer.eos_tokens={json.dumps(tokenizer.eos_tokens)}",
        f"tokenizer.pad_token={tokenizer.pad_token}", f"model.vocab_size={len(theirs)}",
        "model.max_position_embeddings=1024", "data.max_prompt_length=512",
        "data.train.format=columns", f"data.train.columns={columns}",
        "data.eval.format=columns", f"data.eval.columns={columns}",
        "environment.path=game.py:Game", "environment.tool_style=hermes", "environment.max_turn_tokens=48",
        "reward.functions=[environment]", "warmup.max_steps=60", "warmup.stop_at_accuracy=null", "warmup.check=null",
        "rollout.prompts_per_step=32", "rollout.num_generations=8", "rollout.max_new_tokens=320", "rollout.slots=64",
        "trainer.max_steps=4", "trainer.prompts_per_mini_batch=16", "eval.every=4", "logging.groups_per_step=null",
        f"run_dir={tmp_path / 'run'}",
    ), cwd=tmp_path)  # fmt: skip
    for line in training_lines(tmp_path / "run"):
        assert line["training/rollout_logprob_diff_max"] == 0.0 == line["actor/first_ratio_error_max"], line
    samples = read_lines(tmp_path / "run" / "samples.jsonl")
    turns = [sample["episode"]["turns"] for sample in samples]
    assert len(turns) == 1024
    assert sum(len(each) for each in turns) > 1.5 * len(turns), "most episodes have one turn"
    expected = [rendered(theirs, name, answer) for answer in ANSWERS]
    for sample, each in zip(samples, turns, strict=True):
        for turn, answer in zip(each[:-1], expected, strict=False):
            assert turn["observation"] == answer
        assert sample["response"] == "".join(turn["text"] + turn["observation"] for turn in each)
        assert sample["length"] == sum(turn["stop"] - turn["start"] for turn in each)
        for turn, following in itertools.pairwise(each):
            observed = theirs.encode(turn["observation"], add_special_tokens=False)
            assert following["start"] - turn["stop"] == len(observed)


def rendered(theirs: Any, name: str, answer: dict[str, str]) -> str:
    """What transformers writes behind the token that ends a turn."""
    conversation = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "SAID"}, answer]
    whole = theirs.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    behind = whole.split("SAID")[1]
    end = "<|eot_id|>" if name.startswith("llama") else "<|im_end|>"
    assert behind.startswith(end)
    return behind.removeprefix(end)
