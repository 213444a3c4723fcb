"""Rules of teachers, and what a teacher's folder says of its model."""

from __future__ import annotations

from collections.abc import Iterator

from mindgspo.config.distillation import TeacherSection
from mindgspo.config.huggingface_config import read_model_section
from mindgspo.config.model import ModelSection
from mindgspo.config.plan import ParallelPlan, check_reference_plan, check_same_world
from mindgspo.config.schema import ExperimentConfig
from mindgspo.errors import WeightsError
from mindgspo.text import did_you_mean, listed

KEY = "algorithm.distillation"


def teacher_model(teacher: TeacherSection, policy: ModelSection) -> ModelSection:
    """The architecture in the teacher's folder, in the policy's type. Raises WeightsError for one that is not
    implemented."""
    return read_model_section(teacher.path).model_copy(update={"dtype": policy.dtype})


def teacher_plan(teacher: TeacherSection, config: ExperimentConfig) -> ParallelPlan:
    """The plan that the teacher scores with."""
    return config.plans.scoring if teacher.plan is None else teacher.plan


def distillation_problems(config: ExperimentConfig) -> Iterator[str]:
    """Violated rules that need no file."""
    section = config.algorithm.distillation
    if section is None:
        return
    if config.algorithm.ratio_over == "turn":
        yield (
            f"{KEY}: every token has an advantage of its own, and algorithm.ratio_over=turn one ratio and one gradient "
            "per turn; remove algorithm.ratio_over"
        )
    if not section.with_rewards and config.algorithm.filter_groups.metric != "none":
        yield (
            f"{KEY}.with_rewards: false, but algorithm.filter_groups.metric "
            f"{config.algorithm.filter_groups.metric} leaves out groups by their rewards; set it to none"
        )
    names = config.data.train_names
    for number, teacher in enumerate(section.teachers):
        for name in teacher.sources if names else ():
            if name not in names:
                yield (
                    f"{KEY}.teachers[{number}].sources: {name} is no source of data.train "
                    f"({listed(names)}){did_you_mean(name, names)}"
                )
        if teacher.plan is not None:
            yield from check_same_world(config.plans.train, teacher.plan, f"{KEY}.teachers[{number}].plan")


def teacher_folder_problems(config: ExperimentConfig) -> Iterator[str]:
    """Violated rules of the models in the teachers' folders, which exist."""
    section = config.algorithm.distillation
    for number, teacher in enumerate(() if section is None else section.teachers):
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
