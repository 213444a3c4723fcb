"""Pages in two languages, one at a time: every word of them has its Chinese; and what prompts ask."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mindgspo.metrics import pages
from mindgspo.metrics.pages import chinese, chinese_words, in_both, questions

METRICS = Path(pages.__file__).parent
CJK = re.compile("[\u3000-\u9fff\uff00-\uffef]")


def test_every_label_of_the_templates_is_translated() -> None:
    labels = set()
    for path in METRICS.glob("*.jinja"):
        labels |= set(re.findall(r"\b(?:t|label)\(\"([^\"]+)\"", path.read_text(encoding="utf-8")))
    script = (METRICS / "samples.js").read_text(encoding="utf-8")
    labels |= set(re.findall(r"(?<![\w.])t\(\"([^\"]+)\"", script))
    page = (METRICS / "samples.jinja").read_text(encoding="utf-8")
    labels |= set(re.findall(r"<option value=\"\w*\">([^<]+)<", page)) | {"from", "to"}
    missing = [label for label in labels if not (chinese(label.replace("%s", "{}")) or "").strip()]
    assert len(labels) > 50 and missing == []


def test_entries_keep_the_parts_and_have_chinese() -> None:
    for english, translated in chinese_words().items():
        assert english.count("{}") == len(re.findall(r"\{\d*\}", translated)), english
        assert CJK.search(translated) or len(translated) < 12, english
        assert not CJK.search(english)


@pytest.mark.parametrize(("english", "expected"), [
    ("held-out reward went from 0.04 to 0.500 (+0.460, 95 % interval +0.260 .. +0.660)",
     "验证集奖励从 0.04 变为 0.500（+0.460，95% 区间 +0.260 .. +0.660）"),
    ("held-out accuracy went from 44.0% to 44.2% (+0.2 points, 95 % interval -1.9 .. +2.7): no change can be claimed",
     "验证集准确率从 44.0% 变为 44.2%（+0.2 个百分点，95% 区间 -1.9 .. +2.7）：不能断言有变化"),
    ("2% of the responses are correct: choose harder prompts, enlarge the group, or raise the temperature.",
     "2% 的回答正确：换更难的提示词，增大组的大小，或提高温度。"),
    ("62% of the evaluation's answers to gsm8k were cut at 256 tokens",
     "gsm8k 的评测回答有 62% 在 256 个 token 处被截断"),
    ("sampler and trainer agree exactly on the same tokens; the sampler's weights were 1.5 steps behind",
     "对相同的 token，采样与训练的概率完全一致；采样所用权重落后 1.5 步"),
    ("Give generation cards of training, or raise trainer.max_staleness.",
     "从训练分一些卡给采样，或增大 trainer.max_staleness。"),
    ("validation.jsonl is long: 5 of its 100 steps are shown, evenly spread.",
     "validation.jsonl 很长：共 100 步，均匀选取其中 5 步显示。"),
    ("gsm8k", None), ("a sentence that nobody translated", None), ("", None),
])  # fmt: skip
def test_texts_with_numbers_and_names(english: str, expected: str | None) -> None:
    assert chinese(english) == expected


def test_a_page_has_both_and_escapes_both() -> None:
    assert in_both("Curves") == '<span class="en">Curves</span><span class="zh" lang="zh">训练曲线</span>'
    assert in_both("<b>") == "&lt;b&gt;"
    name = "<script>"
    shown = in_both(f"none of the 8 problems of {name} is solved")
    assert "<script" not in shown and shown.count("&lt;script&gt;") == 2
    hostile = " to ".join(["held-out x went from"] + ["a"] * 400) + " ("
    assert chinese(hostile) is None


QWEN = "<|im_start|>system\n{}<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
LLAMA = (
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n{}<|eot_id|><|start_header_id|>user"
    "<|end_header_id|>\n\n{}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
)
GEMMA = "<bos><start_of_turn>user\n{}\n\n{}<end_of_turn>\n<start_of_turn>model\n"
MISTRAL = "<s>[INST] {}\n{} [/INST]"
DEEPSEEK = "<\uff5cbegin\u2581of\u2581sentence\uff5c>{}<\uff5cUser\uff5c>{}<\uff5cAssistant\uff5c><think>\n"
PLAIN = "{}\nQuestion: {}\nAnswer:"
OWN = "~~{}~~\n>>\n{}\n<<\n"


@pytest.mark.parametrize("template", [QWEN, LLAMA, GEMMA, MISTRAL, DEEPSEEK, PLAIN, OWN])
def test_a_heading_is_the_question_whatever_the_template(template: str) -> None:
    system, asked = "You are a helpful assistant.", ["What is 2+2?", "What is 3\u00d75?\nShow the steps."]
    assert questions([template.format(system, text) for text in asked]) == asked


def test_instructions_that_all_prompts_share_and_other_turns_are_left_out() -> None:
    end = "\nThink step by step."
    prompts = [QWEN.format("Be brief.", f"Solve.\nWhat is {text}?{end}") for text in ("1+1", "2+2", "2+2")]
    assert questions(prompts) == ["What is 1+1?", "What is 2+2?", "What is 2+2?"]
    several = (
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi<|im_end|>\n<|im_start|>user\nAnd 7?<|im_end|>\n"
    )
    assert questions([several]) == ["And 7?"]
    assert questions(["2+2="]) == ["2+2="] and questions([]) == [] and questions(["", "a"]) == ["", "a"]
