"""Rules of a step's batches: prompts, mini-batches, micro-batches, and the replicas that share them.

What enters: a resolved config. What leaves: lines as of `config.validate`, which calls this.
"""

from __future__ import annotations

from collections.abc import Iterator

from mindgspo.config.legal import divisors, nearest
from mindgspo.config.schema import ExperimentConfig
from mindgspo.text import either


def batch_problems(config: ExperimentConfig) -> Iterator[str]:
    """Every violated rule of the batches."""
    prompts, mini = config.rollout.prompts_per_step, config.trainer.prompts_per_mini_batch
    if prompts % mini:
        yield (
            f"trainer.prompts_per_mini_batch: {mini} does not divide rollout.prompts_per_step {prompts}; "
            f"nearest legal: {either(nearest(divisors(prompts), mini))}"
        )
    infer = config.plans.infer
    if prompts % infer.data_parallel:
        yield (
            f"plans.infer.data_parallel: {infer.data_parallel} replicas do not share rollout.prompts_per_step "
            f"{prompts} evenly; nearest legal: {either(nearest(divisors(prompts), infer.data_parallel))}"
        )
    trainer = config.trainer
    number, tokens = trainer.samples_per_micro_batch, trainer.max_tokens_per_micro_batch
    if number is None and tokens is None:
        yield (
            "trainer.samples_per_micro_batch: missing; set it, the responses of one pass, or "
            "trainer.max_tokens_per_micro_batch, its token slots"
        )
    elif number is not None and tokens is not None:
        yield (
            f"trainer.max_tokens_per_micro_batch: {tokens} and samples_per_micro_batch {number} both say how large a "
            "micro-batch is; leave one out (--set trainer.samples_per_micro_batch= takes an inherited one back)"
        )
    elif number is not None:
        yield from _number_problems(config, number)
    elif tokens is not None:
        yield from _budget_problems(config, tokens)
    if trainer.packing and tokens is None:
        yield (
            "trainer.packing: true needs trainer.max_tokens_per_micro_batch instead of samples_per_micro_batch, e.g. "
            f"{2 * longest_row(config)}, two samples of full length"
        )


def longest_row(config: ExperimentConfig) -> int:
    """Token slots of the longest prompt and response together, rounded up."""
    longest, multiple = config.data.max_prompt_length + config.rollout.max_new_tokens, config.trainer.length_multiple
    return -(-longest // multiple) * multiple


def _budget_problems(config: ExperimentConfig, tokens: int) -> Iterator[str]:
    needed = longest_row(config)
    if tokens < needed:
        yield (
            f"trainer.max_tokens_per_micro_batch: {tokens} slots do not hold the longest sample, "
            f"data.max_prompt_length {config.data.max_prompt_length} + rollout.max_new_tokens "
            f"{config.rollout.max_new_tokens}, rounded up to a multiple of trainer.length_multiple "
            f"{config.trainer.length_multiple}: {needed}; nearest legal: {needed}"
        )
    train, samples = config.plans.train, _samples(config)
    parts = train.data_parallel * train.micro_batch_num
    if samples < parts:
        yield (
            f"trainer.prompts_per_mini_batch: {samples} samples of a mini-batch do not fill the {parts} micro-batches "
            f"that data_parallel {train.data_parallel} x micro_batch_num {train.micro_batch_num} of plans.train "
            f"compute at once; smallest legal: {-(-parts // config.rollout.num_generations)}"
        )


def _number_problems(config: ExperimentConfig, micro: int) -> Iterator[str]:
    """Every replica must get the same work: whole rounds of micro-batches."""
    mini, group = config.trainer.prompts_per_mini_batch, config.rollout.num_generations
    samples, train = _samples(config), config.plans.train
    if samples % micro:
        yield (
            f"trainer.samples_per_micro_batch: {micro} does not divide the {mini} x {group} = {samples} "
            f"samples of a mini-batch; nearest legal: {either(nearest(divisors(samples), micro))}"
        )
        return
    parts = train.data_parallel * train.micro_batch_num
    if samples // micro % parts:
        legal = [samples // number for number in divisors(samples) if number % parts == 0]
        fix = (
            f"nearest legal trainer.samples_per_micro_batch: {either(nearest(sorted(legal), micro))}"
            if legal
            else f"make the samples of a mini-batch, {samples}, a multiple of {parts}"
        )
        yield (
            f"trainer.samples_per_micro_batch: {micro} makes {samples // micro} micro-batches per update, which "
            f"data_parallel {train.data_parallel} x micro_batch_num {train.micro_batch_num} = {parts} of plans.train "
            f"does not divide; {fix}"
        )


def _samples(config: ExperimentConfig) -> int:
    """Of a mini-batch."""
    return config.trainer.prompts_per_mini_batch * config.rollout.num_generations
