"""samples.html: what is on it, what an untrusted text can do there, and how long runs are made to fit."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from mindgspo.errors import RunFolderError
from mindgspo.metrics.samples_page import choose_steps, write_samples_page

EVIL = '</script><script>document.title="owned"</script><img src=x onerror=alert(1)>\u202e'


def sample(step: int, prompt: int = 1, **changes: object) -> dict[str, object]:
    return {"step": step, "prompt_index": prompt, "sample_index": 0, "prompt": f"question {prompt}", "answer": "4",
            "response": f"answer at {step}", "extracted": "4", "verdict": "correct", "score": 1.0, "advantage": 0.5,
            "length": 7, "finish_reason": "stop", **changes}  # fmt: skip


def write(path: Path, records: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def content(page: str) -> dict[str, list]:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def test_samples_of_both_files_with_their_prompts_once(tmp_path: Path) -> None:
    assert write_samples_page(tmp_path, "run") is None
    write(tmp_path / "samples.jsonl", [sample(1), sample(2, verdict="wrong", score=0.0), sample(2, prompt=2)])
    write(tmp_path / "validation.jsonl", [{**sample(2), "set": "eval", "sample": "greedy"}])
    path = write_samples_page(tmp_path, "run")
    assert path == tmp_path / "samples.html"
    found = content(path.read_text())
    assert [about["text"] for about in found["prompts"]] == ["question 1", "question 2", "question 1"]
    assert found["counts"] == [2, 1, 1] and found["sets"] == ["training", "held-out: eval"]
    assert found["samples"][1] == [0, 2, 0, "0", "wrong", 0.0, 0.5, 7, False, "4", None, "answer at 2"]
    assert [row[0] for row in found["samples"]] == [0, 0, 0, 1]


def test_no_text_of_a_run_can_end_its_element_or_run(tmp_path: Path) -> None:
    write(
        tmp_path / "samples.jsonl", [sample(1, prompt=EVIL, response=EVIL, answer=EVIL, extracted=EVIL, verdict=EVIL)]
    )
    page = write_samples_page(tmp_path, EVIL).read_text()
    assert content(page)["samples"][0][-1] == EVIL.replace("\u202e", "\\u202e")
    assert "<img" not in page and "\u202e" not in page and page.count("<script") == page.count("</script>") == 3
    policy = re.search(r"script-src '(sha256-[^']+)'", page)
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert policy[1] == f"sha256-{digest}", "no other script runs"
    assert "default-src 'none'" in page and "http://" not in page and "https://" not in page


def turn(text: str, observation: str = "", **changes: object) -> dict[str, object]:
    return {"start": 0, "stop": 5, "num_calls": 0, "errors": [], "seconds": 0.25, "num_left_out": 0, "text": text,
            "mean_logprob": -0.5, "observation": observation, "num_observed": 3, **changes}  # fmt: skip


def episode(*turns: dict[str, object], **changes: object) -> dict[str, object]:
    return {"turns": list(turns), "end": "done", "reward": 1.0, "is_correct": None, "info": {"moves": 2.0},
            "message": "", **changes}  # fmt: skip


def test_an_episode_is_shown_by_its_turns(tmp_path: Path) -> None:
    played = episode(
        turn("<tool_call>{}", f"error {EVIL}", num_calls=1, errors=["malformed"], num_left_out=9), turn("the end")
    )
    unread = episode({"start": 0, "stop": 5})  # a line without the turns' texts
    write(tmp_path / "samples.jsonl", [sample(1, episode=played), sample(1, episode=unread), sample(1, episode=7)])
    page = write_samples_page(tmp_path, "run").read_text()
    shown, *others = content(page)["samples"]
    assert shown[-2:] == ["", {
        "turns": [
            ["<tool_call>{}", f"error {EVIL}".replace("\u202e", "\\u202e"), 5, -0.5, 1, 0.25, 3, 9, ["malformed"]],
            ["the end", "", 5, -0.5, 0, 0.25, 3, 0, []],
        ],
        "hidden": 0, "end": "done", "reward": 1.0, "info": [["moves", 2.0]], "message": "",
    }]  # fmt: skip
    assert [row[-1] for row in others] == ["answer at 1"] * 2
    assert "<img" not in page and page.count("<script") == 3


def test_all_texts_of_an_episode_together_are_bounded(tmp_path: Path) -> None:
    """Of 20,000 characters the first turn takes 15,000 and 80, and the second what is left."""
    turns = [turn("x" * 15_000), turn("y" * 6_000, "z"), turn("never")]
    write(tmp_path / "samples.jsonl", [sample(1, episode=episode(*turns))])
    shown = content(write_samples_page(tmp_path, "run").read_text())["samples"][0][-1]
    texts = [one[0] for one in shown["turns"]]
    assert texts == ["x" * 15_000, "y" * 4_920 + "\n[... 1,080 more characters in the run folder]"]
    assert shown["turns"][1][1] == "\n[... 1 more characters in the run folder]" and shown["hidden"] == 1


def test_of_a_long_run_evenly_spread_steps_fit(tmp_path: Path) -> None:
    records = [sample(step, response="x" * 850) for step in range(1, 101)]  # about 1,010 characters each
    write(tmp_path / "samples.jsonl", records)
    chosen = choose_steps(tmp_path / "samples.jsonl", 5_500)
    assert sorted(chosen.steps) == [1, 26, 51, 75, 100] and chosen.num_steps == 100 and not chosen.is_cut
    most = {"samples.jsonl": 5_500, "validation.jsonl": 1_000}
    page = write_samples_page(tmp_path, "run", most_chars=most).read_text()
    assert "samples.jsonl is long: 5 of its 100 steps are shown, evenly spread." in page
    assert len(content(page)["samples"]) == 5
    # Not even the newest step fits as a whole.
    write(tmp_path / "samples.jsonl", [*records, *(sample(101, prompt=n, response="x" * 850) for n in range(9))])
    page = write_samples_page(tmp_path, "run", most_chars={**most, "samples.jsonl": 3_100}).read_text()
    assert "samples.jsonl is long: a part of its newest step is shown, out of 101 steps." in page
    assert [row[1:3] for row in content(page)["samples"]] == [[101, 0], [101, 1], [101, 2]]


def test_a_long_text_is_cut_and_says_so(tmp_path: Path) -> None:
    write(tmp_path / "samples.jsonl", [sample(1, response="y" * 20_007)])
    text = content(write_samples_page(tmp_path, "run").read_text())["samples"][0][-1]
    assert text == "y" * 20_000 + "\n[... 7 more characters in the run folder]"


def test_a_line_without_a_step_is_named(tmp_path: Path) -> None:
    write(tmp_path / "samples.jsonl", [sample(1), {"prompt": "?"}])
    with pytest.raises(RunFolderError, match=r"samples.jsonl, line 2: has no integer 'step'"):
        write_samples_page(tmp_path, "run")


@pytest.mark.slow
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs chromium")
    played = episode(turn('try <tool_call>{"a"}</tool_call> it', EVIL, num_calls=1, errors=["malformed"]), turn("bye"))
    rows = [sample(1, response=EVIL), sample(2, verdict="wrong", episode={**played, "end": "max_turns"})]
    write(tmp_path / "samples.jsonl", rows)
    path = write_samples_page(tmp_path, "run")
    captured = {"capture_output": True, "text": True, "timeout": 120, "check": True}
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000", "--dump-dom"]
    shown = subprocess.run([browser, *words, f"file://{path}"], **captured).stdout
    assert '<p id="count">2 samples, 50.0 % correct, mean reward 1.000</p>' in shown
    assert "<title>run · mindgspo samples</title>" in shown and "<img" not in shown
    assert shown.count("&lt;/script&gt;&lt;script&gt;document.title=") == 2, "shown as text"
    assert '<pre class="said">try <span class="call">&lt;tool_call&gt;{"a"}&lt;/tool_call&gt;</span> it</pre>' in shown
    assert "<b>environment</b><span>observation, not trained</span>" in shown
    assert '<span class="badge warn">max_turns</span>' in shown and "no further turn is allowed" in shown
    shown = subprocess.run([browser, *words, f"file://{path}#zh"], **captured).stdout
    assert (
        '<p id="count">2 个样本，50.0% 正确，平均奖励 1.000</p>' in shown and "全部" in shown and ">all<" not in shown
    )
