"""Rules of teachers, and what a teacher's folder says of its model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mindgspo.config.deployment_rules import address_problems
from mindgspo.config.distillation import DistillationSection, TeacherSection
from mindgspo.config.huggingface_config import read_model_section
from mindgspo.config.model import ModelSection
from mindgspo.config.plan import ParallelPlan, check_reference_plan, check_same_world
from mindgspo.config.schema import ExperimentConfig
from mindgspo.errors import WeightsError
from mindgspo.text import did_you_mean, listed

KEY = "algorithm.distillation"


def local_teachers(config: ExperimentConfig) -> list[TeacherSection]:
    """The teachers on the cards that train."""
    section = config.algorithm.distillation
    return [] if section is None else [teacher for teacher in section.teachers if teacher.path is not None]


def teacher_model(teacher: TeacherSection, policy: ModelSection) -> ModelSection:
    """The architecture in the teacher's folder, in the policy's type. Raises WeightsError for one that is not
    implemented."""
    assert teacher.path is not None, "a teacher behind a server"
    return read_model_section(teacher.path).model_copy(update={"dtype": policy.dtype})


def teacher_plan(teacher: TeacherSection, config: ExperimentConfig) -> ParallelPlan:
    """The plan that the teacher scores with."""
    return config.plans.scoring if teacher.plan is None else teacher.plan


def distillation_problems(config: ExperimentConfig) -> Iterator[str]:
    """Violated rules that need no file."""
    section = config.algorithm.distillation
    if section is None:
        return
    if config.algorithm.ratio_over == "turn" and section.loss == "k1":
        yield (
            f"{KEY}: every token has an advantage of its own, and algorithm.ratio_over=turn one ratio and one gradient "
            f"per turn; remove algorithm.ratio_over, or set {KEY}.loss=top_k"
        )
    if not section.with_rewards and config.algorithm.filter_groups.metric != "none":
        yield (
            f"{KEY}.with_rewards: false, but algorithm.filter_groups.metric "
            f"{config.algorithm.filter_groups.metric} leaves out groups by their rewards; set it to none"
        )
    if section.loss == "top_k":
        yield from _top_k_problems(section, config.model.vocab_size)
    names = config.data.train_names
    for number, teacher in enumerate(section.teachers):
        yield from _place_problems(f"{KEY}.teachers[{number}]", teacher, config.rollout.temperature)
        for name in teacher.sources if names else ():
            if name not in names:
                yield (
                    f"{KEY}.teachers[{number}].sources: {name} is no source of data.train "
                    f"({listed(names)}){did_you_mean(name, names)}"
                )
        if teacher.plan is not None and teacher.path is not None:
            yield from check_same_world(config.plans.train, teacher.plan, f"{KEY}.teachers[{number}].plan")


def _place_problems(key: str, teacher: TeacherSection, temperature: float) -> Iterator[str]:
    """A teacher is either a folder or a server; vLLM takes log-probs of given ids from the logits as they are."""
    if (teacher.path is None) == (teacher.url is None):
        given = "neither path nor url is" if teacher.path is None else "both path and url are"
        yield f"{key}: {given} given; set path to a model's folder, or url to the address of a server that has it"
    if teacher.url is None:
        for name in ("api", "api_key_file"):
            if getattr(teacher, name) != TeacherSection.model_fields[name].default:
                yield f"{key}.{name}: is read with url alone; remove it"
        return
    yield from address_problems(f"{key}.url", teacher.url, key_file=f"{key}.api_key_file")
    if teacher.plan is not None:
        yield f"{key}.plan: a server has cards of its own; remove it"
    if temperature != 1:
        yield (
            f"{key}.url: servers return log-probs of given ids at temperature 1 only, and rollout.temperature is "
            f"{temperature:g}; set it to 1, or give the teacher by path"
        )


def _top_k_problems(section: DistillationSection, vocab_size: int) -> Iterator[str]:
    if section.top_k > vocab_size:
        yield f"{KEY}.top_k: {section.top_k:,} of a vocabulary of {vocab_size:,} tokens; nearest legal: {vocab_size}"
    taught = Counter(source for teacher in section.teachers for source in set(teacher.sources) or {""})
    for source, count in taught.items():
        if count > 1:
            yield (
                f"{KEY}.teachers: {count} teach {source or 'the sources that none names'}, and loss top_k takes one, "
                "because the likeliest tokens of a mixture are not known from those of its parts; give them different "
                f"sources, or set {KEY}.loss=k1"
            )


def teacher_folder_problems(config: ExperimentConfig) -> Iterator[str]:
    """Violated rules of the models in the teachers' folders, which exist."""
    section = config.algorithm.distillation
    for number, teacher in enumerate(() if section is None else section.teachers):
        if teacher.path is None:
            continue
        key = f"{KEY}.teachers[{number}]"
        try:
            model = teacher_model(teacher, config.model)
        except WeightsError as error:
            yield f"{key}.path: {error}"
            continue
        if model.vocab_size < config.model.vocab_size:
            yield (
                f"{key}.path: {teacher.path} has vocab_size {model.vocab_size} and the policy "
                f"{config.model.vocab_size}, so that the policy may sample tokens that the teacher does not have; "
                "choose one of the same vocabulary"
            )
        longest = config.data.max_prompt_length + config.rollout.max_new_tokens
        if model.max_position_embeddings < longest:
            yield (
                f"{key}.path: {teacher.path} has {model.max_position_embeddings} positions for prompts and responses "
                f"of up to {longest} tokens; lower rollout.max_new_tokens, or choose another"
            )
        yield from check_reference_plan(f"{key}.plan", teacher_plan(teacher, config), model)
