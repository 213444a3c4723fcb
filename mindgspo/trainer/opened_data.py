"""The data sets of an experiment: prepared where need be, opened, every row of them judged readable.

What enters: the sections of `data`, a tokenizer, the reward functions. What leaves: `PromptDataset`s. Called by
`build`, and by `measure` for the rows of `mindgspo eval`. Rank 0 prepares while the others wait.
"""

from __future__ import annotations

from pathlib import Path

from mindgspo.config import DataSourceSection, ExperimentConfig
from mindgspo.data import PromptDataset, open_dataset, prepare_dataset
from mindgspo.errors import ConfigError, DataError
from mindgspo.rewards import Scorer
from mindgspo.tokenization import Tokenizer
from mindgspo.trainer.inputs import HELD_OUT_SEED
from mindgspo.trainer.ranks import first_rank_first


def judged_dataset(
    config: ExperimentConfig,
    source: DataSourceSection,
    tokenizer: Tokenizer,
    scorer: Scorer,
    folder: Path,
    *,
    seed: int,
    new_run: bool = True,
) -> PromptDataset:
    """Open a prepared folder, or prepare the raw rows into `folder` first; every row can be rewarded."""
    if source.format == "prepared":
        assert source.path is not None
        rows = open_dataset(source.path, tokenizer, config.data, max_rows=source.max_rows)
    else:
        first_rank_first(lambda: _prepare(config, source, tokenizer, folder, seed=seed, new_run=new_run))
        rows = open_dataset(folder, tokenizer, config.data)
    try:
        scorer.check_rows(list(rows))
    except DataError as error:
        raise DataError(f"{source.path or folder}: {error}") from error
    return rows


def _prepare(
    config: ExperimentConfig,
    source: DataSourceSection,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    seed: int,
    new_run: bool,
) -> None:
    show = config.logging.progress
    try:
        prepare_dataset(source, config.data, tokenizer, folder, seed=seed, show_progress=show)
    except DataError:
        # Left by a start that failed with other settings: nothing was ever trained on it.
        if not new_run or not folder.is_dir():
            raise
        prepare_dataset(source, config.data, tokenizer, folder, seed=seed, force=True, show_progress=show)


def open_eval_sets(
    config: ExperimentConfig, tokenizer: Tokenizer, scorer: Scorer, folder: Path, *, new_run: bool
) -> dict[str, PromptDataset]:
    """The held-out problems by set; sets that have names are prepared in folders of their own."""
    return {
        name: judged_dataset(
            config,
            source,
            tokenizer,
            scorer,
            folder / name if config.data.names_eval_sets else folder,
            seed=HELD_OUT_SEED,
            new_run=new_run,
        )
        for name, source in config.data.eval_sets.items()
    }


def check_distinct_prompts(config: ExperimentConfig, num_rows: int) -> None:
    """A prompt that comes twice in one draw would be sampled with the same random numbers, hence counted double. Raises
    ConfigError; num_rows: of data.train."""
    for key, prompts in (
        ("rollout.prompts_per_step", config.rollout.prompts_per_step),
        ("algorithm.filter_groups.prompts_per_draw", config.algorithm.filter_groups.prompts_per_draw),
    ):
        if prompts is None or prompts <= num_rows:
            continue
        raise ConfigError(
            f"{key}: {prompts} different prompts cannot be drawn from {num_rows} rows of "
            f"data.train; largest legal: {num_rows}"
        )
