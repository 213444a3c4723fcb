"""The small experiment of tests of configurations, with and without its model."""

WITHOUT_MODEL = """
experiment: small
data:
  train: {format: arithmetic, split: train}
  eval: {format: arithmetic, split: test, max_rows: 16}
  max_prompt_length: 64
rollout: {prompts_per_step: 12, num_generations: 4, max_new_tokens: 32}
trainer: {max_steps: 3, prompts_per_mini_batch: 6, samples_per_micro_batch: 8}
"""
WITH_MODEL = f"""{WITHOUT_MODEL}
model: {{vocab_size: 512, hidden_size: 96, intermediate_size: 256, num_hidden_layers: 4, num_attention_heads: 4,
  num_key_value_heads: 2, max_position_embeddings: 128}}
"""
