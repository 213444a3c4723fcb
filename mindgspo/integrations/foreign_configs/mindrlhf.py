"""MindRLHF's GRPO YAML as an experiment: what its table leaves to several keys at once.

What enters: a `Source` of MindRLHF and those of the MindFormers files that it names, as far as they are given. What
leaves: the draft, filled. Called by `convert`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mindgspo.errors import ConfigError
from mindgspo.integrations.foreign_configs import mindformers, mindrlhf_rows
from mindgspo.integrations.foreign_configs.apply import apply
from mindgspo.integrations.foreign_configs.draft import Draft
from mindgspo.integrations.foreign_configs.given import Given, is_on, size
from mindgspo.integrations.foreign_configs.mindrlhf_values import ACTOR, GENERATE, RL
from mindgspo.integrations.foreign_configs.plans import INFER, TRAIN, drop_what_has_no_effect, spread_the_infer_plan
from mindgspo.integrations.foreign_configs.sources import Source, read_source
from mindgspo.integrations.foreign_configs.table import Fate, Table
from mindgspo.text import divisors

TABLE = Table(name="mindrlhf", title="MindRLHF", rows=mindrlhf_rows.ROWS)
_SIZES = ("data_parallel", "model_parallel", "pipeline_stage", "context_parallel", "expert_parallel")


def fill(sources: Sequence[Source], draft: Draft) -> None:
    """The experiment that the first file describes; the others are the MindFormers files that it names."""
    own = sources[0]
    given = apply(TABLE, own.reading, own.name, draft)
    named = list(sources[1:]) or _named_files(given, own, draft)
    for source in sorted(named, key=mindformers.is_predict):
        mindformers.model_of(source, draft)
    draft.assume("swap.enabled", True, "MindRLHF keeps on the device only what a phase reads")
    draft.assume("algorithm.name", "grpo", "MindRLHF's loss", "for GSPO: algorithm.name=gspo, no clip range and no KL")
    _place_plan(given, draft, TRAIN, f"{ACTOR}.parallel_config")
    _place_plan(given, draft, INFER, f"{GENERATE}.parallel_config")
    _place_train_plan(given, draft)
    spread_the_infer_plan(draft)
    _place_batches(given, draft)
    key = f"{GENERATE}.max_num_seqs"
    if key in given:
        draft.place({"rollout.slots": size(given, key) * draft.get(f"{INFER}.data_parallel")}, f"{key} x replicas")


def _named_files(given: Given, own: Source, draft: Draft) -> list[Source]:
    """The MindFormers files that the configuration names, as far as they are there: beside it, or from here."""
    found: dict[Path, Source] = {}
    for key in (f"{ACTOR}.model_config", f"{GENERATE}.model_config"):
        name = given[key]
        if not isinstance(name, str) or not name:
            continue
        if len(name) > 200:
            draft.say(Fate.UNREADABLE, key, name, "no path: longer than 200 characters")
            continue
        places = (own.path.parent / name, Path(name))
        path = next((place for place in places if place.is_file()), None)
        if path is None:
            draft.say(Fate.UNREADABLE, key, name, "not there; give the file as a further FILE, or set `model` yourself")
            continue
        try:
            found.setdefault(path.resolve(), read_source(path, "mindformers"))
        except ConfigError as error:
            draft.say(Fate.UNREADABLE, key, name, str(error))
    return list(found.values())


def _place_plan(given: Given, draft: Draft, plan: str, prefix: str) -> None:
    for name in _SIZES:
        draft.place_from(given, f"{prefix}.{name}", f"{plan}.{name}", size(given, f"{prefix}.{name}"))
    key = f"{prefix}.vocab_emb_dp"
    if key in given or plan == TRAIN:
        draft.place_from(given, key, f"{plan}.vocab_emb_dp", is_on(given, key))


def _place_train_plan(given: Given, draft: Draft) -> None:
    prefix = f"{ACTOR}.parallel_config"
    for key, target in (
        (f"{prefix}.use_seq_parallel", "use_seq_parallel"),
        (f"{ACTOR}.enable_parallel_optimizer", "optimizer_shard"),
    ):
        draft.place_from(given, key, f"{TRAIN}.{target}", is_on(given, key))
    key = f"{prefix}.micro_batch_num"
    draft.place_from(given, key, f"{TRAIN}.micro_batch_num", size(given, key))
    drop_what_has_no_effect(draft)


def _place_batches(given: Given, draft: Draft) -> None:
    """Prompts of a step, and the nearest number of whole groups to the samples of an update."""
    replicas = size(given, f"{GENERATE}.parallel_config.data_parallel")
    prompts = size(given, f"{RL}.chunk_size") * replicas * size(given, f"{RL}.num_rollouts")
    origin = f"{RL}.chunk_size x {GENERATE}.parallel_config.data_parallel x {RL}.num_rollouts"
    draft.place({"rollout.prompts_per_step": prompts}, origin)
    micro = size(given, f"{RL}.batch_size")
    draft.place({"trainer.samples_per_micro_batch": micro}, f"{RL}.batch_size")
    group = draft.get("rollout.num_generations", 8)
    parts = draft.get(f"{TRAIN}.data_parallel", 1) * draft.get(f"{TRAIN}.micro_batch_num", 1)
    samples = micro * parts
    legal = [number for number in divisors(prompts) if number * group % samples == 0]
    chosen = min(legal or [prompts], key=lambda number: abs(number * group - samples))
    draft.place({"trainer.prompts_per_mini_batch": chosen}, f"{RL}.batch_size x replicas x micro_batch_num")
    if chosen * group != samples:
        text = f"an update there takes {samples} responses; here whole groups: {chosen} x {group} = {chosen * group}"
        draft.say(Fate.ADJUSTED, "trainer.prompts_per_mini_batch", f"{samples} / {group}", text)
