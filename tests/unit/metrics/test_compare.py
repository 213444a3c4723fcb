"""Runs beside each other: what differs, what came out, the pages; by the command, too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mindgspo.cli import main
from mindgspo.config import dump_config, load_config
from mindgspo.config.data import OVERALL
from mindgspo.errors import RunFolderError
from mindgspo.metrics.compare import (
    compare_runs,
    comparison_lines,
    display_name,
    distinct_names,
    outcome_rows,
    write_comparison,
)

QUICKSTART = Path(__file__).resolve().parents[3] / "examples" / "arithmetic" / "gspo.yaml"
ACC = "val-core/arithmetic/acc/mean@1"


def write_run(folder: Path, *overrides: str, accuracies: dict[int, float], finished: bool = True) -> Path:
    """Four seconds and 200 tokens per step up to the last evaluation; intervals of 0.1 to both sides."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(dump_config(load_config(QUICKSTART, overrides)))
    rows = []
    for step in range(max(accuracies) + 1):
        if step:
            rows.append({"step": step, "critic/score/mean": 0.5, "actor/pg_clipfrac": 0.1, "perf/time_per_step": 4.0,
                         "perf/total_num_tokens": 200})  # fmt: skip
        if step in accuracies:
            value = accuracies[step]
            rows.append({"step": step, ACC: value, f"{ACC}/low": value - 0.1, f"{ACC}/high": value + 0.1})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if finished:
        summary = {"finished": True, "seconds": 61.0, "tokens_per_second": 75.0, "steps": max(accuracies)}
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    """A finished run of ten steps, and another one with other settings that is at step 4."""
    return [
        write_run(tmp_path / "a", accuracies={0: 0.5, 5: 0.9, 10: 0.8}),
        write_run(tmp_path / "b", "seed=2", "algorithm.clip_high=8e-4", "logging.progress=false",
                  accuracies={0: 0.5, 4: 0.6}, finished=False),
    ]  # fmt: skip


def test_settings_that_differ_in_the_order_of_the_schema(two: list[Path]) -> None:
    comparison = compare_runs(two)
    found = {one.key: one.values for one in comparison.settings}
    assert list(found) == ["seed", "algorithm.clip_high"], "how a run is shown is not compared"
    assert found == {"seed": ("1", "2"), "algorithm.clip_high": ("0.0004", "0.0008")}
    assert compare_runs([two[0], write_run(two[0].parent / "c", accuracies={1: 0.5})]).settings == ()


def test_last_and_best_with_their_intervals_also_of_a_run_that_goes_on(two: list[Path]) -> None:
    assert outcome_rows(compare_runs(two))[1:] == [
        ["a", "10", "80.0% (70.0 .. 90.0) at 10", "90.0% (80.0 .. 100.0) at 5", "61", "75"],
        ["b", "4, unfinished", "60.0% (50.0 .. 70.0) at 4", "60.0% (50.0 .. 70.0) at 4", "16", "50"],
    ]


def test_seeds_of_a_variant_have_a_mean_and_the_metric_sorts(two: list[Path], tmp_path: Path) -> None:
    """Accuracies 0.6, 0.8 and 0.9: mean 85.0 %, deviation 0.1 / sqrt 2 over the last two."""
    third = write_run(tmp_path / "c", "seed=3", accuracies={0: 0.5, 6: 0.9})
    by_accuracy = compare_runs([two[1], two[0], third], variants=["low", "high", "high"], metric=OVERALL)
    assert by_accuracy.names == ("c", "a", "b") and by_accuracy.settings[0].values == ("3", "1", "2")
    assert [one.variant for one in by_accuracy.runs] == ["high", "high", "low"]
    assert outcome_rows(by_accuracy)[4:] == [
        ["high, mean of 2", "", "85.0% \N{PLUS-MINUS SIGN} 7.1", "90.0% \N{PLUS-MINUS SIGN} 0.0",
         "61 \N{PLUS-MINUS SIGN} 0", "75 \N{PLUS-MINUS SIGN} 0"],
    ]  # fmt: skip
    with (third / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "actor/entropy": 0.25}\n')
    header, first, *_ = outcome_rows(compare_runs([*two, third], metric="actor/entropy"))
    assert header[:3] == ["run", "steps", "actor/entropy"] and first[:3] == ["c", "6", "0.25"]
    assert [row[2] for row in outcome_rows(compare_runs([*two, third], metric="actor/entropy"))[2:]] == ["-", "-"]
    both = compare_runs([*two, third], variants=["low", "high", "high"], metric="actor/entropy")
    assert outcome_rows(both)[4][2] == "-", "one of the two did not record it"


def test_curves_of_many_variants_and_of_routing_are_drawn(two: list[Path], tmp_path: Path) -> None:
    """A band over two seeds, panels that only some runs have, more variants than lines that differ."""
    with (two[0] / "metrics.jsonl").open("a") as file:
        file.write('{"step": 10, "router/drift": 0.01}\n')
    folders = [two[0], *(write_run(tmp_path / f"v{number}", accuracies={0: 0.5, 4: 0.6}) for number in range(14))]
    variants = ["routed", "seeds", "seeds", *(f"v{number}" for number in range(12))]
    write_comparison(compare_runs(folders, variants=variants), tmp_path / "out")
    page = (tmp_path / "out/comparison.html").read_text()
    assert "Routing drift" in page and "mean and range of 2 seeds" in page
    assert "<h1>a, v0, v1, v2 and 11 more</h1>" in page


def test_what_a_terminal_shows(two: list[Path]) -> None:
    lines = comparison_lines(compare_runs(two))
    at = lines.index("first setting that differs:")
    assert lines[at + 1].split() == ["seed", "1", "2"]
    assert lines[at + 3 :][0] == "others:" and lines[-1].split() == ["algorithm.clip_high", "0.0004", "0.0008"]


def test_versions_and_machines_of_the_last_start(two: list[Path]) -> None:
    for folder, version in zip(two, ("2.10.0", "2.11.0"), strict=True):
        starts = [{"step": 0, "host": "old", "versions": {"mindspore": "1"}},
                  {"step": 4, "host": "node", "versions": {"mindspore": version}, "git": {"commit": "c"}}]  # fmt: skip
        (folder / "environment.jsonl").write_text("".join(json.dumps(start) + "\n" for start in starts))
    comparison = compare_runs(two)
    assert [(one.key, one.values) for one in comparison.environment] == [("mindspore", ("2.10.0", "2.11.0"))]


def test_a_configuration_of_another_version_is_compared_as_it_stands(two: list[Path]) -> None:
    (two[1] / "config.yaml").write_text("seed: 3\nunknown_section: {key: [1]}\n")
    found = {one.key: one.values for one in compare_runs(two).settings}
    assert found["seed"] == ("1", "3") and found["unknown_section.key"] == ("-", "[1]")
    (two[1] / "config.yaml").unlink()
    assert compare_runs(two).settings == (), "nothing to compare with"


def test_a_section_that_another_run_does_not_have_is_listed(two: list[Path]) -> None:
    third = write_run(two[0].parent / "c", "warmup=null", accuracies={1: 0.5})
    found = {one.key: one.values for one in compare_runs([two[0], third]).settings}
    assert found["warmup"] == ("-", "null") and found["warmup.max_steps"] == ("400", "-")


def test_algorithms_are_written_as_in_their_papers() -> None:
    assert [display_name(name) for name in ("gspo", "dr_grpo", "wide_clip")] == ["GSPO", "DR-GRPO", "wide_clip"]


def test_names_are_the_shortest_ends_of_paths_that_differ() -> None:
    assert distinct_names([Path("/x/a"), Path("/x/b")]) == ["a", "b"]
    assert distinct_names([Path("/x/1/gspo"), Path("/x/2/gspo"), Path("/x/2/grpo")]) == ["1/gspo", "2/gspo", "2/grpo"]


def test_the_command_writes_a_page_that_escapes_names(
    two: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = two[1].rename(tmp_path / "<b>$x")
    out = tmp_path / "out"
    assert main(["compare", str(two[0]), str(odd), "--out", str(out)]) == 0
    assert f"page: {out / 'comparison.html'}" in capsys.readouterr().out
    page = (out / "comparison.html").read_text()
    assert "&lt;b&gt;$x" in page and "<b>$x" not in page and "<script" not in page
    assert "http" not in page.split("</head>")[1]
    assert (out / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert main(["compare", str(two[0]), str(odd), "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"][0] == {"key": "seed", "values": ["1", "2"]}
    assert found["outcomes"][0]["best"] == {
        "step": 5, "value": 0.9, "low": 0.8, "high": 1.0, "text": "90.0% (80.0 .. 100.0)",
    }  # fmt: skip


def test_what_cannot_be_compared_is_named(two: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(two[0])]) == 2
    assert main(["compare", str(two[0]), str(two[0])]) == 2
    assert "at least two run folders, each of them once" in capsys.readouterr().err
    with pytest.raises(RunFolderError, match=r"no metrics.jsonl here"):
        compare_runs([two[0], tmp_path / "none"])
