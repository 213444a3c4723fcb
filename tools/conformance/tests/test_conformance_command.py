"""The command: all 1,221 public cases pass, and whatever is changed in a case fails with exit code 1."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mindgspo.cli import main
from mindgspo_conformance.cases import KINDS_OF_CELLS, Case
from mindgspo_conformance.cells import skip_reason
from mindgspo_conformance.compare import check_twin

PUBLIC = Path(__file__).resolve().parents[1] / "conformance_public.json"

Write = Callable[..., Path]
Entry = dict[str, Any]


def run(capsys: pytest.CaptureFixture, *arguments: object) -> tuple[int, list[str]]:
    code = main(["conformance", *map(str, arguments)])
    printed = capsys.readouterr()
    assert printed.err == ""
    return code, printed.out.splitlines()


def test_every_twin_agrees_in_float64(public_cases: list[Case]) -> None:
    assert len(public_cases) == 1221
    checks = {case.name: check_twin(case) for case in public_cases}
    assert {name: one for name, one in checks.items() if not one.passed} == {}
    assert max(one.worst.share for one in checks.values()) < 0.2


def test_the_skipped_cases_are_those_that_the_format_names(public_cases: list[Case]) -> None:
    reasons = [skip_reason(case) for case in public_cases if case.kind in KINDS_OF_CELLS]
    assert len(reasons) == 961
    counts = {reason: reasons.count(reason) for reason in set(reasons) if reason}
    assert counts == {"log_ratio_overflow": 51, "float64_only": 49, "edge_margin < 1e-06": 14}


def test_the_whole_command(capsys: pytest.CaptureFixture, cpu_runtime: None) -> None:
    """Compiles some 170 graphs: a minute or two on two cores."""
    assert main(["conformance", str(PUBLIC)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "1221 passed, 0 failed"
    total = next(line.split() for line in lines if line.startswith("all "))
    # Cases; twins passed, failed, worst error in two words; cells passed, failed, skipped.
    assert total[1:4] == ["1221", "1221", "0"] and total[6:9] == ["847", "0", "114"]
    assert any(line.startswith("skipped in float32: 114 of 961 (") for line in lines)


def test_right_cases_pass(entry: Entry, write: Write, capsys: pytest.CaptureFixture, cpu_runtime: None) -> None:
    code, lines = run(capsys, write(entry))
    assert (code, lines[-1]) == (0, "1 passed, 0 failed")
    assert [line for line in lines if line.startswith("worst cell: base_large/ppo/verl-0.9.1, ")]


def container(entry: Entry, path: tuple[str | int, ...]) -> Any:
    """What holds the value at a path."""
    for key in path[:-1]:
        entry = entry[key]
    return entry


# Of slots, [5, 5] is the last real one and [1, 4] the first masked one.
@pytest.mark.parametrize(("path", "value", "said"), [
    (("expected", "loss"), -0.4536, "loss: expected"),
    (("expected", "loss"), "nan", "loss: expected nan, got "),
    (("expected", "grad_logp", 5, 5), -0.0031, "grad_logp[5, 5]: expected"),
    (("expected", "grad_logp", 1, 4), 0.002, "grad_logp[1, 4]: expected 0.002"),
    (("inputs", "logp", 5, 5), "nan", "got nan; error inf"),
    (("config", "clip_high"), 0.25, "loss: expected"),
    (("config", "loss_agg_mode"), "seq-mean-token-mean", "grad_logp["),
    (("config", "norm_tokens"), 36, "loss: expected"),
], ids=["loss", "nan", "gradient", "masked", "nan result", "clip", "aggregation", "tokens"])  # fmt: skip
def test_both_sides_see_what_is_wrong(path, value, said, entry, write, capsys, cpu_runtime):
    container(entry, path)[path[-1]] = value
    code, lines = run(capsys, write(entry))
    assert (code, lines[-1]) == (1, "0 passed, 1 failed")
    assert any(line.startswith("FAILED base_large/ppo/verl-0.9.1 (policy_loss; verl 0.9.1") for line in lines)
    for side in ("twin", "cell"):
        assert any(line.startswith(f"  {side} ") and said in line for line in lines), (side, lines)


@pytest.mark.parametrize(("path", "off"), [(("loss",), 4.5e-7), (("metrics", "ppo_kl_token"), 1e-7)])
def test_twins_are_held_to_their_own_bound(path, off: float, entry: Entry, write: Write, capsys) -> None:
    """Which is far within float32's."""
    container(entry["expected"], path)[path[-1]] += off
    code, lines = run(capsys, write(entry), "--twins-only")
    assert code == 1 and any(line.startswith(f"  twin {'.'.join(path)}: expected") for line in lines)


@pytest.mark.parametrize(("name", "quantity", "said"), [
    ("kl_small/k1/verl-0.9.1", ("kl_token", 0, 1), "cell kl_token[0, 1]: expected"),
    ("kl_small/k1/verl-0.9.1", ("grad_logp", 2, 0), "cell grad_logp[2, 0]: expected"),
    ("agg_plain/token-mean/verl-0.9.1", ("grad_loss_mat", 0, 0), "cell grad_loss_mat[0, 0]: expected"),
    ("adv_binary/grpo/verl-0.9.1", ("advantages", 7, 1), "twin advantages[7, 1]: expected"),
    ("rnorm_one_func/sum_then_group_n4/trl-1.16.0", ("advantages", 3), "twin advantages[3]: expected"),
    ("overlong_20_5_1.0/verl-0.9.1", ("penalty", 22), "twin penalty[22]: expected"),
])  # fmt: skip
def test_every_kind_can_fail(name, quantity, said, public_entries, write, capsys, cpu_runtime):
    wrong = copy.deepcopy(public_entries[name])
    container(wrong["expected"], quantity)[quantity[-1]] += 0.01
    code, lines = run(capsys, write(public_entries["agg_plain/token-mean/verl-0.9.1"] | {"name": "right"}, wrong))
    assert (code, lines[-1]) == (1, "1 passed, 1 failed")
    assert any(said in line for line in lines), lines


def test_skipped_cells_are_counted_and_their_twins_still_compared(public_entries, write, capsys):
    skipped = [copy.deepcopy(one) for one in public_entries.values() if "log_ratio_overflow" in one["tags"]][:2]
    skipped[1]["expected"]["loss"] = 3.0
    code, lines = run(capsys, write(*skipped))
    assert (code, lines[-1]) == (1, "1 passed, 1 failed")
    assert any(line.startswith("skipped in float32: 2 of 2 (2 ") for line in lines)


def test_filters_of_the_command_line(entry, public_entries, write, capsys):
    path = write(entry, public_entries["overlong_20_5_1.0/verl-0.9.1"])
    for arguments, last in [
        (("--kind", "overlong"), "1 passed, 0 failed"),
        (("--name", "BASE_", "--twins-only"), "1 passed, 0 failed"),
        (("--source", "verl", "--twins-only"), "2 passed, 0 failed"),
    ]:
        assert run(capsys, path, *arguments)[1][-1] == last
    assert main(["conformance", str(path), "--source", "slime"]) == 1
    assert "none of 2 cases has --source 'slime'" in capsys.readouterr().err
