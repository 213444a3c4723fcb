"""The glossary knows the field's names and nothing else, says the same in two languages, and names real settings."""

from __future__ import annotations

import re

import pytest

from mindgspo.config.messages import known_keys
from mindgspo.metrics import METRICS, unknown_names
from mindgspo.metrics.glossary.chinese import TEXTS, TITLES, UNITS
from mindgspo.metrics.names import SECTIONS, glossary_name

KNOWN = [
    *("actor/pg_loss", "actor/pg_clipfrac", "actor/grad_norm", "actor/lr", "actor/entropy", "actor/ppo_kl"),
    *("critic/score/mean", "critic/score/max", "critic/rewards/min", "critic/advantages/mean"),
    *("response_length/mean", "response_length/clip_ratio", "prompt_length/max"),
    *("timing_s/gen", "timing_s/old_log_prob", "timing_s/step", "timing_s/save_checkpoint"),
    *("perf/total_num_tokens", "perf/throughput", "perf/time_per_step", "perf/cpu_memory_used_gb"),
    *("training/global_step", "training/epoch", "reward/part/gsm8k/mean", "samples/dropped/no_reward"),
    *("val-core/arithmetic/acc/mean@1", "val-core/openai/gsm8k/acc/pass@16"),
    *("actor/pg_clipfrac_lower", "actor/kl", "actor/kl_loss", "actor/kl_coef", "critic/kl", "actor/updates"),
    *("actor/log_ratio_hist/below_-1e-1", "actor/log_ratio_hist/within_1e-4", "actor/log_ratio_hist/1e-3_to_1e-2"),
    *("actor/grad_share_length_decile/1", "actor/grad_share_length_decile/10", "samples/filtered/zero_signal"),
    *("rollout_corr/weight_mean", "rollout_corr/weight_max", "rollout_corr/weight_min", "rollout_corr/ess"),
    *("rollout_corr/clipped_share", "reward/zero_signal_group_ratio", "reward/part/my_reward.compute_score/mean"),
    *("reward/unparseable_gold_ratio", "reward/timeout_ratio", "reward/error_ratio"),
    *("reward/extra/my_reward.compute_score/acc/mean", "reward/extra/f.g/\u683c\u5f0f/mean"),
]
UNKNOWN = [
    *("actor/pg_los", "critic/score/median", "timing_s/", "val-core/arithmetic/acc/mean@", "foo", ""),
    *("val-core//acc/pass@0", "actor/pg_loss ", "response_length", "ACTOR/LR"),
    *("reward/extra/f.g/mean", "reward/extra/f.g/a b/mean", "reward/extra/f.g/a/b/mean", "reward/part/f g/mean"),
    *("actor/log_ratio_hist/1e-5", "actor/grad_share_length_decile/0", "actor/grad_share_length_decile/11"),
]


@pytest.mark.parametrize("name", KNOWN)
def test_known(name: str) -> None:
    assert glossary_name(name) in METRICS
    assert unknown_names({name: 1.0}) == []


def test_unknown_names_are_listed_once_and_sorted_and_step_is_no_metric() -> None:
    assert unknown_names([*KNOWN, "step", *UNKNOWN, *UNKNOWN]) == sorted(UNKNOWN)


def test_every_entry_says_what_it_means() -> None:
    for name, info in METRICS.items():
        assert len(info.meaning) > 10, name
        assert not info.action or info.healthy, f"{name}: an action needs a healthy range"
        assert all(text.isascii() for text in (info.meaning, info.unit, info.healthy, info.action)), name


def test_chinese_has_every_text_that_english_has_and_no_other() -> None:
    assert list(TEXTS) == list(METRICS), "the same names in the same order"
    for name, english in METRICS.items():
        chinese = TEXTS[name]
        for field in ("meaning", "healthy", "action"):
            assert bool(getattr(english, field)) == bool(getattr(chinese, field)), f"{name}: {field}"
        assert re.search(r"[\u4e00-\u9fff]", chinese.meaning), name
    assert list(TITLES) == [section.title for section in SECTIONS]
    assert set(UNITS) == {info.unit for info in METRICS.values()}


def test_numbers_agree_in_both_languages() -> None:
    """Every number of an English text stands in the Chinese one: a bound that is changed must be changed twice."""
    for name, english in METRICS.items():
        for field in ("healthy", "action"):
            numbers, chinese = (
                set(re.findall(r"\d+(?:\.\d+)?(?:e-?\d+)?", getattr(info, field))) for info in (english, TEXTS[name])
            )
            assert numbers == chinese, f"{name}: {field}: {numbers ^ chinese}"


def test_settings_and_metrics_named_in_the_glossary_exist() -> None:
    settings = {path for path, _ in known_keys()}
    sections = {path.split(".")[0] for path in settings if "." in path}
    for table in (METRICS, TEXTS):
        for name, info in table.items():
            text = f"{info.meaning} {info.healthy} {info.action}"
            for word in re.findall(r"[a-z_]+(?:\.[a-z_]+)+", text):
                assert word in settings or word.split(".")[0] not in sections, f"{name}: no setting {word}"
            for word in re.findall(r"\b(?:actor|critic|reward|rollout_corr|training|samples)/[a-z_/<>]*[a-z_>]", text):
                known = glossary_name(word) or any(other.startswith(f"{word}/<") for other in METRICS)
                assert known, f"{name}: no metric {word}"
