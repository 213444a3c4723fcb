"""The built-in experiment: generated sums, a tiny model, a reward that needs no skill, so that every update has a
gradient from the first step on.

What enters: how many steps, on how many workers. What leaves: a folder with the YAML and its reward file. Called by
`command`.
"""

from __future__ import annotations

from pathlib import Path

_PLANS = {
    1: "",
    2: "plans: {train: {data_parallel: 2}, infer: {data_parallel: 2}}\n",
    4: ("plans: {train: {data_parallel: 2, model_parallel: 2}, infer: {data_parallel: 2, model_parallel: 2}}\n"),
}
WORKERS = tuple(_PLANS)
"""Numbers of workers that it can have."""

_EXPERIMENT = """\
experiment: torture
seed: 3
model:
  vocab_size: 384
  hidden_size: 32
  intermediate_size: 64
  num_hidden_layers: 2
  num_attention_heads: 4
  num_key_value_heads: 2
  max_position_embeddings: 64
data:
  train: {{format: arithmetic, split: train, max_rows: 22}}
  eval: {{format: arithmetic, split: test, max_rows: 4}}
  max_prompt_length: 32
reward: {{functions: [reward.py:score], workers: {{count: 1}}}}
rollout: {{prompts_per_step: 4, num_generations: 4, max_new_tokens: 8, slots: 16}}
algorithm: {{name: gspo}}
optimizer: {{lr: 1e-3}}
trainer:
  max_steps: {max_steps}
  prompts_per_mini_batch: 2
  samples_per_micro_batch: 4
  length_multiple: 32
  save_every: 2
eval: {{every: 2}}
logging: {{groups_per_step: null, progress: false}}
"""
# 22 rows by 4: an epoch ends between two steps that share a checkpoint, and its rest is deferred.

_REWARD = '''\
"""A reward that depends on every character, and on nothing that could be learnt."""


def score(data_source, solution_str, ground_truth, extra_info):
    return sum(ord(letter) * (place % 5 + 1) for place, letter in enumerate(solution_str)) % 11 / 10
'''


def write_experiment(folder: Path, *, max_steps: int, workers: int) -> Path:
    """Write it; returns the YAML's path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "reward.py").write_text(_REWARD)
    path = folder / "torture.yaml"
    path.write_text(_EXPERIMENT.format(max_steps=max_steps) + _PLANS[workers])
    return path
