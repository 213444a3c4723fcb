#!/usr/bin/env python3
"""Train the experiment of a run folder again with TRL, and draw both.

    python tools/compare_trl.py train RUN --out FOLDER [--fast] [--bf16] [--max-steps N]
    python tools/compare_trl.py plot --ours RUN [RUN ...] --theirs FOLDER [FOLDER ...] --out PICTURE.png

RUN: a run of mindgspo on one process. TRL's GRPOTrainer gets its weights, prompts in the same order, reward functions,
group, lengths, updates per rollout, clip range and optimizer; float32, no gradient checkpointing, fused AdamW. --bf16:
matrix products in bfloat16 by autocast. --fast: a compiled model and a compiled decode step over a static cache.
Evaluations go over the same held-out problems at the same steps, and are outside the seconds of a step.

FOLDER becomes a run folder that `mindgspo compare` reads, with the metrics that both have. A run that was stopped goes
on from its last checkpoint, one per evaluation. Needs `pip install mindgspo[trl]`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from mindgspo.config import ExperimentConfig, load_config
from mindgspo.data.dataset import PromptDataset, open_dataset
from mindgspo.data.stream import PromptStream
from mindgspo.errors import ConfigError, MindGSPOError
from mindgspo.io import write_file
from mindgspo.metrics import peak_rss_mb
from mindgspo.metrics.files import CONFIG_FILE, METRICS_FILE, LogFile, read_records
from mindgspo.metrics.plot_style import LIGHT, entitle, label_x, label_y, new_figure, png_bytes, style
from mindgspo.metrics.run_folder import RunRecord, read_run
from mindgspo.rewards import Candidate, Scorer
from mindgspo.tokenization import Tokenizer, load_tokenizer
from mindgspo.types import Prompt, Score, Verdict

REWARD, STEP_SECONDS, LENGTH = "critic/score/mean", "timing_s/step", "response_length/mean"
HELD_OUT, HELD_OUT_REWARD = "val-core/acc/mean@1", "val-core/reward/mean@1"
EVAL_BATCH = 32


def main() -> int:
    """Parse the command line; train or draw."""
    arguments = parse_arguments()
    try:
        if arguments.command == "plot":
            write_file(arguments.out, draw(arguments.ours, arguments.theirs))
            print(summary(arguments.ours, arguments.theirs))
        else:
            train(arguments)
    except MindGSPOError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help="train a run's experiment with TRL")
    training.add_argument("run", type=Path, help="run folder of mindgspo")
    training.add_argument("--out", type=Path, required=True, help="folder for metrics and checkpoints")
    training.add_argument("--fast", action="store_true", help="compile the model and the decode step")
    training.add_argument("--bf16", action="store_true", help="matrix products in bfloat16")
    training.add_argument("--max-steps", type=int, help="end earlier than the run")
    training.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of torch")
    plot = commands.add_parser("plot", help="draw runs of both")
    plot.add_argument("--ours", type=Path, nargs="+", required=True)
    plot.add_argument("--theirs", type=Path, nargs="+", required=True)
    plot.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


# ---- training


class RunInputs:
    """What a run of mindgspo learns from: its settings, prompts and reward functions."""

    def __init__(self, run: Path) -> None:
        self.config = load_config(run / CONFIG_FILE, check_files=False)  # its data lies prepared in the run
        check_comparable(self.config)
        self.tokenizer: Tokenizer = load_tokenizer(self.config.tokenizer, self.config.model.vocab_size)
        data = self.config.data
        self.train_set = open_dataset(run / "data" / "train", self.tokenizer, data)
        self.held_out: PromptDataset = open_dataset(run / "data" / "eval", self.tokenizer, data)
        self.scorer = Scorer(self.config.reward)
        self.scorer.start()

    def prompts(self, steps: int) -> list[Prompt]:
        """The prompts of so many steps, in the order in which the run draws them."""
        stream = PromptStream(len(self.train_set), self.config.seed, self.config.data.shuffle)
        return [self.train_set[i] for _ in range(steps) for i in stream.take(self.config.rollout.prompts_per_step)]

    def score(self, prompts: Sequence[Prompt], responses: Sequence[Sequence[int]], eos: int) -> list[Score]:
        """Scores of responses, which are token ids up to the end-of-text token, if they have one."""
        candidates = []
        for prompt, ids in zip(prompts, responses, strict=True):
            text = self.tokenizer.decode(np.array([i for i in ids if i != eos], np.int32))
            candidates.append(
                Candidate(
                    text=text,
                    gold=prompt.answer,
                    data_source=prompt.data_source,
                    index=prompt.index,
                    num_tokens=len(ids),
                    is_cut=eos not in ids,
                    extra_info=prompt.extra_info,
                )
            )
        return self.scorer.score(candidates)


def check_comparable(config: ExperimentConfig) -> None:
    """Raises ConfigError for a run whose loss or sampling GRPOTrainer computes otherwise."""
    algorithm, rollout = config.algorithm, config.rollout
    for key, value, needed in (
        ("algorithm.name", algorithm.name, "gspo"),
        ("algorithm.kl.placement", algorithm.kl.placement, "none"),
        ("algorithm.filter_groups.metric", algorithm.filter_groups.metric, "none"),
        ("rollout.top_p", rollout.top_p, 1.0),
        ("plans.train.world_size", config.plans.train.world_size, 1),
        ("warmup", config.warmup, None),
        ("optimizer.schedule", config.optimizer.schedule, "constant"),
        ("optimizer.warmup_ratio", config.optimizer.warmup_ratio, 0.0),
    ):
        if value != needed:
            raise ConfigError(f"{key}: {value!r}; the comparison needs {needed!r}")


class Recorder:
    """Writes a step's line of metrics.jsonl; evaluates in between, outside the step's seconds."""

    def __init__(self, inputs: RunInputs, folder: Path, updates: int, steps: int) -> None:
        self.inputs, self.updates, self.steps = inputs, updates, steps
        self.log = LogFile(folder / METRICS_FILE)
        self.row: dict[str, float] = {}
        self.started = 0.0

    def begin(self) -> None:
        self.started = time.perf_counter()

    def scored(self, scores: Sequence[Score], lengths: Sequence[int]) -> list[float | None]:
        values = [score.value for score in scores]
        self.row |= {
            REWARD: fmean(value for value in values if value is not None),
            LENGTH: fmean(lengths),
            "reward/correct_ratio": fmean(score.verdict is Verdict.CORRECT for score in scores),
        }
        return values

    def end(self, step: int, model: Any, processing: Any) -> None:
        self.row |= {STEP_SECONDS: time.perf_counter() - self.started, "perf/peak_rss_mb": peak_rss_mb()}
        every = self.inputs.config.eval.every
        if every and (step % every == 0 or step == self.steps):
            self.row |= self.evaluate(model, processing)
        self.log.append([{"step": step, **self.row}])
        shown = {key: round(value, 4) for key, value in self.row.items() if key in (REWARD, STEP_SECONDS, HELD_OUT)}
        print(f"step {step}/{self.steps}  {shown}", flush=True)
        self.row = {}

    def evaluate(self, model: Any, processing: Any) -> dict[str, float]:
        """One answer to each held-out problem, greedy unless the run samples them."""
        import torch

        prompts, config = list(self.inputs.held_out), self.inputs.config
        eos = processing.eos_token_id
        sampling: dict[str, Any] = {"do_sample": False}
        if config.eval.do_sample:
            sampling = {"do_sample": True, "temperature": config.eval.temperature, "top_p": 1.0, "top_k": 0}
        scores = []
        model.eval()
        for first in range(0, len(prompts), EVAL_BATCH):
            some = prompts[first : first + EVAL_BATCH]
            ids = {"input_ids": [prompt.ids.tolist() for prompt in some]}
            batch = processing.pad(ids, padding_side="left", return_tensors="pt")
            with torch.no_grad():
                found = model.generate(
                    **batch,
                    **sampling,
                    eos_token_id=eos,
                    pad_token_id=processing.pad_token_id,
                    max_new_tokens=config.rollout.max_new_tokens,
                )
            responses = [up_to(row, eos) for row in found[:, batch["input_ids"].shape[1] :].tolist()]
            scores += self.inputs.score(some, responses, eos)
        model.train()
        return {
            HELD_OUT: fmean(score.verdict is Verdict.CORRECT for score in scores),
            HELD_OUT_REWARD: fmean(score.value or 0.0 for score in scores),
        }


def up_to(ids: list[int], eos: int) -> list[int]:
    """The ids up to the first `eos`, with it."""
    return ids[: ids.index(eos) + 1] if eos in ids else ids


def train(arguments: argparse.Namespace) -> None:
    """Train with TRL, from the last checkpoint if there is one."""
    inputs = RunInputs(arguments.run)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    import transformers
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(arguments.threads)
    config = inputs.config
    rollout, optimizer, algorithm = config.rollout, config.optimizer, config.algorithm
    updates = rollout.prompts_per_step // config.trainer.prompts_per_mini_batch
    samples = config.trainer.prompts_per_mini_batch * rollout.num_generations
    steps = arguments.max_steps or config.trainer.max_steps
    prompts = inputs.prompts(steps)
    folder: Path = arguments.out
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(arguments.run / CONFIG_FILE, folder / CONFIG_FILE)
    processing = AutoTokenizer.from_pretrained(config.tokenizer.path)
    for prompt in prompts[: rollout.prompts_per_step]:
        if processing(prompt.text)["input_ids"] != prompt.ids.tolist():
            raise ConfigError(f"row {prompt.index}: transformers tokenizes its prompt in another way")
    recorder = Recorder(inputs, folder, updates, steps)
    by_text = {prompt.text: prompt for prompt in prompts}

    def reward(prompts: list[str], completion_ids: list[list[int]], **_: Any) -> list[float | None]:
        scores = inputs.score([by_text[text] for text in prompts], completion_ids, processing.eos_token_id)
        return recorder.scored(scores, [len(ids) for ids in completion_ids])

    class Clock(TrainerCallback):  # type: ignore[misc]
        """A step is a rollout and its updates."""

        def on_step_begin(self, _: Any, state: Any, control: Any, **__: Any) -> None:
            if state.global_step % updates == 0:
                recorder.begin()

        def on_step_end(self, _: Any, state: Any, control: Any, model: Any = None, **__: Any) -> None:
            if state.global_step % updates == 0:
                recorder.end(state.global_step // updates, model, processing)

    save = updates * (config.eval.every or config.trainer.save_every)
    settings = GRPOConfig(
        output_dir=str(folder / "checkpoints"),
        use_cpu=True,
        report_to="none",
        save_strategy="steps",
        save_steps=save,
        save_total_limit=1,
        importance_sampling_level="sequence",
        loss_type="grpo",
        beta=0.0,
        epsilon=algorithm.clip_low,
        epsilon_high=algorithm.clip_high,
        per_device_train_batch_size=samples,
        gradient_accumulation_steps=1,
        steps_per_generation=updates,
        num_generations=rollout.num_generations,
        max_completion_length=rollout.max_new_tokens,
        temperature=rollout.temperature,
        top_p=1.0,
        top_k=0,
        learning_rate=optimizer.lr,
        lr_scheduler_type="constant",
        adam_beta1=optimizer.beta1,
        adam_beta2=optimizer.beta2,
        adam_epsilon=optimizer.eps,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.max_grad_norm,
        optim="adamw_torch_fused",
        max_steps=steps * updates,
        logging_steps=updates,
        disable_tqdm=True,
        seed=config.seed,
        shuffle_dataset=False,
        dataloader_pin_memory=False,
        gradient_checkpointing=False,
        bf16=arguments.bf16,
        torch_compile=arguments.fast,
        cache_implementation="static" if arguments.fast else None,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(config.model.path, dtype=torch.float32),
        reward_funcs=reward,
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": [prompt.text for prompt in prompts]}),
        processing_class=processing,
        callbacks=[Clock()],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    if arguments.fast:
        compile_decoding(trainer)
    is_continued = any((folder / "checkpoints").glob("checkpoint-*"))
    if is_continued:
        done = max(int(path.name.split("-")[1]) for path in (folder / "checkpoints").glob("checkpoint-*")) // updates
        kept = [row for row in read_records(folder / METRICS_FILE) if row["step"] <= done]
        write_file(folder / METRICS_FILE, "".join(json.dumps(row) + "\n" for row in kept).encode())
    else:
        LogFile(folder / METRICS_FILE).append([{"step": 0, **recorder.evaluate(trainer.model, processing)}])
    trainer.train(resume_from_checkpoint=is_continued)
    inputs.scorer.close()


def compile_decoding(trainer: Any) -> None:
    """Let generate() compile its decode step, which it does on accelerators alone unless a private flag is set."""
    from transformers import CompileConfig

    compiling = CompileConfig(mode="default", fullgraph=False, dynamic=False)
    compiling._compile_all_devices = True
    trainer.generation_config.disable_compile = False
    trainer.generation_config.compile_config = compiling


# ---- pictures


def seconds_by_step(run: RunRecord) -> dict[int, float]:
    """Seconds of training until each step, evaluations not counted; 0 at step 0."""
    series = run.series(STEP_SECONDS)
    return {0: 0.0, **dict(zip(series.steps, np.cumsum(series.values).tolist(), strict=True))}


def draw(ours: Sequence[Path], theirs: Sequence[Path]) -> bytes:
    """Reward and held-out accuracy, over steps and over seconds."""
    sides = {"mindgspo": [read_run(path) for path in ours], "TRL": [read_run(path) for path in theirs]}
    figure = new_figure(LIGHT, 11, 7)
    panels = figure.subplots(2, 2)
    for row, (metric, title) in enumerate(((REWARD, "Reward of training responses"), (HELD_OUT, "Held-out accuracy"))):
        for column, unit in enumerate(("training step", "minutes of training")):
            axes = panels[row][column]
            style(axes, LIGHT)
            for (name, runs), colour in zip(sides.items(), LIGHT.series, strict=False):
                for number, run in enumerate(runs):
                    series, seconds = run.series(metric), seconds_by_step(run)
                    x = series.steps if column == 0 else [seconds[step] / 60 for step in series.steps]
                    axes.plot(x, series.values, color=colour, linewidth=1.4, alpha=0.8, label=None if number else name)
            entitle(axes, LIGHT, title, "one line per run")
            label_x(axes, LIGHT, unit)
            label_y(axes, LIGHT, "reward" if row == 0 else "share of problems")
            axes.legend(frameon=False)
    return png_bytes(figure, LIGHT)


def summary(ours: Sequence[Path], theirs: Sequence[Path]) -> str:
    """JSON: of each side the seconds of the steps that all runs have, without the first, which compiles; first and last
    held-out accuracy by run; and peak memory."""
    sides = {name: [read_run(path) for path in paths] for name, paths in (("mindgspo", ours), ("trl", theirs))}
    common = min(run.series(STEP_SECONDS).steps[-1] for runs in sides.values() for run in runs)
    found: dict[str, Any] = {"steps": f"2 to {common}"}
    for name, runs in sides.items():
        until = [seconds_by_step(run) for run in runs]
        accuracy = [run.series(HELD_OUT).values for run in runs]
        found[name] = {
            "seconds": round(fmean(seconds[common] - seconds[1] for seconds in until), 2),
            "held_out_first": [round(values[0], 4) for values in accuracy],
            "held_out_last": [round(values[-1], 4) for values in accuracy],
            "peak_rss_mb": round(max(max(run.series("perf/peak_rss_mb").values) for run in runs)),
        }
    found["ratio_of_seconds"] = round(found["trl"]["seconds"] / found["mindgspo"]["seconds"], 3)
    return json.dumps(found, indent=2)


if __name__ == "__main__":
    sys.exit(main())
