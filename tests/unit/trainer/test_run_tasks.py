"""Measuring with scripted answers: figures, table, JSON and records agree; the folder of `--out` is whole or absent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from damage import files_end_at

from mindgspo.errors import ConfigError
from mindgspo.evaluation.run_tasks import (
    EvalFolder,
    eval_report,
    evaluate_task,
    generation_records,
    remarks,
    results_table,
)
from mindgspo.evaluation.tasks import EvalTask

SETTINGS = ("eval.num_samples=4", "eval.pass_at_k=[1, 4]")


@pytest.fixture
def measured(make_trainer, prompts):
    """measured(script, *overrides): what is found, and the groups that were told on the way."""

    def run(script, *overrides: str, rows=prompts, dropped: dict[str, int] | None = None, **changed: object):
        trainer = make_trainer(script, *overrides, **changed)
        task = EvalTask(label="rows", config=trainer.run_config, any_length=True)
        told = []
        found = evaluate_task(trainer.validation.evaluator, task, rows, told.append, dropped=dropped or {})
        return found, told

    return run


@pytest.fixture
def script(answer):
    """Arithmetic rows: sample 1 right, 2 and 3 the same wrong number; the others: all right. Sample 0 is greedy too."""

    def said(prompt, sample):
        if prompt.data_source != "arithmetic":
            return answer(prompt.answer)
        return answer({1: prompt.answer, 2: "999", 3: "999.0"}.get(sample, "7"))

    return said


def test_figures_table_report_and_records_agree(measured, script, prompts, tokenizer) -> None:
    found, told = measured(script, *SETTINGS, rows=prompts[::-1])
    assert [one.source for one in found] == ["arithmetic", "openai/gsm8k"]
    arithmetic, gsm8k = found
    assert (arithmetic.single.num_problems, arithmetic.single.num_correct) == (4, 0)
    values = {name: estimate.value for name, estimate in arithmetic.sampled.estimates.items()}
    assert values == {"acc/mean@4": 0.25, "acc/pass@1": 0.25, "acc/pass@4": 1, "acc/maj@4": 0}
    assert {estimate.value for estimate in gsm8k.sampled.estimates.values()} == {1}
    lines = results_table(found)
    assert " ".join(lines[0].split()) == "data problems answers figure value 95 % interval cut no answer tokens"
    assert len(lines) == 1 + 2 * (1 + 4)
    assert lines[1].startswith("rows (arithmetic)") and "greedy" in lines[1] and "0.000  0.000 to 0.490" in lines[1]
    assert lines[2].split()[:3] == ["4", "samples", "acc/mean@4"]
    assert len({len(line) for line in lines if "%" in line}) <= 2, "columns stand below each other"
    said = json.loads(json.dumps(eval_report(found), allow_nan=False))
    assert (said["problems"], said["accuracy"]) == (8, 0.5)
    assert said["settings"]["num_samples"] == 4 and said["settings"]["max_new_tokens"] == 16
    first = said["results"][0]
    assert (first["data"], first["data_source"], first["problems"]) == ("rows", "arithmetic", 4)
    assert first["greedy"]["acc/mean@1"]["value"] == 0 and first["greedy"]["cut"] == 0
    assert first["sampled"]["acc/mean@4"].keys() == {"value", "low", "high"}
    records = [record for group in told for record in generation_records(found[0].task, tokenizer, group)]
    assert len(records) == 8 * (1 + 4)
    of_first = [record for record in records if record["index"] == 0]
    first = of_first[0]
    assert (first["temperature"], first["sample"], first["verdict"], first["extracted"]) == (0.0, 0, "wrong", "7")
    assert first["response"] == "#### 7<|im_end|>" and first["finish_reason"] == "stop"
    assert [record["verdict"] for record in of_first] == ["wrong", "wrong", "correct", "wrong", "wrong"]


def test_greedy_alone_and_the_number_of_calls(measured, script) -> None:
    found, told = measured(script)
    assert [one.sampled for one in found] == [None, None]
    assert len(told) == 8
    # 8 prompts x 4 samples: with one slot a call takes 2 prompts, with 64 all of them.
    few, told_few = measured(script, *SETTINGS, "rollout.slots=1")
    many, told_many = measured(script, *SETTINGS, "rollout.slots=64")
    assert [(one.single, one.sampled) for one in few] == [(one.single, one.sampled) for one in many]
    assert [group.prompt.index for group in told_few] == [*range(8), *range(8)]
    assert [group.prompt.index for group in told_many] == [*range(8), *range(8)]


def test_one_drawn_answer_is_not_called_greedy(measured, script) -> None:
    found, _ = measured(script, "eval={do_sample: true, top_p: 0.7}")
    assert "drawn" in results_table(found)[1] and "greedy" not in "\n".join(results_table(found))
    said = eval_report(found)
    assert said["results"][0]["drawn"]["acc/mean@1"]["value"] == 0 and "greedy" not in said["results"][0]
    assert (said["settings"]["do_sample"], said["settings"]["top_p"]) == (True, 0.7)


def test_remarks_say_what_to_do(measured, tokenizer, script) -> None:
    found, _ = measured(lambda prompt, sample: tokenizer.encode("pens " * 30), dropped={"no answer": 2, "too long": 1})
    lines = list(remarks(found))
    assert lines[0] == "rows: 3 rows were left out (2 x no answer, 1 x too long)"
    assert lines[1] == "rows (arithmetic), greedy: 100 % cut at 16 tokens: raise --max-new-tokens"
    assert sum("left out" in line for line in lines) == 1, "once, not per data source"
    assert not any("no answer was found" in line for line in lines), "the cut explains it"
    found, _ = measured(lambda prompt, sample: [*tokenizer.encode("Tom"), tokenizer.eos_ids[0]])
    assert any("no answer was found in 100 %" in line for line in remarks(found))
    assert list(remarks(measured(script, *SETTINGS)[0])) == []


def test_the_folder_of_out_appears_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "new" / "folder"
    with EvalFolder(target) as folder:
        folder.write([{"index": 0}, {"index": 1}])
        assert not target.exists()
        target.mkdir()  # an empty folder may be filled
        folder.finish({"accuracy": 0.5})
    assert sorted(path.name for path in target.iterdir()) == ["eval.json", "generations.jsonl"]
    assert json.loads((target / "eval.json").read_text()) == {"accuracy": 0.5}
    assert (target / "generations.jsonl").read_text() == '{"index": 0}\n{"index": 1}\n'
    assert [path.name for path in target.parent.iterdir()] == ["folder"]


def test_a_failure_or_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), EvalFolder(tmp_path / "out") as folder:
        folder.write([{"index": 0}])
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    # A limit on the size of files stands for the disk's end.
    said = r"--out .*out: cannot be written"
    with pytest.raises(ConfigError, match=said), EvalFolder(tmp_path / "out") as folder, files_end_at(10_000):
        folder.write([{"text": "x" * 1000}] * 100)
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_or_comes_first_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine.txt").write_text("mine")
    refused = {"file": "is not overwritten", "folder": "is not overwritten", "file/out": "cannot be written"}
    for taken, message in refused.items():
        with pytest.raises(ConfigError, match=message), EvalFolder(tmp_path / taken):
            raise AssertionError("it was entered")
    with pytest.raises(ConfigError, match="is not overwritten"), EvalFolder(tmp_path / "out") as folder:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "theirs").touch()
        folder.finish({})
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["theirs"]
    assert (tmp_path / "file").read_text() == (tmp_path / "folder" / "mine.txt").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 3
