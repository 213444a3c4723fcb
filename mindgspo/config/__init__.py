"""Door of the configuration room: YAML in, one frozen `ExperimentConfig` out. Imports neither MindSpore nor
numpy."""

from mindgspo.config.algorithm_section import AdvantageSection, AlgorithmSection, KLSection, RolloutCorrectionSection
from mindgspo.config.data_section import ColumnsSection, DataSection, DataSourceSection, TokenizerSection
from mindgspo.config.eval_section import EvalSection
from mindgspo.config.filter_section import FilterGroupsSection
from mindgspo.config.load import config_mapping, dump_config, load_config, load_mapping, resolve, with_recipe
from mindgspo.config.model_and_plans import ModelAndPlans, load_model_and_plans
from mindgspo.config.model_section import ModelSection
from mindgspo.config.notes import notes
from mindgspo.config.optimizer_section import OptimizerSection
from mindgspo.config.plan import ParallelPlan, check_infer_plan, check_train_plan
from mindgspo.config.reward_section import RewardSection
from mindgspo.config.rollout_section import RolloutSection
from mindgspo.config.schema import ExperimentConfig, LoggingSection, PlansSection
from mindgspo.config.summary import batch_table, planned_steps
from mindgspo.config.trainer_section import TrainerSection
from mindgspo.config.warmup_section import WarmupSection

__all__ = [
    "AdvantageSection",
    "AlgorithmSection",
    "ColumnsSection",
    "DataSection",
    "DataSourceSection",
    "EvalSection",
    "ExperimentConfig",
    "FilterGroupsSection",
    "KLSection",
    "LoggingSection",
    "ModelAndPlans",
    "ModelSection",
    "OptimizerSection",
    "ParallelPlan",
    "PlansSection",
    "RewardSection",
    "RolloutCorrectionSection",
    "RolloutSection",
    "TokenizerSection",
    "TrainerSection",
    "WarmupSection",
    "batch_table",
    "check_infer_plan",
    "check_train_plan",
    "config_mapping",
    "dump_config",
    "load_config",
    "load_mapping",
    "load_model_and_plans",
    "notes",
    "planned_steps",
    "resolve",
    "with_recipe",
]
