"""`mindgspo init`: combines the choices, writes the file, and reports in five lines what was chosen and why."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from mindgspo.config import ModelSection, TokenizerSection, load_config
from mindgspo.config.data import DataSourceSection
from mindgspo.config.hub import Fetch, hub_names, hub_path
from mindgspo.config.huggingface_config import read_model_section
from mindgspo.config.load import MOST_BYTES
from mindgspo.config.lora import LoraSection, narrowest_target
from mindgspo.config.model import FAMILIES
from mindgspo.config.yaml_dialect import parse_document, write_document
from mindgspo.errors import DataError
from mindgspo.init.lengths import MULTIPLE, Lengths, measure
from mindgspo.init.plans import UPDATES, Fit, Hardware, fitting, prompts_per_step
from mindgspo.init.rewarding import Rewarding, choose_reward
from mindgspo.init.rows import AS_THEY_ARE, RowAccount, Unread, account_for_rows, held_out_keys, rows_text, write_rows
from mindgspo.io import check_is_new, write_new_file
from mindgspo.planner.command import peak_text
from mindgspo.planner.rank_work import FLOAT, trained_bytes, whole_bytes
from mindgspo.planner.time.estimate import seconds_text
from mindgspo.text import counted, either, printable
from mindgspo.tokenization import load_tokenizer
from mindgspo.tokenization.tokenizer import tokenizer_section_of

_GROUP = 8  # responses per prompt
_WIDTH = 110
_FEWEST_STEPS, _EVALUATIONS = 20, 4
LEARNING_RATES = ((1_000_000_000, 1e-6), (100_000_000, 5e-6), (10_000_000, 1e-5), (0, 5e-5))
"""(parameters from, peak): 1e-6 is usual for billions, 5e-5 was measured with the smallest; those between go by the
width of the model (docs/tuning.md)."""
LORA_RATE = 10
"""Learning rate of adapters, as a multiple of that of all weights."""
_RANK = 16  # of adapters, if all targets are as wide
_BFLOAT16_RATIO_ERROR = 2e-3  # rounding alone makes the first ratio differ from 1 by that


@dataclass(frozen=True, slots=True, kw_only=True)
class InitRequest:
    """Options of the command line."""

    model: Path
    data: Path
    eval: Path | None = None
    question: str | None = None
    answer: str | None = None
    reward: str | None = None
    cards: int | None = None
    device: Literal["CPU", "Ascend"] | None = None
    """None: Ascend if cards are given, else CPU."""
    memory_gb: float | None = None
    """Memory of one card; on CPU, of the machine. None: 64, or what the machine has."""
    lora: bool = False
    """Whether adapters are trained, and no weight of the model."""
    tokenizer: Path | None = None
    """None: the model's."""
    eos_tokens: tuple[str, ...] = ()
    """Used instead of those that the folders name."""
    out: Path | None = None
    """None: <model>-<data>.yaml in the current folder."""

    @property
    def machine(self) -> Hardware:
        """Hardware of the run."""
        device = self.device or ("CPU" if self.cards is None else "Ascend")
        return Hardware(device=device, cards=self.cards or 1)

    @property
    def name(self) -> str:
        """Name of the experiment: the file's, else one of model and data."""
        text = self.out.stem if self.out else f"{self.model.absolute().name}-{self.data.stem}"
        return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._") or "experiment"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Data:
    """The rows as a run reads them."""

    train: DataSourceSection
    eval: DataSourceSection
    to_write: tuple[tuple[RowAccount, dict[Path, frozenset[str]]], ...]
    """Files that must be written first."""
    train_rows: int
    """Number of different questions to train on."""
    repeated: int
    """Rows whose question occurs earlier."""
    eval_rows: int
    """Rows to evaluate on."""
    shared: int
    """Questions that are in both."""


def write_new_experiment(request: InitRequest) -> Iterator[str]:
    """Write the experiment and, without a file of held-out rows, the split rows beside it; yields five lines about it.

    Raises the errors of `mindgspo.errors`; then nothing is written.
    """
    out = request.out or Path(f"{request.name}.yaml")
    check_is_new(out)
    machine, local = request.machine, _fetched(request)
    model = read_model_section(local.model.absolute())
    if request.lora:
        model = model.model_copy(update={"lora": _adapters(model)})
    section = tokenizer_section_of(local.model, local.tokenizer or local.model, local.eos_tokens)
    tokenizer = load_tokenizer(section, model.vocab_size)
    accounts = [
        account_for_rows(
            path, question=request.question, answer=request.answer, keeps_others=request.reward is not None
        )
        for path in (local.data.absolute(), *([local.eval.absolute()] if local.eval else []))
    ]
    rewarding = choose_reward(accounts[0], request.reward)
    accounts = [account.without(account.unread.get(rewarding.function, Unread())) for account in accounts]
    data = _data(accounts, out)
    lengths = measure(
        accounts[0].measured,
        rewarding.instruction,
        tokenizer,
        device=machine.device,
        positions=model.max_position_embeddings,
    )
    base = _experiment(request, machine, model, section, data, rewarding, lengths)
    fit = fitting(str(request.model), base, machine)
    lines = _lines(request, machine, model, accounts[0], data, rewarding, lengths, fit)
    text = commented_document(
        _title(out, lines), hub_names(fit.mapping), _comments(machine, model, data, rewarding, lengths)
    )
    if len(text.encode()) > MOST_BYTES:
        raise DataError(
            f"{request.data}: the names of its columns make an experiment of more than {MOST_BYTES:,} bytes; leave "
            "out those that your reward does not read"
        )
    for account, files in data.to_write:
        write_rows(account, files)
    write_new_file(out, text.encode())
    load_config(out, fetch=Fetch.INPUTS)  # as a run reads it
    yield from (f"{name:<8} {said}" for name, said in lines.items())
    yield f"{'next':<8} mindgspo check {out} && mindgspo run {out}"


def _fetched(request: InitRequest) -> InitRequest:
    """The request with what a hub's cache has of its names, but no weights."""
    model, data = hub_path(request.model, fetch=Fetch.INPUTS), hub_path(request.data, "data")
    return replace(request, model=model, data=data, eval=request.eval and hub_path(request.eval, "data"))


def _data(accounts: list[RowAccount], out: Path) -> _Data:
    """The given files, if a run can read them; otherwise, or if rows are to be held out, new files in a folder beside
    the experiment. Raises ConfigError if that exists, DataError for too few rows."""
    folder = out.absolute().with_name(f"{out.stem}_data")
    files = {name: folder / f"{name}.jsonl" for name in ("train", "eval")}
    train, held_out = accounts[0], accounts[-1]
    to_write: list[tuple[RowAccount, dict[Path, frozenset[str]]]] = []
    if len(accounts) == 1:
        keys = held_out_keys(train)
        trained, num_eval = train.prompts - keys, train.num_with(keys)
        to_write.append((train, {files["train"]: trained, files["eval"]: keys}))
        sources = [train.source.model_copy(update={"path": file}) for file in files.values()]
    else:
        trained, num_eval, sources = train.prompts, held_out.num_rows, []
        for account, file in zip(accounts, files.values(), strict=True):
            is_read = account.num_unusable == 0 and account.path.suffix in AS_THEY_ARE
            if not is_read:
                to_write.append((account, {file: account.prompts}))
            sources.append(account.source if is_read else account.source.model_copy(update={"path": file}))
        if held_out.prompts <= train.prompts:
            raise DataError(
                f"--eval: {held_out.path}: every question is in {train.path}, too; give others, or leave it out"
            )
    if to_write:
        check_is_new(folder)
    num_repeated = train.num_with(trained) - len(trained)
    return _Data(
        train=sources[0].model_copy(update={"dedup": num_repeated > 0}),
        eval=sources[1],
        to_write=tuple(to_write),
        train_rows=len(trained),
        repeated=num_repeated,
        eval_rows=num_eval,
        shared=len(train.prompts & held_out.prompts) if held_out is not train else 0,
    )


def _experiment(
    request: InitRequest,
    machine: Hardware,
    model: ModelSection,
    tokenizer: TokenizerSection,
    data: _Data,
    rewarding: Rewarding,
    lengths: Lengths,
) -> dict[str, Any]:
    """The experiment without plans, slots and micro-batch."""
    prompts = prompts_per_step(machine, data.train_rows)
    steps_per_epoch = data.train_rows // prompts
    epochs = -(-_FEWEST_STEPS // steps_per_epoch)
    every = max(1, epochs * steps_per_epoch // _EVALUATIONS)
    is_rounded = machine.device == "Ascend"
    return {
        "experiment": request.name,
        "device": machine.device,
        **({} if request.memory_gb is None else {"memory": {"device_gb": request.memory_gb}}),
        "model": {
            "path": str(model.path),
            "dtype": "bfloat16" if is_rounded else "float32",
            **({} if model.lora is None else {"lora": _given(model.lora)}),
        },
        "tokenizer": {
            **({} if tokenizer.path == model.path else {"path": str(tokenizer.path)}),
            "eos_tokens": list(tokenizer.eos_tokens),
            "pad_token": tokenizer.pad_token,
        },
        "data": {
            "train": _source(data.train),
            "eval": _source(data.eval),
            "instruction_suffix": rewarding.instruction or "",
            "max_prompt_length": lengths.prompt,
            "truncation": "drop",
        },
        "rollout": {
            "prompts_per_step": prompts,
            "num_generations": _GROUP,
            "max_new_tokens": lengths.response,
        },
        "algorithm": {"name": "gspo"},
        "reward": {"functions": [rewarding.function]},
        "optimizer": {"lr": usual_learning_rate(model)},
        "trainer": {
            "epochs": epochs,
            "prompts_per_mini_batch": prompts // UPDATES,
            "packing": True,
            "length_multiple": MULTIPLE[machine.device],
            "save_every": every,
            **({"max_ratio_error": _BFLOAT16_RATIO_ERROR} if is_rounded else {}),
        },
        "eval": {"every": every},
    }


def usual_learning_rate(model: ModelSection) -> float:
    """The usual learning rate for the model's number of parameters, or for its adapters."""
    lr = next(lr for size, lr in LEARNING_RATES if whole_bytes(model.base) // FLOAT >= size)
    return lr if model.lora is None else float(f"{LORA_RATE * lr:g}")


def _adapters(model: ModelSection) -> LoraSection:
    """The usual adapters: of all projections; of a mixture of experts those of attention, which are few."""
    lora = LoraSection(targets=("all",) if model.num_experts is None else ("attention",))
    rank = min(_RANK, narrowest_target(model, lora))
    return lora.model_copy(update={"rank": rank, "alpha": 2.0 * rank})


def _given(lora: LoraSection) -> dict[str, Any]:
    """What somebody may want to change."""
    return {"rank": lora.rank, "alpha": lora.alpha, "targets": list(lora.targets)}


def _source(source: DataSourceSection) -> dict[str, Any]:
    """Without what is a default."""
    return source.model_dump(mode="json", exclude_defaults=True)


def _lines(
    request: InitRequest,
    machine: Hardware,
    model: ModelSection,
    account: RowAccount,
    data: _Data,
    rewarding: Rewarding,
    lengths: Lengths,
    fit: Fit,
) -> dict[str, str]:
    config = fit.config
    size = whole_bytes(model.base) / FLOAT
    adapters = ""
    if model.lora is not None:
        share = trained_bytes(model) / whole_bytes(model)
        rank = model.lora.rank
        adapters = f"; adapters of rank {rank} are trained, {100 * share:.1f} % of the weights, the rest is frozen"
    number = f"{size / 1e9:.2f} G" if size >= 1e9 else f"{size / 1e6:.2f} M"
    family = FAMILIES[model.architecture].huggingface_class.removesuffix("ForCausalLM")
    shared = f", {data.shared} of them in both" if data.shared else ""
    left_out = f", {counted(data.repeated, 'repeated one')} left out" if data.repeated else ""
    left_out += f", {account.num_unusable} unusable left out ({account.problem})" if account.num_unusable else ""
    written = f", written to {next(iter(data.to_write[0][1])).parent}" if data.to_write else ""
    function = config.reward.functions[0].rpartition("/")[2]
    plans, trainer, steps = config.plans, config.trainer, data.train_rows // config.rollout.prompts_per_step
    tokens = trainer.max_tokens_per_micro_batch
    where = "one process on the CPU" if machine.device == "CPU" else "1 Ascend card"
    if machine.cards > 1:
        where = f"{machine.cards} {'CPU processes' if machine.device == 'CPU' else 'Ascend cards'}: "
        where += f"train {plans.train}, infer {plans.infer} (data x model x pipeline)"
    saving = f", recompute {plans.train.recompute}" if plans.train.recompute != "none" else ""
    saving += ", weights leave the card between phases" if config.swap.enabled else ""
    pace = "" if fit.seconds is None else f"; a step is expected to take {seconds_text(fit.seconds)} s"
    ends = either(config.tokenizer.eos_tokens)
    return {
        "model": f"{family} of {number} parameters, {request.model}{adapters}; responses end at {ends}",
        "data": (
            f"{data.train_rows} questions to train on, {data.eval_rows} held out{shared}{left_out}{written}; "
            f"{rows_text(account)}; reward {function} ({rewarding.why})"
        ),
        "lengths": lengths.text,
        "plan": (
            f"{where}{saving}; a step draws {config.rollout.prompts_per_step} prompts x {_GROUP}, {UPDATES} updates, "
            f"{counted(steps, 'step')} per epoch; "
            f"{config.rollout.slots} sequences at once, micro-batches of {tokens:,} tokens; {peak_text(fit.memory)}"
            f"{pace}{f'; {fit.padding}' if fit.padding else ''}"
        ),
    }


def _title(out: Path, lines: dict[str, str]) -> str:
    said = "\n".join(f"{name}: {text}" for name, text in lines.items())
    return f"Written by `mindgspo init`; change what you like, then `mindgspo check {out.name}`.\n{said}"


def _comments(
    machine: Hardware, model: ModelSection, data: _Data, rewarding: Rewarding, lengths: Lengths
) -> dict[str, str]:
    """Why each value, by key."""
    response = (
        "Four times the 99 % quantile of the worked solutions, for models write more"
        if lengths.solutions
        else "A usual value"
    )
    suffix = "Put after each question, so that the reward finds the answer."
    if rewarding.instruction is None:
        suffix = "Put after each question, e.g. how your reward wants the answer to be written; max_prompt_length has "
        suffix += f"room for {lengths.room} tokens."
    elif not rewarding.instruction:
        suffix = "Not read: the prompts of these rows say themselves how to answer."
    return {
        "model": "Architecture, sizes and tokenizer come from the folder.",
        "model.lora": "Low-rank adapters are trained, and nothing else; more rank or other targets: docs/lora.md.",
        "tokenizer": "The tokens that end a response, as the folder names them.",
        "data.instruction_suffix": suffix,
        "data.max_prompt_length": lengths.text,
        "rollout.prompts_per_step": "With num_generations responses each; more make steadier and longer steps.",
        "rollout.max_new_tokens": f"{response}; raise it if many responses are cut (response_length/clip_ratio).",
        "rollout.slots": "Sequences decoded at once: speed and memory, not results.",
        "algorithm": "The paper's clip range, 3e-4 and 4e-4, and no KL term.",
        "optimizer.lr": "By the model's size: from 1 G parameters 1e-6, from 100 M 5e-6, from 10 M 1e-5, below 5e-5"
        + ("." if model.lora is None else f"; {LORA_RATE} times that for adapters."),
        "trainer.prompts_per_mini_batch": f"{UPDATES} updates per step, as in the paper.",
        "trainer.max_tokens_per_micro_batch": "Speed and memory, not results.",
        "trainer.max_ratio_error": "bfloat16's own rounding.",
        "plans": "The fewest divisions of the model that fit; `mindgspo plan` shows the memory.",
        "swap": "Without it nothing that was tried fits.",
    }


def commented_document(title: str, mapping: Mapping[str, Any], comments: Mapping[str, str]) -> str:
    """YAML of the mapping with a title. comments: by dotted key, put above the line."""
    lines, above = list(_comment(title, 0)), ["experiment"]
    for line in write_document(dict(mapping)).splitlines():
        indent, key = len(line) - len(line.lstrip()), line.strip().partition(":")[0]
        above = [*above[: indent // 2], key]
        is_section = indent == 0 and (line.endswith(":") or key == "experiment")
        lines += [""] if is_section else []
        lines += [*_comment(comments.get(".".join(above), ""), indent), line]
    text = "\n".join(lines) + "\n"
    assert parse_document(text) == mapping, "the file does not hold what was planned"
    return text


def _comment(text: str, indent: int) -> Iterator[str]:
    prefix = " " * indent + "# "
    for paragraph in printable(text).splitlines():
        yield from textwrap.wrap(paragraph, _WIDTH, initial_indent=prefix, subsequent_indent=prefix)
