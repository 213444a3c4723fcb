#!/usr/bin/env python3
"""Measure the device memory of the shipped configurations' graphs, and write docs/memory_table.md and its Chinese twin,
which also say what each configuration needs by its plan on Atlas A2 and A3.

    python tools/make_memory_table.py [--only qwen2_5_7b ...] [--again] [--time-limit 1200] [--host-gb 20]
    python tools/make_memory_table.py --check    measure nothing; exit code 1 if a page is stale

For each experiment for cards below examples/, and each model configuration under the settings of
examples/gsm8k/gspo_qwen2_5_7b.yaml, `mindgspo dryrun` compiles one graph of one rank after the other: training and
scoring of the first rank and of the first one of the last pipeline stage, prefill and decode of rank 0. Hours in all.
Figures are kept in docs/memory_table.json as they come; what is there for the same configuration is not measured again,
failures neither without --again. A graph that takes longer than --time-limit, in seconds, or a process with more than
--host-gb of host memory is given up, and the table says so.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import psutil

from mindgspo.config import ExperimentConfig, load_config, load_model_and_plans
from mindgspo.parallel.plans.placement import RankGrid
from mindgspo.planner import GIB, graph_memory, plan_json, set_options, with_cache_budget
from mindgspo.planner.measured import fingerprint, stored_peaks
from mindgspo.planner.rank_work import whole_bytes

PROJECT = Path(__file__).resolve().parents[1]
DOCS = PROJECT / "docs"
FIGURES = DOCS / "memory_table.json"
BASE = "examples/gsm8k/gspo_qwen2_5_7b.yaml"
# The others follow, small models first.
FIRST = (BASE, "examples/gsm8k/gspo_qwen2_5_3b.yaml", "model_configs/qwen2_5_1_5b.yaml")
COLUMNS = (("train", False), ("train", True), ("reference", False), ("reference", True), ("prefill", False))
COLUMNS += (("decode", False),)
MARKER = "<!-- Everything below is written by tools/make_memory_table.py. -->"
HEADERS = {
    "memory_table.md": (
        *("configuration", "train; infer", "train", "train, last stage", "reference", "reference, last stage"),
        *("prefill", "decode"),
    ),
    "memory_table_cn.md": (
        "配置",
        "train; infer",
        "训练",
        "训练 (最后一级)",
        "参考",
        "参考 (最后一级)",
        "prefill",
        "decode",
    ),
}
PLAN_HEADERS = {
    "memory_table.md": (
        *("configuration", "cards", "fullest phase", "GiB of 56.91", "seconds of a step, A2", "A3", "smallest change"),
    ),
    "memory_table_cn.md": (*("配置", "卡数", "最满的阶段", "GiB (共 56.91)", "每步秒数 (A2)", "A3", "最小改动"),),
}
_TITLES = {
    "memory_table.md": ("## By the plan, on A2 and A3", "## By graph, measured"),
    "memory_table_cn.md": ("## 按计划: A2 与 A3", "## 按计算图: 实测"),
}
_MISSING = {"memory_table.md": "not measured yet", "memory_table_cn.md": "尚未测量"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One graph of one rank. allocated, reserved: bytes; 0 where it could not be measured, for the reason in why_not.
    seconds: with compile."""

    name: str
    graph: str
    rank: int
    fingerprint: str
    mindspore: str = ""
    allocated: int = 0
    reserved: int = 0
    seconds: int = 0
    why_not: str = ""


def main() -> int:
    arguments = parse_arguments()
    if arguments.check:
        stale = [page for page in HEADERS if (DOCS / page).read_text("utf-8") != page_text(page)]
        print(f"stale: {', '.join(stale)}" if stale else "up to date")
        return 1 if stale else 0
    with tempfile.TemporaryDirectory(prefix="mindgspo-memory-") as scratch:
        for name in names():
            if not arguments.only or any(words in name for words in arguments.only):
                measure(name, Path(scratch), arguments)
    write_pages()
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="measure nothing, compare the pages with the figures")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="configurations with this in their name")
    parser.add_argument("--again", action="store_true", help="try what could not be measured before")
    parser.add_argument("--time-limit", type=float, default=1200.0, help="seconds of one graph")
    parser.add_argument("--host-gb", type=float, default=20.0, help="GiB of host memory of one graph")
    return parser.parse_args()


def names() -> list[str]:
    """Experiments for cards, and model configurations that none of them under examples/gsm8k has."""
    experiments = [path for path in PROJECT.glob("examples/*/*.yaml") if _is_for_cards(path)]
    known = {match for path in PROJECT.glob("examples/gsm8k/*.yaml") for match in _includes(path)}
    models = [path for path in PROJECT.glob("model_configs/*.yaml") if path.name not in known]
    models = [path for path in models if not path.stem.endswith(("_tiny", "_smoke"))]
    found = sorted((_model_bytes(path), str(path.relative_to(PROJECT))) for path in (*experiments, *models))
    return [*FIRST, *(name for _, name in found if name not in FIRST)]


def _model_bytes(path: Path) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        own = experiment(str(path.relative_to(PROJECT)), Path(scratch))
        return whole_bytes(load_config(own, check_files=False).model)


def _is_for_cards(path: Path) -> bool:
    return load_config(path, check_files=False).device == "Ascend"


def _includes(path: Path) -> list[str]:
    return re.findall(r"^include: .*/(\S+\.yaml)$", path.read_text("utf-8"), flags=re.MULTILINE)


def experiment(name: str, scratch: Path) -> Path:
    """The experiment's file; for a model configuration a copy of BASE that includes it, with responses as long as its
    positions allow."""
    if name.startswith("examples/"):
        return PROJECT / name
    path = scratch / Path(name).name
    text = (PROJECT / BASE).read_text("utf-8")
    model, _ = load_model_and_plans(PROJECT / name)
    longest = min(8192, model.max_position_embeddings - 2048)
    text = text.replace("max_new_tokens: 8192", f"max_new_tokens: {longest}")
    path.write_text(re.sub(r"(?m)^include: .*$", f"include: {PROJECT / name}", text), "utf-8")
    return path


def loaded(name: str, scratch: Path) -> ExperimentConfig:
    """The experiment's configuration as the dry run completes it."""
    return with_cache_budget(load_config(experiment(name, scratch), check_files=False))


def wanted(config: ExperimentConfig) -> Iterator[tuple[str, int, bool]]:
    """Graph, rank, and whether it is that of a last stage other than the first."""
    plans = {"train": config.plans.train, "reference": config.plans.scoring}
    for graph, is_last in COLUMNS:
        grid = RankGrid(plans.get(graph, config.plans.infer))
        if not is_last:
            yield graph, 0, False
        elif grid.plan.pipeline_stage > 1:
            yield graph, grid.stage_ranks(grid.plan.pipeline_stage - 1)[0], True


def read_figures() -> list[Figure]:
    """Those measured so far."""
    if not FIGURES.is_file():
        return []
    return [Figure(**entry) for entry in json.loads(FIGURES.read_text("utf-8"))]


def measure(name: str, scratch: Path, arguments: argparse.Namespace) -> None:
    """What of a configuration is not stored."""
    path, config = experiment(name, scratch), loaded(name, scratch)
    for graph, rank, _ in wanted(config):
        digits = fingerprint(config, graph)
        known = [each for each in read_figures() if (each.name, each.graph, each.rank) == (name, graph, rank)]
        if any(each.fingerprint == digits and (each.allocated or not arguments.again) for each in known):
            continue
        figure = _measured(name, path, config, graph, rank, scratch, arguments)
        found = figure.why_not or f"{figure.allocated / GIB:.3f} GiB"
        print(f"{name} {graph} {rank}: {found}, {figure.seconds} s", flush=True)
        kept = [each for each in read_figures() if (each.name, each.graph, each.rank) != (name, graph, rank)]
        aside = FIGURES.with_suffix(".new")
        aside.write_text(json.dumps([asdict(each) for each in (*kept, figure)], indent=1) + "\n", "utf-8")
        os.replace(aside, FIGURES)


def _measured(
    name: str,
    path: Path,
    config: ExperimentConfig,
    graph: str,
    rank: int,
    scratch: Path,
    arguments: argparse.Namespace,
) -> Figure:
    folder = scratch / "out" / f"{Path(name).stem}-{graph}-{rank}"
    command = [sys.executable, "-m", "mindgspo.cli", "dryrun", str(path), "--graphs", graph, "--ranks", str(rank)]
    command += ["--time-limit", str(arguments.time_limit), "--out", str(folder)]
    started = time.monotonic()
    said, is_too_large = _run(command, arguments.host_gb * GIB)
    own = {"name": name, "graph": graph, "rank": rank, "fingerprint": fingerprint(config, graph)}
    own["seconds"] = round(time.monotonic() - started)
    for peak in stored_peaks(folder, config):
        return Figure(**own, mindspore=peak.mindspore, allocated=peak.allocated, reserved=peak.reserved)
    if is_too_large:
        return Figure(**own, why_not=f"more than {arguments.host_gb:g} GB of host memory")
    reasons = re.findall(r"^  (?:memory +not measured: |error +)(.*)$", said, flags=re.MULTILINE)
    return Figure(**own, why_not=reasons[0] if reasons else "no answer")


def _run(command: Sequence[str], host_bytes: float) -> tuple[str, bool]:
    """What the command said, and whether it was ended because its processes held too much memory."""
    with tempfile.TemporaryFile("w+") as output:
        environment = os.environ | {"PYTHONPATH": str(PROJECT)}
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        is_too_large = False
        while child.poll() is None:
            time.sleep(1)
            if not is_too_large and _held(child.pid) > host_bytes:
                is_too_large = True
                child.terminate()  # its own child ends with it
        output.seek(0)
        return output.read(), is_too_large


def _held(pid: int) -> int:
    try:
        process = psutil.Process(pid)
        return sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))
    except psutil.NoSuchProcess:
        return 0


def write_pages() -> None:
    """Both pages below their marker."""
    for page in HEADERS:
        (DOCS / page).write_text(page_text(page), "utf-8")


def page_text(page: str) -> str:
    """The page as it should be: what stands above the marker, and both tables."""
    introduction = (DOCS / page).read_text("utf-8").split(MARKER)[0]
    figures = {(each.name, each.graph, each.rank): each for each in read_figures()}
    reasons: list[str] = []
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in names():
            config = loaded(name, Path(scratch))
            cells = {(graph, is_last): (graph, rank) for graph, rank, is_last in wanted(config)}
            row = [f"`{name}`", f"{config.plans.train}; {config.plans.infer}"]
            for column in COLUMNS:
                graph, rank = cells.get(column, ("", 0))
                figure = figures.get((name, graph, rank))
                row.append(_cell(figure, config, reasons, _MISSING[page]) if graph else "")
            rows.append(row)
    by_plan, by_graph = _TITLES[page]
    lines = [by_plan, "", *_table(PLAN_HEADERS[page], plan_rows()), "", by_graph, "", *_table(HEADERS[page], rows), ""]
    lines += [f"{number}. {reason}" for number, reason in enumerate(reasons, start=1)]
    return f"{introduction}{MARKER}\n\n" + "\n".join(lines).rstrip() + "\n"


@cache
def plan_rows() -> list[list[str]]:
    """One row per configuration: what `mindgspo plan` says of its fullest card, and of a step's time on each card. A
    die of A3 has as much memory as a card of A2."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in names():
            found, other = (plan_json(experiment(name, Path(scratch)), (), card=card) for card in ("A2", "A3"))
            fullest = max(found["memory"], key=lambda side: side["needed"])
            assert f"{fullest['capacity'] / GIB:.2f}" == "56.91", name
            seconds = [f"{each['time']['seconds']:,.0f}" for each in (found, other)]
            needed = f"{fullest['needed'] / GIB:.2f}"
            change = "" if fullest["smallest_change"] is None else set_options(fullest["smallest_change"])
            rows.append(
                [f"`{name}`", str(found["time"]["cards"]), fullest["phase"], needed, *seconds, change and f"`{change}`"]
            )
    return rows


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [_row(header), _row(["---"] * len(header)), *map(_row, rows)]


def _cell(figure: Figure | None, config: ExperimentConfig, reasons: list[str], missing: str) -> str:
    """TaskResult, planned and the difference; or the number of the reason why there is none."""
    reason = missing if figure is None or figure.fingerprint != fingerprint(config, figure.graph) else figure.why_not
    if figure is None or reason:
        if reason not in reasons:
            reasons.append(reason)
        return f"({reasons.index(reason) + 1})"
    planned = graph_memory(config, figure.graph, figure.rank)
    more = 100 * (planned / figure.allocated - 1)
    return f"{figure.allocated / GIB:.2f}; {planned / GIB:.2f} ({more:+.1f} %)"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
