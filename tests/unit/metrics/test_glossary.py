"""The glossary: every metric is declared and emitted, in two languages; the pages written from it."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from mindgspo.config.messages import known_keys
from mindgspo.metrics import unknown_names
from mindgspo.metrics.diagnosis import CLIP_BAND
from mindgspo.metrics.glossary import chinese_glossary, declarations, glossary, glossary_name, metrics

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "mindgspo"
METRICS = metrics()
TEXTS = {name: info for named in chinese_glossary().values() for name, info in named.items()}
KNOWN = [
    *("actor/pg_loss", "critic/score/mean", "response_length/clip_ratio", "timing_s/old_log_prob", "timing_s/gen"),
    *("reward/part/my_reward.compute_score/mean", "val-core/openai/gsm8k/acc/pass@16", "samples/filtered/zero_signal"),
    *("actor/log_ratio_hist/below_-1e-1", "actor/grad_share_length_decile/10", "router/layer_3/load_entropy"),
    *("reward/extra/my_reward.compute_score/acc/mean", "reward/extra/f.g/\u683c\u5f0f/mean"),
]
UNKNOWN = [
    *("actor/pg_los", "critic/score/median", "timing_s/", "val-core/arithmetic/acc/mean@", "foo", ""),
    *("val-core//acc/pass@0", "actor/pg_loss ", "response_length", "ACTOR/LR"),
    *("reward/extra/f.g/mean", "reward/extra/f.g/a b/mean", "reward/extra/f.g/a/b/mean", "reward/part/f g/mean"),
    *("actor/log_ratio_hist/1e-5", "actor/grad_share_length_decile/0", "actor/grad_share_length_decile/11"),
]


def test_unknown_names_are_listed_and_every_entry_says_what_it_means() -> None:
    for name in KNOWN:
        assert glossary_name(name) in METRICS, name
    assert unknown_names([*KNOWN, "step", *UNKNOWN, *UNKNOWN]) == sorted(UNKNOWN)
    for name, info in METRICS.items():
        assert len(info.meaning) > 10, name
        assert not info.action or info.healthy, f"{name}: an action needs a healthy range"
        assert all(text.isascii() for text in (info.meaning, info.unit, info.healthy, info.action)), name
    low, high = CLIP_BAND
    assert f"gspo {low:g} to {high:g}" in METRICS["actor/pg_clipfrac_seq"].healthy


# ----- Declared where it is computed
def texts_of(path: Path) -> Iterator[tuple[str, re.Pattern[str]]]:
    """Strings of a module's code as they stand, and as patterns: what is put into an f-string may be anything."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    within = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and not {id(node)} & (within | statements):
            yield node.value, re.compile(re.escape(node.value))
        elif isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else None for part in node.values]
            yield ("".join("x" if part is None else part for part in parts),
                   re.compile("".join(".+" if part is None else re.escape(part) for part in parts)))  # fmt: skip


def is_emitted(name: str, texts: list[tuple[str, re.Pattern[str]]]) -> bool:
    """Whether a module has the name as it stands, without what another module puts before it ("actor/"), or without
    a statistic behind it."""
    plain = re.sub("<[a-z]+>", "1", name)
    forms = {plain, plain.partition("/")[2], plain.removesuffix("/1") if "<stat>" in name else plain}
    return any(pattern.fullmatch(form) for _, pattern in texts if not pattern.pattern.startswith(".") for form in forms)


def test_no_metric_is_declared_that_its_module_does_not_compute() -> None:
    declared = 0
    for path in PACKAGE.rglob("*.py"):
        sections = declarations(path) if path.name != "glossary.py" else {}
        names = [name for named in sections.values() for name in named]
        texts = list(texts_of(path)) if names else []
        assert [name for name in names if not is_emitted(name, texts)] == [], path
        declared += len(names)
    assert declared == len(METRICS) > 100
    assert not is_emitted("rollout/slot_refills", list(texts_of(PACKAGE / "trainer" / "metrics.py")))


def test_no_metric_is_emitted_that_is_not_declared() -> None:
    """Every string "family/name" of the code; runs show the rest (tests/integration/test_whole_run.py)."""
    families = {name.partition("/")[0] for name in METRICS}
    readers = {*(PACKAGE / "metrics").glob("*.py"), *(PACKAGE / "doctor").glob("*.py")}
    for path in {*PACKAGE.rglob("*.py")} - readers:
        for text, pattern in texts_of(path):
            family, _, rest = text.partition("/")
            if family in families and re.fullmatch(r"[a-z_]+(/[\w@]+)*", rest):
                known = glossary_name(text) or any(
                    pattern.fullmatch(name) or name.startswith(f"{text}/") for name in METRICS
                )
                assert known, f"{path}: {text}"


def test_chinese_has_every_text_and_number_of_english() -> None:
    written = yaml.safe_load((PACKAGE / "metrics" / "metrics_cn.yaml").read_text(encoding="utf-8"))
    assert written["metrics"].keys() == METRICS.keys() and written["sections"].keys() == glossary().keys()
    assert written["units"].keys() == {info.unit for info in METRICS.values()} - {""}
    for name, english in METRICS.items():
        chinese = TEXTS[name]
        for field in ("meaning", "unit", "healthy", "action"):
            assert bool(getattr(english, field)) == bool(getattr(chinese, field)), f"{name}: {field}"
        assert re.search(r"[\u4e00-\u9fff]", chinese.meaning), name
        # Every number of an English text stands in the Chinese one: a bound that is changed must be changed twice.
        for field in ("healthy", "action"):
            texts = (getattr(info, field) for info in (english, chinese))
            ours, theirs = (set(re.findall(r"\d+(?:\.\d+)?(?:e-?\d+)?", text)) for text in texts)
            assert ours == theirs, f"{name}: {field}: {ours ^ theirs}"


def test_settings_and_metrics_named_in_the_glossary_exist() -> None:
    settings = {path for path, _ in known_keys()}
    sections = {path.split(".")[0] for path in settings if "." in path}
    for table in (METRICS, TEXTS):
        for name, info in table.items():
            text = f"{info.meaning} {info.healthy} {info.action}"
            for word in re.findall(r"[a-z_]+(?:\.[a-z_]+)+", text):
                assert word in settings or word.split(".")[0] not in sections, f"{name}: no setting {word}"
            for word in re.findall(r"\b(?:actor|critic|reward|rollout_corr|training|samples)/[a-z_/<>]*[a-z_>]", text):
                known = glossary_name(word) or any(other.startswith(f"{word}/<") for other in METRICS)
                assert known, f"{name}: no metric {word}"


PAGES = ("metrics.md", "metrics_cn.md")


def run_tool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "tools/write_glossary.py", *arguments], cwd=ROOT, env={"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    for page in PAGES:
        shutil.copy(ROOT / "docs" / page, tmp_path)
    return tmp_path


def test_the_shipped_pages_are_up_to_date() -> None:
    done = run_tool("--check")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_stale_page_is_repaired_and_one_without_its_marker_left_alone(docs: Path) -> None:
    page = docs / "metrics.md"
    whole = page.read_text(encoding="utf-8")
    page.write_text(whole.replace("## Reading a GSPO run", "## My own title").replace("| `actor/lr` |", "| `x` |"))
    done = run_tool("--check", "--docs", str(docs))
    assert done.returncode == 1 and str(page) in done.stderr and "metrics_cn" not in done.stderr
    done = run_tool("--docs", str(docs))
    assert (done.returncode, done.stdout) == (0, f"wrote {page}\n")
    assert page.read_text(encoding="utf-8") == whole.replace("## Reading a GSPO run", "## My own title")
    (docs / "metrics_cn.md").write_text("# nothing\n")
    done = run_tool("--docs", str(docs))
    assert done.returncode == 2 and "metrics_cn.md" in done.stderr and "is missing" in done.stderr
    assert (docs / "metrics_cn.md").read_text() == "# nothing\n"
