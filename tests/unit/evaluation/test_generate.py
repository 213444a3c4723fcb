"""Answers of a tiny model: greedy against the scorer, samples, a chat, prompts from files, models in run folders."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from episodes import response_of
from planned_checkpoints import write_step
from running import write_experiment
from weight_files import write_safetensors

from mindgspo.cli import main
from mindgspo.config import TokenizerSection, load_config
from mindgspo.errors import CheckpointError, ConfigError, DataError, WeightsError
from mindgspo.evaluation.generate import (
    Chat,
    Generated,
    GenerateOptions,
    TextPieces,
    conversation_lines,
    generate_completions,
    json_row,
    play_episodes,
)
from mindgspo.evaluation.inputs import encode_prompt, find_model, read_prompts
from mindgspo.evaluation.log_probs import log_probs_by_native_model
from mindgspo.models.names import weight_shapes
from mindgspo.tokenization import load_tokenizer
from mindgspo.types import Episode, EpisodeEnd, FinishReason, TurnSpan

PROMPTS = ["Tom has 3 pens.", [{"role": "user", "content": "4+5"}], "Ann had 64 coins"]


def ids_of(found: Sequence[Generated]) -> list[list[list[int]]]:
    return [[completion.ids.tolist() for completion in one.completions] for one in found]


def test_a_greedy_answer_is_the_likeliest_token_after_token(cpu_runtime, tiny_model: Path) -> None:
    (found,) = generate_completions(tiny_model, ["Tom has 3 pens."], GenerateOptions(max_new_tokens=6))
    (answer,) = found.completions
    tokenizer = load_tokenizer(TokenizerSection())
    prompt = encode_prompt(tokenizer, "Tom has 3 pens.", "")
    rows = [np.append(prompt, answer.ids[:stop]).astype(np.int32) for stop in range(answer.ids.size + 1)]
    section = find_model(tiny_model).section
    scores = list(log_probs_by_native_model(section, tiny_model, rows))
    assert [score.next_id for score in scores[:-1]] == answer.ids.tolist()
    np.testing.assert_allclose(answer.logprobs, scores[-1].logprobs[prompt.size - 1 :], rtol=1e-4)
    assert answer.text == found.text == tokenizer.decode(answer.ids, skip_special_tokens=True)
    assert answer.finish_reason is (FinishReason.STOP if 378 in answer.ids else FinishReason.LENGTH)


def test_samples_depend_on_the_seed_alone(cpu_runtime, tiny_model: Path) -> None:
    options = {"temperature": 1.0, "num_samples": 3, "max_new_tokens": 5}
    first = ids_of(list(generate_completions(tiny_model, PROMPTS, GenerateOptions(**options))))
    assert ids_of(list(generate_completions(tiny_model, PROMPTS, GenerateOptions(**options, batch=2)))) == first
    assert ids_of(list(generate_completions(tiny_model, PROMPTS, GenerateOptions(**options, seed=2)))) != first
    assert [len(one) for one in first] == [3, 3, 3] and len({tuple(ids) for one in first for ids in one}) > 6


def test_a_chat_says_what_generate_says_and_remembers_it(cpu_runtime, tiny_model: Path) -> None:
    options = GenerateOptions(max_new_tokens=5)
    chat = Chat(tiny_model, options)
    first = "".join(chat.say("1+2"))
    said = [{"role": "user", "content": "1+2"}, {"role": "assistant", "content": first}]
    assert chat.messages == said
    second = "".join(chat.say("3"))
    asked = ["1+2", [*said, {"role": "user", "content": "3"}]]
    assert [found.text for found in generate_completions(tiny_model, asked, options)] == [first, second]
    chat.reset()
    looks = iter([False, True])
    stopped = "".join(chat.say("1+2", lambda: next(looks)))
    assert len(stopped) < len(first) and first.startswith(stopped)
    assert chat.messages[-1] == {"role": "assistant", "content": stopped}
    with pytest.raises(ConfigError, match=r"the conversation has \d+ tokens, and there is room for 64"):
        list(chat.say("1 2 3 4 5 6 7 8 9 " * 9))
    assert len(chat.messages) == 2, "as before"


@pytest.mark.parametrize(("options", "said"), [
    ({"num_samples": 2}, "--num-samples 2: greedy answers are all the same"),
    ({"max_new_tokens": 64}, "64 positions, but the longest prompt has"),
    ({"top_p": 2.0, "temperature": 1.0}, "--temperature 1 --top-p 2: legal are .* a top-p from 1e-06 to 1"),
])  # fmt: skip
def test_numbers_that_cannot_be_are_refused(options: dict, said: str, tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        list(generate_completions(tiny_model, ["1"], GenerateOptions(**options)))


def test_generation_config_says_how_answers_are_drawn(cpu_runtime, tiny_model: Path, tmp_path: Path) -> None:
    model = shutil.copytree(tiny_model, tmp_path / "model")
    said = {"do_sample": True, "temperature": 1.0, "top_k": 1, "max_new_tokens": 3, "eos_token_id": [378]}
    (model / "generation_config.json").write_text(json.dumps(said))
    (found,) = generate_completions(model, ["1+2"], GenerateOptions(num_samples=2))
    assert ids_of([found])[0][0] == ids_of([found])[0][1] and found.completions[0].ids.size <= 3
    (greedy,) = generate_completions(model, ["1+2"], GenerateOptions(temperature=0))
    assert ids_of([greedy])[0][0] == ids_of([found])[0][0]


class Bytes:
    """A tokenizer whose ids are bytes of UTF-8."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return bytes(int(one) for one in ids).decode(errors="replace")


def test_pieces_wait_for_whole_characters() -> None:
    ids = np.frombuffer("a\u4e2db".encode() + b"\xe4", np.uint8).astype(np.int32)
    pieces = TextPieces(Bytes())
    assert [pieces.of(ids[:stop]) for stop in range(1, 7)] == ["a", "", "", "\u4e2d", "b", ""]
    assert pieces.of(ids, is_last=True) == "\ufffd"


def test_prompts_of_files(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "1"}\n\n{"messages": [{"role": "user", "content": "2"}]}\n')
    assert read_prompts(path) == ["1", ({"role": "user", "content": "2"},)]
    (tmp_path / "prompts.txt").write_text("one\r\n\n two\n")
    assert read_prompts(tmp_path / "prompts.txt") == ["one", " two"]


@pytest.mark.parametrize(("line", "said"), [
    ("x", "not JSON"), ("[1]", "expected a JSON object, got list"),
    ('{"text": "1"}', 'expected either "prompt" or "messages", got neither'),
    ('{"prompt": 1}', "prompt: expected a list"), ('{"messages": "1"}', "messages: expected a list"),
])  # fmt: skip
def test_a_wrong_line_is_named(line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(f'{{"prompt": "1"}}\n{line}\n')
    with pytest.raises(DataError, match="x.jsonl:2: " + said):
        read_prompts(tmp_path / "x.jsonl")


def test_a_run_is_its_export_or_its_newest_checkpoint(cpu_runtime, tiny_model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.yaml").write_text(write_experiment(tmp_path).read_text().replace("path: ", f"path: {tmp_path}/"))
    with pytest.raises(CheckpointError, match="without an export and without a checkpoint"):
        find_model(run)
    section = load_config(tmp_path / "tiny.yaml").model
    weights = {name: np.full(shape, 0.25, np.float32) for name, shape in weight_shapes(section).items()}
    step = write_step(run, {**weights, "adamw.m.x": np.zeros(3, np.float32)})
    assert find_model(run).place == find_model(step).place == step
    (found,) = generate_completions(run, ["1+2"], GenerateOptions(max_new_tokens=2))
    shutil.copytree(tiny_model, run / "export")
    assert find_model(run).place == run / "export" and find_model(step).place == step
    shutil.copytree(tiny_model, tmp_path / "same")
    write_safetensors(tmp_path / "same" / "model.safetensors", weights)
    assert ids_of([found]) == ids_of(
        list(generate_completions(tmp_path / "same", ["1+2"], GenerateOptions(max_new_tokens=2)))
    )
    with pytest.raises(CheckpointError, match="not inside a run folder"):
        find_model(Path(shutil.copytree(step, tmp_path / "elsewhere")))
    with pytest.raises(WeightsError, match="nowhere: no such folder; give a Hugging Face"):
        find_model(tmp_path / "nowhere")


def test_the_command_prints_text_json_lines_and_a_chat(
    cpu_runtime, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = generate_completions(tiny_model, ["1+2"], GenerateOptions(max_new_tokens=4))
    words = ["generate", str(tiny_model), "--max-new-tokens", "4"]
    (tmp_path / "x.txt").write_text("1+2\n")
    assert main([*words, "--file", str(tmp_path / "x.txt")]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json_row(found))
    (tmp_path / "typed").write_text("1+2\n/reset\n/what\n\n/quit\n1+2\n")
    with (tmp_path / "typed").open() as typed:
        monkeypatch.setattr("sys.stdin", typed)
        assert main(words) == 0
    assert capsys.readouterr().out.endswith("no command /what: /reset begins anew, /quit or Ctrl-D ends, "
                                            "Ctrl-C stops an answer\n")  # fmt: skip
    assert main([*words, "--prompt", "1", "--file", "x"]) == 2
    assert main([*words, "--raw"]) == 2


GAME = """
from mindgspo.environments import End, Environment, Row, Turn

class Game(Environment):
    def reset(self, row: Row, seed: int) -> None:
        self.answer = row.answer

    def cut(self, reason: str) -> End:
        return End(reward=0.5, info={"answer": float(self.answer or -1)})
"""


def test_an_episode_of_a_row_or_a_prompt_is_played(cpu_runtime, tiny_model: Path, tmp_path: Path) -> None:
    """The tiny model does not stop, so a turn ends at its limit."""
    (tmp_path / "game.py").write_text(GAME)
    experiment = write_experiment(tmp_path)
    options = GenerateOptions(max_new_tokens=9, temperature=1.0)
    with pytest.raises(ConfigError, match=r"tiny.yaml: has no section environment; give an experiment"):
        list(play_episodes(tiny_model, experiment, options))
    section = "environment: {path: game.py:Game, max_turn_tokens: 4}\nreward: {functions: [environment]}\n"
    experiment.write_text(f"{experiment.read_text()}\n{section}")
    lines = list(play_episodes(tiny_model, experiment, options, row=2))
    assert lines[:3] == ["--- prompt", lines[1], "--- turn 1: 4 tokens"]
    assert lines[1].startswith("<|im_start|>user\n") and lines[1].endswith("<|im_start|>assistant")
    gold = json.loads((tmp_path / "held_out.jsonl").read_text().splitlines()[2])["answer"].rpartition("#### ")[2]
    assert lines[4:] == [f"--- end: turn_tokens, reward 0.5, answer {gold}"]
    several = replace(options, num_samples=2)
    lines = list(play_episodes(tiny_model, experiment, several, prompt="1+2"))
    assert lines[2] == "=== episode 1 of 2" and lines[-1] == "--- end: turn_tokens, reward 0.5, answer -1"
    assert "1+2" in lines[1]
    with pytest.raises(DataError, match=r"--row 6: .*held_out.jsonl has 6 rows; they are counted from 0"):
        list(play_episodes(tiny_model, experiment, options, row=6))


def test_an_episode_as_text() -> None:
    first = TurnSpan(start=0, stop=2, num_calls=2, errors=("malformed",), seconds=0.25, num_left_out=7)
    turns = (first, TurnSpan(start=5, stop=6))
    episode = Episode(turns=turns, end=EpisodeEnd.FAILED, reward=None, is_correct=None, info={}, message="broken")
    lines = conversation_lines(response_of(range(6), episode), lambda ids: " ".join(map(str, ids)))
    assert list(lines) == [
        "--- turn 1: 2 tokens, 2 tool calls (malformed)",
        "0 1",
        "--- environment: 3 tokens, 7 left out, 0.25 s",
        "2 3 4",
        "--- turn 2: 1 token",
        "5",
        "--- end: failed (broken)",
    ]
