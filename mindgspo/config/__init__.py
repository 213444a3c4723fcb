"""YAML in, one frozen `ExperimentConfig` out. Imports neither MindSpore nor numpy."""

from mindgspo.config.algorithm import (
    AdvantageSection,
    AlgorithmSection,
    FilterGroupsSection,
    KLSection,
    RolloutCorrectionSection,
)
from mindgspo.config.data import ColumnsSection, DataSection, DataSourceSection, EvalSection, TokenizerSection
from mindgspo.config.load import (
    ModelAndPlans,
    config_mapping,
    dotted_items,
    dump_config,
    load_config,
    load_mapping,
    load_model_and_plans,
    resolve,
    with_recipe,
)
from mindgspo.config.model import ModelSection
from mindgspo.config.notes import notes
from mindgspo.config.plan import ParallelPlan, check_infer_plan, check_train_plan
from mindgspo.config.reward import RewardSection
from mindgspo.config.schema import (
    ExperimentConfig,
    LoggingSection,
    OptimizerSection,
    PlansSection,
    RolloutSection,
    TrainerSection,
    WarmupSection,
)
from mindgspo.config.summary import batch_table, planned_steps
