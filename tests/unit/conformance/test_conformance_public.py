"""The public file: 1,221 cases that nine peers' own functions computed. All pass, and nothing more is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from mindgspo.cli import main
from mindgspo.conformance.case import KINDS_OF_CELLS
from mindgspo.conformance.cell_jobs import skip_reason
from mindgspo.conformance.reading import read_cases
from mindgspo.conformance.twin_side import judge_twin

PUBLIC = Path(__file__).resolve().parents[2] / "data" / "conformance_public.json"


def test_every_twin_agrees_in_float64() -> None:
    cases = read_cases(PUBLIC)
    assert len(cases) == 1221
    judged = {case.name: judge_twin(case) for case in cases}
    assert {name: one for name, one in judged.items() if not one.passed} == {}
    assert max(one.worst.share for one in judged.values()) < 0.2


def test_the_skipped_cases_are_those_that_the_format_names() -> None:
    reasons = [skip_reason(case) for case in read_cases(PUBLIC) if case.kind in KINDS_OF_CELLS]
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
