"""Glossary: rewards, advantages, lengths, and what became of every sample."""

from __future__ import annotations

from mindgspo.metrics.glossary.entry import GlossarySection, MetricInfo

_SEE_SAMPLES = "read samples.jsonl: prompt, answer format and reward function must fit together"

REWARDS = GlossarySection(
    title="Rewards and advantages",
    metrics={
        "critic/score/<stat>": MetricInfo(
            "weighted sum of the reward functions, of the responses that have a reward",
            "reward",
            "the mean rises",
            "flat: see the diagnosis lines (clipped responses, groups without signal, no answer found)",
        ),
        "critic/rewards/<stat>": MetricInfo(
            "reward as it enters the advantages", "reward", "as critic/score; lower by a KL penalty in the reward"
        ),
        "critic/advantages/<stat>": MetricInfo(
            "advantage of the responses",
            "std of the group",
            "mean near 0; |max| below sqrt(G) with grpo's estimator",
            "mean far from 0: the estimator has no baseline; rescale or choose another algorithm.advantage.estimator",
        ),
        "reward/correct_ratio": MetricInfo(
            "responses judged correct",
            "share of responses",
            "rises; 0.2 to 0.8 gives most signal",
            "near 0: easier prompts or a warm-up; near 1: harder prompts, nothing is left to learn",
        ),
        "reward/wrong_ratio": MetricInfo("responses with an answer that is wrong", "share of responses", "falls"),
        "reward/no_answer_ratio": MetricInfo(
            "responses without a recognisable answer",
            "share of responses",
            "below 0.2 and falling",
            f"too short max_new_tokens, or an answer format the reward does not read; {_SEE_SAMPLES}",
        ),
        "reward/invalid_ratio": MetricInfo(
            "responses left out because no reward could be given (error, timeout, unreadable gold answer)",
            "share of responses",
            "0",
            "see the ratios of the verdicts below, and the messages in samples.jsonl",
        ),
        "reward/unparseable_gold_ratio": MetricInfo(
            "responses to rows whose gold answer the reward function cannot read; left out",
            "share of responses",
            "0",
            "take these rows out of the data, or name a function that reads them under reward.functions",
        ),
        "reward/timeout_ratio": MetricInfo(
            "responses that were not judged within reward.workers.timeout_s, so that their worker was killed; left out",
            "share of responses",
            "0 or close to it",
            "above 0.02: make your reward function faster, or raise reward.workers.timeout_s; the messages in "
            "samples.jsonl name the function",
        ),
        "reward/error_ratio": MetricInfo(
            "responses on which a reward function failed (exception, crash, more memory than reward.workers.memory_mb, "
            "a result that is no reward) or abstained; left out",
            "share of responses",
            "0",
            "read the messages in samples.jsonl; the log has the first one",
        ),
        "reward/zero_signal_group_ratio": MetricInfo(
            "groups whose responses all have the same reward, hence advantage 0 and no gradient",
            "share of groups",
            "below 0.7",
            "easier or harder prompts, a larger group, or a higher temperature; algorithm.filter_groups takes such "
            "groups out of the mean",
        ),
        "reward/part/<name>/mean": MetricInfo(
            "mean of one reward function before weighting; your own function goes by its file and its name",
            "reward",
            "each part moves in its own time",
            "one rises while the one you care about falls: change reward.weights",
        ),
        "reward/extra/<name>/<key>/mean": MetricInfo(
            "mean of a further number that your own reward function returned beside its score, by its key; logged only"
        ),
    },
)

ACCOUNT = GlossarySection(
    title="Account of the samples",
    metrics={
        "samples/generated": MetricInfo(
            "responses sampled", "responses", "with samples/earlier = trained + filtered + dropped + kept"
        ),
        "samples/trained": MetricInfo(
            "responses that entered the loss",
            "responses",
            "close to samples/generated",
            "see samples/filtered/<reason>",
        ),
        "samples/filtered": MetricInfo(
            "responses taken out on purpose", "responses", "0 without filters", "see samples/filtered/<reason>"
        ),
        "samples/filtered/<reason>": MetricInfo(
            "responses taken out on purpose, by reason: zero_signal (no difference in the group, with "
            "algorithm.filter_groups), no_baseline, or the verdict that left them without a reward",
            "responses",
            "zero_signal as reward/zero_signal_group_ratio; verdicts 0",
            "zero_signal high: choose prompts that are solved sometimes; a verdict: as reward/invalid_ratio",
        ),
        "samples/dropped": MetricInfo(
            "responses with a signal that are not trained", "responses", "0", "see samples/dropped/<reason>"
        ),
        "samples/dropped/<reason>": MetricInfo(
            "responses with a signal that are not trained, by reason: surplus (beyond the full batch), short (a step "
            "that found too few and is skipped), nonfinite (their update was skipped, trainer.on_nonfinite)",
            "responses",
            "surplus: less than a batch; others 0",
            "surplus: draw fewer prompts at once, or set algorithm.filter_groups.keep_surplus_steps; short: raise "
            "algorithm.filter_groups.max_num_gen_batches; nonfinite: look at the batches in run_dir/failures",
        ),
        "samples/kept": MetricInfo("responses put aside for a later step", "responses", "less than a batch"),
        "samples/earlier": MetricInfo(
            "responses of the batch that an earlier step generated", "responses", "what the step before kept"
        ),
    },
)

SAMPLING = GlossarySection(
    title="Dynamic sampling",
    metrics={
        "sampling/num_gen_batches": MetricInfo(
            "rollouts of the step",
            "rollouts",
            "1 to 3",
            "near algorithm.filter_groups.max_num_gen_batches: hardly any prompt teaches; choose others",
        ),
        "sampling/prompts": MetricInfo("prompts drawn in the step", "prompts", "the batch divided by signal_share"),
        "sampling/signal_share": MetricInfo(
            "groups of the step's rollouts whose responses differ in the filter's metric",
            "share of groups",
            "falls as the policy learns the prompts",
            "see all_correct_share and none_correct_share",
        ),
        "sampling/all_correct_share": MetricInfo(
            "groups of the step's rollouts in which every response is right",
            "share of groups",
            "rises as the policy learns",
            "high from the start: harder prompts",
        ),
        "sampling/none_correct_share": MetricInfo(
            "groups of the step's rollouts in which no response is right",
            "share of groups",
            "falls as the policy learns",
            "high: easier prompts, a larger group, or a longer rollout.max_new_tokens",
        ),
        "sampling/groups_earlier": MetricInfo("groups of the batch that an earlier step generated", "groups", "0"),
        "sampling/groups_waiting": MetricInfo("groups that wait for a later step", "groups", "less than a batch"),
        "sampling/groups_expired": MetricInfo(
            "groups that were kept and became too old, over the whole run",
            "groups",
            "0",
            "draw fewer prompts at once, or raise algorithm.filter_groups.keep_surplus_steps",
        ),
        "sampling/score_shift": MetricInfo(
            "mean reward of the trained responses minus that of the generated ones: the selection's bias",
            "reward",
            "towards the middle: positive while most groups fail, negative when most succeed",
        ),
        "sampling/length_shift": MetricInfo(
            "mean length of the trained responses minus that of the generated ones: the selection's bias",
            "tokens",
            "positive where hard prompts have longer answers",
        ),
    },
)

LENGTHS = GlossarySection(
    title="Lengths",
    metrics={
        "response_length/<stat>": MetricInfo(
            "response length, end token included",
            "tokens",
            "steady or growing slowly while the reward rises",
            "longer without more reward: look at actor/grad_share_length_decile; shrinking to a few tokens: "
            + _SEE_SAMPLES,
        ),
        "response_length/clip_ratio": MetricInfo(
            "responses cut at rollout.max_new_tokens",
            "share of responses",
            "below 0.1",
            "raise rollout.max_new_tokens; cut responses seldom hold an answer",
        ),
        "prompt_length/<stat>": MetricInfo("prompt length", "tokens", "up to data.max_prompt_length"),
        "prompt_length/clip_ratio": MetricInfo(
            "prompts cut to data.max_prompt_length",
            "share of prompts",
            "0",
            "raise data.max_prompt_length, or set data.truncation to drop",
        ),
    },
)

EVALUATION = GlossarySection(
    title="Evaluation on held-out problems",
    metrics={
        "val-core/acc/mean@1": MetricInfo(
            "accuracy over all held-out problems of all sets, greedy answers; by default the best step is chosen by it",
            "share of problems",
            "rises",
            "see val-core/acc/change: is it more than noise?",
        ),
        "val-core/acc/mean@1/<bound>": MetricInfo(
            "ends of its 95 % interval, over problems like these", "share of problems"
        ),
        "val-core/acc/change": MetricInfo(
            "change of val-core/acc/mean@1 since the first evaluation of the run, problem by problem",
            "share of problems",
            "its low end above 0",
            "0 between its ends: no change can be claimed; evaluate on more problems or train longer",
        ),
        "val-core/acc/change/<bound>": MetricInfo(
            "ends of its 95 % interval; narrower than the accuracies' own, because the problems are the same",
            "share of problems",
        ),
        "val-core/<source>/acc/mean@<n>": MetricInfo(
            "accuracy on held-out problems of one set or data source, mean over n samples each; mean@1 is greedy",
            "share of problems",
            "rises",
            "flat while critic/score/mean rises: the policy fits the training prompts only; use more of them",
        ),
        "val-core/<source>/acc/pass@<n>": MetricInfo(
            "problems solved by at least one of n samples (unbiased estimate)",
            "share of problems",
            "at least mean@n",
            "falls while mean@n rises: the policy loses variety; watch actor/entropy",
        ),
        "val-core/<source>/acc/maj@<n>": MetricInfo(
            "problems whose most frequent answer among n samples is right, ties drawn by lot, expected over all ways "
            "of taking n",
            "share of problems",
            "above mean@n",
            "below mean@n: the policy agrees with itself on wrong answers; longer training on such problems",
        ),
        "val-core/<source>/reward/mean@<n>": MetricInfo(
            "mean reward of the answers to held-out problems, n per problem; @1 is greedy", "", "rises"
        ),
        "val-core/<source>/reward/best@<n>": MetricInfo(
            "highest reward among n samples of a held-out problem, expected over all ways of taking n",
            "",
            "above mean@n",
        ),
        "val-core/<source>/<figure>/<bound>": MetricInfo(
            "ends of the 95 % interval of that figure, over problems like these: docs/evaluation.md"
        ),
        "val-aux/<source>/failed_ratio": MetricInfo(
            "evaluation responses that could not be judged (time limit, error); they count as not correct",
            "share of responses",
            "0",
            "raise reward.workers.timeout_s, or repair the reward function",
        ),
        "val-aux/<source>/no_answer_ratio": MetricInfo(
            "evaluation responses without a recognisable answer", "share of responses", "below 0.2", _SEE_SAMPLES
        ),
        "val-aux/<source>/response_length/<stat>": MetricInfo(
            "length of evaluation responses", "tokens", "as response_length"
        ),
        "val-aux/<source>/response_length/clip_ratio": MetricInfo(
            "evaluation responses cut", "share of responses", "below 0.1", "raise rollout.max_new_tokens"
        ),
        "val-aux/<source>/num_problems": MetricInfo("held-out problems", "problems"),
    },
)
