"""MindFormers' finetune and predict YAML as an experiment: what its tables leave to several keys at once.

What enters: one or two `Source`s. What leaves: the draft, filled. Called by `convert`; `mindrlhf` takes the model and
the tokenizer from such a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import lcm
from pathlib import Path
from typing import Any

from mindgspo.errors import ConfigError
from mindgspo.integrations.foreign_configs import mindformers_model_rows, mindformers_rows
from mindgspo.integrations.foreign_configs.apply import apply
from mindgspo.integrations.foreign_configs.draft import Draft
from mindgspo.integrations.foreign_configs.given import Given, is_on, local_path, size
from mindgspo.integrations.foreign_configs.known_models import sizes_of
from mindgspo.integrations.foreign_configs.mindformers_model_rows import CONFIG, FAMILY_KEYS, SEQ_LENGTH, architecture
from mindgspo.integrations.foreign_configs.mindformers_rows import PLAN, TOKENIZER
from mindgspo.integrations.foreign_configs.plans import (
    INFER,
    TRAIN,
    drop_what_has_no_effect,
    infer_plan_of_the_train_plan,
    spread_the_infer_plan,
    world_size,
)
from mindgspo.integrations.foreign_configs.reading import Finding
from mindgspo.integrations.foreign_configs.second_file import merge, of_plan
from mindgspo.integrations.foreign_configs.sources import Source
from mindgspo.integrations.foreign_configs.table import Fate, Table

TABLE = Table(
    name="mindformers",
    title="MindFormers",
    rows=(*mindformers_rows.ROWS, *mindformers_model_rows.ROWS),
)
_SIZES = ("data_parallel", "model_parallel", "pipeline_stage", "context_parallel", "expert_parallel")
_PLAN_KEYS = tuple(f"{PLAN}.{name}" for name in (*_SIZES, "vocab_emb_dp"))
_OF_PREDICT = (*_PLAN_KEYS, "use_parallel", "run_mode", "processor.")
_OF_NAMED = (*(f"{CONFIG}.{name}" for name in FAMILY_KEYS), "processor.")
TOKENS = ("tokenizer.eos_tokens", "tokenizer.pad_token")
_GROUP, _UPDATES, _PROMPTS_PER_UPDATE = 16, 4, 32


def fill(sources: Sequence[Source], draft: Draft) -> None:
    """The experiment of a finetune file, a predict file, or both. Raises ConfigError for two of a kind."""
    predict = [source for source in sources if is_predict(source)]
    finetune = [source for source in sources if not is_predict(source)]
    if len(predict) > 1 or len(finetune) > 1:
        mode = sources[0].reading.values.get("run_mode", "not given")
        raise ConfigError(
            f"{sources[1].path}: run_mode is {mode} in both files; give one of training and one of predict"
        )
    if finetune:
        given = apply(TABLE, finetune[0].reading, finetune[0].name, draft)
        draft.findings = [of_plan(finding, TRAIN) for finding in draft.findings]
        place_model(given, draft)
        _place_train_plan(given, draft)
        place_lengths(given, draft)
    if predict:
        _fill_predict(predict[0], draft, is_alone=not finetune)
    infer_plan_of_the_train_plan(draft)
    if finetune:
        spread_the_infer_plan(draft)
    else:
        _assume_train_plan(draft)
    _assume_batches(draft)


def is_predict(source: Source) -> bool:
    """Whether a file is one of generation."""
    return source.reading.values.get("run_mode") == "predict"


def place_model(given: Given, draft: Draft) -> None:
    """Family, folder and sizes of the model, and the tokenizer's folder."""
    family = architecture(given)
    if family is not None:
        draft.place({"model.architecture": family}, "what the layers of model.model_config have")
    elif (path := draft.get("model.path")) is not None:
        _place_sizes(str(path), draft)
    if draft.get("model.dtype") == "bfloat16":
        draft.assume("trainer.max_ratio_error", 2e-3, "model.dtype is bfloat16", "its own rounding")
    files = [given[f"{TOKENIZER}.{name}"] for name in ("vocab_file", "merges_file")]
    folders = {str(Path(str(file)).parent) for file in files if file}
    if all(files) and len(folders) == 1:
        draft.place({"tokenizer.path": local_path(folders.pop())}, f"{TOKENIZER}.vocab_file and .merges_file")
    elif len(folders) > 1:
        why = "in another folder than vocab_file: put them together"
        draft.say(Fate.NOT_BUILT, f"{TOKENIZER}.merges_file", files[1], why)


def _place_sizes(path: str, draft: Draft) -> None:
    try:
        found = sizes_of(path)
    except ValueError as error:
        draft.say(Fate.UNREADABLE, "pretrained_model_dir", path, str(error))
        return
    if found is not None:
        sizes, origin = found
        missing = {f"model.{name}": value for name, value in sizes.items() if f"model.{name}" not in draft.values}
        draft.place(missing, origin)


def place_sizes(given: Given, draft: Draft, plan: str, prefix: str = PLAN) -> None:
    """The sizes of a plan as the file gives them; one card where it says that nothing is parallel."""
    names = [name for name in _SIZES if f"{prefix}.{name}" in given]
    if not is_on(given, "use_parallel") and "use_parallel" in given:
        names = []
        draft.say(Fate.ADJUSTED, "use_parallel", False, f"{plan} is one card, whatever {prefix} says")
    for name in names:
        draft.place({f"{plan}.{name}": size(given, f"{prefix}.{name}")}, f"{prefix}.{name}")
    key = f"{prefix}.vocab_emb_dp"
    if key in given:
        draft.place({f"{plan}.vocab_emb_dp": is_on(given, key)}, key)


def _place_train_plan(given: Given, draft: Draft) -> None:
    place_sizes(given, draft, TRAIN)
    for key, target in (
        (f"{PLAN}.use_seq_parallel", "use_seq_parallel"),
        (f"{PLAN}.optimizer_shard", "optimizer_shard"),
        ("parallel.enable_parallel_optimizer", "optimizer_shard"),
    ):
        if key in given:
            draft.place({f"{TRAIN}.{target}": is_on(given, key)}, key)
    place_stages(given, draft, f"{PLAN}.micro_batch_num")
    drop_what_has_no_effect(draft)
    if "runner_config.batch_size" in given:
        draft.place(
            {"trainer.samples_per_micro_batch": size(given, "runner_config.batch_size")}, "runner_config.batch_size"
        )


def place_stages(given: Given, draft: Draft, key: str) -> None:
    """micro_batch_num of the train plan."""
    if key in given:
        draft.place({f"{TRAIN}.micro_batch_num": size(given, key)}, key)


def place_lengths(given: Given, draft: Draft) -> None:
    """Prompt and response of a file that only says how long both are together."""
    if SEQ_LENGTH not in given or draft.get("data.max_prompt_length") is not None:
        return
    longest = size(given, SEQ_LENGTH)
    prompt = max(1, min(2048, longest // 4))
    why = f"{SEQ_LENGTH} = {longest} is prompt and response together"
    draft.assume("data.max_prompt_length", prompt, why, "a quarter, at most 2048")
    draft.assume("rollout.max_new_tokens", max(1, longest - prompt), why, "the rest")


def _fill_predict(source: Source, draft: Draft, *, is_alone: bool) -> None:
    """A predict file: the plan of generation and its end tokens; the rest counts where no other file says it."""
    own = Draft()
    given = apply(TABLE, source.reading, source.name, own, with_defaults=False)
    place_model(given, own)
    joined = (*_OF_PREDICT, "model.") if is_alone else _OF_PREDICT
    merge(own, draft, joined=joined, ours=TOKENS, plan=INFER)
    place_sizes(given, draft, INFER)
    if is_alone:
        place_lengths(given, draft)


def _assume_train_plan(draft: Draft) -> None:
    """Of a predict file alone: training on the cards that it generates on."""
    for name in ("data_parallel", "model_parallel"):
        value = draft.get(f"{INFER}.{name}", 1)
        draft.assume(f"{TRAIN}.{name}", value, "no plan of training is given", "that of generation")
    rest = world_size(draft, INFER) // world_size(draft, TRAIN)
    if rest > 1:
        replicas = draft.get(f"{TRAIN}.data_parallel") * rest
        draft.assume(f"{TRAIN}.data_parallel", replicas, "no plan of training is given", "that of generation")


def _assume_batches(draft: Draft) -> None:
    """Sizes that a policy optimisation has and these files do not: the paper's group and updates per rollout."""
    micro = "trainer.samples_per_micro_batch"
    if draft.get(micro) is None:
        draft.assume(micro, 1, "no micro-batch is given", "more is faster where memory allows")
    parts = _count(draft, f"{TRAIN}.data_parallel") * _count(draft, f"{TRAIN}.micro_batch_num") * draft.get(micro)
    step = lcm(parts, _GROUP) // _GROUP
    prompts = step * -(-_PROMPTS_PER_UPDATE // step)
    replicas = _count(draft, f"{INFER}.data_parallel")
    draft.assume("algorithm.name", "gspo", "supervised training has no policy loss", "this project's own")
    why = "supervised training has no groups"
    draft.assume("rollout.num_generations", _GROUP, why, "GSPO's paper: 16")
    rounds = f"{_GROUP * prompts} responses, whole rounds of {parts}"
    draft.assume("trainer.prompts_per_mini_batch", prompts, why, rounds)
    draft.assume("rollout.prompts_per_step", lcm(_UPDATES * prompts, replicas), why, "GSPO's paper: 4 updates")


def _count(draft: Draft, key: str) -> int:
    value: Any = draft.get(key, 1)
    return value if isinstance(value, int) and value > 0 else 1


def model_of(source: Source, draft: Draft) -> None:
    """Only the model and the tokenizer of a file that another suite's file names."""
    own = Draft()
    given = apply(TABLE, source.reading, source.name, own, with_defaults=False)
    place_model(given, own)
    wanted = ("model.", "tokenizer.", "trainer.max_ratio_error")
    own.values = {target: placed for target, placed in own.values.items() if target.startswith(wanted)}
    own.findings = [_of_model(finding) for finding in own.findings]
    merge(own, draft, joined=_OF_NAMED, ours=TOKENS if is_predict(source) else (), plan=TRAIN)


def _of_model(finding: Finding) -> Finding:
    if finding.fate is Fate.ASSUMED or finding.source.startswith(("model.", "processor.")):
        return finding
    text = "of such a file MindRLHF reads the model and the tokenizer only"
    return replace(finding, fate=Fate.NOT_NEEDED, targets=(), text=text)
