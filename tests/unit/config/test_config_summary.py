"""The batch table of the start banner, with numbers worked out by hand."""

from __future__ import annotations

import pytest

from mindgspo.config import batch_table, planned_steps
from mindgspo.errors import ConfigError


def test_batch_table_of_the_small_experiment(load):
    assert batch_table(load(), num_rows=1000) == [
        ("prompts per step", "12"),
        ("samples per step", "48 = 12 prompts x 4"),
        ("updates per rollout", "2 of 24 samples (6 prompts)"),
        ("micro-batches per update", "3 of 8 samples"),
        ("max tokens per step", "4,608 = 48 x (64 prompt + 32 response)"),
        ("steps", "3 (trainer.max_steps), 1,000 rows"),
        ("total samples", "144"),
        (
            "objective",
            "GSPO: mean_i min(s_i A_i, clip(s_i, 1-0.0003, 1+0.0004) A_i), s_i = exp(mean_t(logp_it - old_it))",
        ),
        ("advantage", "A_i = (r_i - mean(r)) / (std(r) + 1e-06), over the group, ddof 1"),
        ("plans", "train 1 x 1 x 1, infer 1 x 1 x 1 (data x model x pipeline)"),
    ]


def test_formula_follows_the_algorithm(load):
    table = dict(batch_table(load("algorithm.name=grpo", "algorithm.advantage.normalize_by_std=false"), None))
    assert table["objective"] == (
        "GRPO: mean_i mean_t min(w_it A_i, clip(w_it, 1-0.2, 1+0.27) A_i), w_it = exp(logp_it - old_it)"
    )
    assert table["advantage"] == "A_i = r_i - mean(r), over the group"


@pytest.mark.parametrize(("epochs", "rows", "steps"), [(1, 24, 2), (1, 35, 2), (3, 20, 5), (2, 6, 1)])
def test_epochs_become_full_steps(load, epochs, rows, steps):
    config = load("trainer.max_steps=", f"trainer.epochs={epochs}")
    assert planned_steps(config, rows) == steps
    assert dict(batch_table(config, rows))["total samples"] == str(steps * 48)


def test_steps_are_open_until_rows_are_counted(load):
    config = load("trainer.max_steps=", "trainer.epochs=2")
    assert planned_steps(config, None) is None
    assert dict(batch_table(config, None))["steps"] == "2 epochs"
    assert planned_steps(load(), None) == 3


def test_too_few_rows_for_one_step_are_refused(load):
    with pytest.raises(ConfigError, match="12 prompts do not fit into 5 rows x 2 epochs; largest legal: 10"):
        planned_steps(load("trainer.max_steps=", "trainer.epochs=2"), 5)
