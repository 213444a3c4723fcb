"""Reading files, cases and definitions: one message with file, case, key, rule and what was given."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mindgspo.algorithms.losses.definition import Aggregation, KLTerm, LossDefinition
from mindgspo.cli import main
from mindgspo.errors import DataError
from mindgspo_conformance import cases as cases_module
from mindgspo_conformance.cases import read_cases
from mindgspo_conformance.definitions import loss_config

Write = Callable[..., Path]
Entry = dict[str, Any]


def test_a_case_is_read_as_it_stands(entry: Entry, write: Write) -> None:
    entry["inputs"]["logp"][5][9] = "-inf"
    (case,) = read_cases(write(entry))
    assert (case.name, case.kind, case.peer) == ("base_large/ppo/verl-0.9.1", "policy_loss", "verl 0.9.1 (PyPI wheel)")
    assert case.edge_margin == 0.0267 and case.config["clip_ratio_c"] == 3.0
    assert case.inputs["logp"].shape == (6, 10) and case.inputs["logp"][5, 9] == -np.inf
    assert case.expected["loss"].shape == () and case.expected["loss"] == entry["expected"]["loss"]
    assert set(case.expected) == {"loss", "grad_logp"} and case.metrics == entry["expected"]["metrics"]


def test_what_a_case_need_not_have(entry: Entry, write: Write) -> None:
    for key in ("tags", "peer", "edge_margin"):
        entry.pop(key, None)
    del entry["expected"]["metrics"]
    entry["remark"] = "informative"
    (case,) = read_cases(write(entry))
    assert (case.tags, case.edge_margin, case.metrics) == ((), np.inf, {})


def test_the_date_of_a_source_is_no_part_of_its_name(entry: Entry, write: Write) -> None:
    entry["source"] = "slime 0.3.1 (git 624b824a8, 2026-08-21): slime.ray.rollout: x"
    assert read_cases(write(entry))[0].peer == "slime 0.3.1 (git 624b824a8)"


def test_json_lines_are_read_too(entry: Entry, tmp_path: Path) -> None:
    entry["source"] += "\u2028"  # a line separator of Unicode, not of JSON Lines
    entry["source"] = entry["source"].strip()
    path = tmp_path / "cases.jsonl"
    path.write_text(f"{json.dumps(entry)}\n\n{json.dumps(entry | {'name': 'second'})}\n", encoding="utf-8")
    assert [case.name for case in read_cases(path)] == [entry["name"], "second"]
    path.write_text(f"{json.dumps(entry)}\n{{]\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"cases.jsonl:2: not JSON: .* column 2"):
        read_cases(path)


@pytest.mark.parametrize(("content", "said"), [
    (b"", "not JSON: Expecting value at line 1, column 1"),
    (b'[{"name": }]', "not JSON: Expecting value at line 1, column 11"),
    (b"[1, 2", "not JSON: Expecting ',' delimiter"),
    (b"[NaN]", 'NaN is not JSON; a number that is not finite is the text "nan"'),
    (b'[{"a": -Infinity}]', "-Infinity is not JSON"),
    (b'[{"name": "x", "name": "y"}]', "key 'name' stands twice"),
    (b'"text"', "expected a JSON list of cases, got a text"),
    (b"[]", "no cases: the list is empty"),
    (b'["\xff"]', "not UTF-8 text: byte 2 is 0xff"),
    (b"[" * 200_000, "nested too deeply"),
    (b"[1" + b"0" * 5000 + b"]", "a number cannot be read"),
    (b"[3]", "case number 1: expected an object with the keys name, kind, source"),
], ids=lambda value: value[:12].decode("latin-1") if isinstance(value, bytes) else "")  # fmt: skip
def test_a_malformed_file_is_one_message(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "cases.json"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_cases(path)
    assert str(caught.value).startswith(str(path)) and said in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Write) -> None:
    with pytest.raises(DataError, match="nowhere.json: cannot be read: No such file"):
        read_cases(tmp_path / "nowhere.json")
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read_cases(tmp_path)
    monkeypatch.setattr(cases_module, "LARGEST_FILE", 3)
    with pytest.raises(DataError, match=r"4 bytes; a conformance file has at most 3"):
        read_cases(write([]))


def change(entry: Entry, path: str, value: object) -> None:
    """Set the value at a dotted path; `...` removes it."""
    *above, last = path.split(".")
    for key in above:
        entry = entry[int(key)] if isinstance(entry, list) else entry[key]
    key = int(last) if isinstance(entry, list) else last
    if value is ...:
        del entry[key]
    else:
        entry[key] = value


@pytest.mark.parametrize(("path", "value", "said"), [
    ("name", ..., "case number 1: name: missing"),
    ("name", 3, "case number 1: name: expected a text, got 3"),
    ("name", "two\nlines", "name: expected one line of printable text"),
    ("source", "\x1b[2J", "source: expected one line of printable text"),
    ("config", ..., "config: missing; needed here: name, kind, source, config, inputs, expected"),
    ("config", [], "config: expected an object, got a list"),
    ("kind", "policyloss", "kind: unknown 'policyloss'; did you mean 'policy_loss'?"),
    ("kind", "value", "kind: unknown 'value'; known: policy_loss, kl, agg"),
    ("tags", "tie", "tags: expected a list, got 'tie'"),
    ("edge_margin", "near", "edge_margin: expected a number"),
    ("inputs.logp", ..., "inputs.logp: missing; needed here: logp, old_logp, advantages, mask"),
    ("inputs.ref_log", [[0.0]], "inputs.ref_log: unknown key; did you mean 'ref_logp'?"),
    ("inputs.logp.0.0", True, "inputs.logp[0, 0]: expected a number"),
    ("inputs.logp.0.0", "1.5", 'inputs.logp[0, 0]: expected a number, "nan", "inf" or "-inf", got \'1.5\''),
    ("inputs.logp.0.0", 10**400, "inputs.logp[0, 0]: a whole number of 401 digits is beyond float64"),
    ("inputs.logp.0", [0.0], "inputs.logp: rows differ in length: row 0 has 1, row 1 has 10"),
    ("inputs.logp.1", 0.0, "inputs.logp[1]: a number among lists"),
    ("inputs.logp.1.1", [0.0], "inputs.logp[1, 1]: expected a number"),
    ("inputs.old_logp", [[0.0, 0.0]], "inputs.old_logp: shape [1, 2], but inputs.mask has [6, 10]"),
    ("inputs.rollout_is_weights", [1.0] * 6, "inputs.rollout_is_weights: expected a matrix [B, T], got rank 1"),
    ("inputs.mask.2.3", 2, "inputs.mask[2, 3]: expected 0 or 1, got 2"),
    ("inputs.mask.2.3", "nan", "inputs.mask[2, 3]: expected 0 or 1, got nan"),
    ("inputs.advantages", 1.0, "inputs.advantages: expected a list [B] or a matrix [B, T], got rank 0"),
    ("inputs.advantages", [1.0, 2.0], "inputs.advantages: 2 entries for 6 rows of inputs.mask"),
    ("inputs.advantages", [[1.0]] * 6, "inputs.advantages: shape [6, 1], but inputs.mask has [6, 10]"),
    ("inputs.advantages", [], "inputs.advantages: is empty"),
    ("expected.grad_logp", ..., "expected.grad_logp: missing; needed here: loss, grad_logp"),
    ("expected.loss", [0.0], "expected.loss: expected a number, got rank 1"),
    ("expected.gradlogp", 0.0, "expected.gradlogp: unknown key; did you mean 'grad_logp'?"),
    ("expected.metrics", [], "expected.metrics: expected an object, got a list"),
    ("expected.metrics.pg_clipfrac", 0.0, "pg_clipfrac: unknown key; did you mean 'pg_clipfrac_"),
    ("config.clip_hi", 0.2, "config.clip_hi: unknown key; did you mean 'clip_high'?"),
    ("config.loss_agg_mode", "batch-mean", "config.loss_agg_mode: batch-mean is for surrogate gmpo"),
    ("config.kl_type", "k3", "inputs.ref_logp: missing; config.kl_type needs it"),
    ("expectd", {}, None),
], ids=lambda value: str(value)[:40] if value is not ... else "gone")  # fmt: skip
def test_a_wrong_case_names_file_case_key_and_rule(path, value, said, entry, write):
    change(entry, path, value)
    if said is None:  # a key close to one that is there is taken for a remark
        assert len(read_cases(write(entry))) == 1
        return
    file = write(entry)
    with pytest.raises(DataError) as caught:
        read_cases(file)
    message = str(caught.value)
    assert message.startswith(f"{file}: case ") and said in message and "\n" not in message
    if not path.startswith("name"):
        assert "case 'base_large/ppo/verl-0.9.1': " in message


def test_a_misspelt_key_is_named_before_the_missing_one(entry: Entry, write: Write) -> None:
    entry["inputz"] = entry.pop("inputs")
    with pytest.raises(DataError, match="inputz: unknown key; did you mean 'inputs'"):
        read_cases(write(entry))


@pytest.mark.parametrize(("name", "path", "value", "said"), [
    ("kl_small/k1/verl-0.9.1", "config.kl_type", "k4", "config.kl_type: expected one of k1, k2, k3, abs, got 'k4'"),
    ("kl_small/k1/verl-0.9.1", "config.kl_importance_weight", True, "inputs.old_logp: missing"),
    ("kl_small/k1/verl-0.9.1", "config.loss_agg_mode", "batch-mean", "losses with one value per response"),
    ("agg_plain/token-mean/verl-0.9.1", "config.norm_tokens", -3, "config.norm_tokens: must be > 0, got -3"),
    ("agg_plain/token-mean/verl-0.9.1", "inputs.loss_mat", ..., "inputs.loss_mat: missing"),
    ("adv_binary/grpo/verl-0.9.1", "inputs.group", [0, 1], "inputs.group: 2 entries for 8 rows of inputs.mask"),
    ("overlong_20_5_1.0/verl-0.9.1", "config.max_length", 3, "max_length: unknown key; did you mean 'max_len'?"),
    ("overlong_20_5_1.0/verl-0.9.1", "config.buffer_len", ..., "buffer_len: missing"),
])  # fmt: skip
def test_wrong_cases_of_every_kind_end_the_command(name, path, value, said, public_entries, write, capsys):
    wrong = json.loads(json.dumps(public_entries[name]))
    change(wrong, path, value)
    file = write(wrong)
    assert main(["conformance", str(file), "--twins-only"]) == 1
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith(f"error: {file}: case {name!r}: ") and said in printed.err


@pytest.mark.parametrize(("name", "path", "value", "said"), [
    ("adv_binary/grpo/verl-0.9.1", "config.estimator", "grp0", "did you mean 'grpo'"),
    ("adv_binary/grpo/verl-0.9.1", "inputs.rewards", ..., "rewards"),
    ("rnorm_one_func/sum_then_group_n4/trl-1.16.0", "config.mode", "slim", "did you mean 'slime'"),
    ("overlong_20_5_1.0/verl-0.9.1", "inputs.lengths.0", -1, "lengths: -1 at 0 is not a number of tokens"),
])  # fmt: skip
def test_what_an_estimator_does_not_know_fails_its_case_and_not_the_file(
    name: str,
    path: str,
    value: object,
    said: str,
    public_entries: dict[str, Entry],
    write: Write,
    capsys: pytest.CaptureFixture,
) -> None:
    wrong = json.loads(json.dumps(public_entries[name]))
    change(wrong, path, value)
    assert (
        main(["conformance", str(write(wrong, public_entries["agg_plain/token-mean/verl-0.9.1"])), "--twins-only"]) == 1
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "1 passed, 1 failed" and any(said in line for line in lines)


def test_all_wrong_cases_are_told_but_not_endlessly(entry: Entry, write: Write) -> None:
    wrong = [entry | {"name": f"case {i}", "kind": "kil"} for i in range(13)]
    with pytest.raises(DataError) as caught:
        read_cases(write(entry, *wrong))
    lines = str(caught.value).splitlines()
    assert len(lines) == 11 and "case 'case 0': kind" in lines[0] and lines[-1] == "... and 3 more wrong cases"


SHORT = {"surrogate": "clip", "ratio_level": "token", "loss_agg_mode": "token-mean"}


def test_absent_and_null_keys_are_off():
    expected = LossDefinition(
        ratio_level="token", surrogate="clip", aggregation=Aggregation(mode="token-mean", empty_rows="include")
    )
    assert loss_config(SHORT).definition(7) == expected
    assert (
        loss_config(SHORT | dict.fromkeys(("clip_low", "kl_type", "kl_arg_clamp", "tau_pos"))).definition(7) == expected
    )
    assert loss_config(SHORT).kl_coef is None


def test_every_key_arrives():
    config = {
        "algorithm": "gspo", "surrogate": "clip", "ratio_level": "sequence", "ratio_len_eps": 1e-8,
        "log_ratio_min": -20.0, "log_ratio_max": 20.0, "clip_low": 1.5, "clip_high": 0.2, "clip_ratio_c": 3.0,
        "ratio_upper_clamp": 2.0, "loss_upper_clamp": 3.0, "tau_pos": 1.5, "tau_neg": 2.5,
        "advantage_pool": "masked-mean", "loss_agg_mode": "seq-mean-token-sum-norm", "empty_rows": "exclude",
        "seq_len_eps": 1e-6, "loss_scale_factor": 64, "kl_type": "k3", "kl_agg_mode": "seq-mean-token-mean",
        "kl_arg_clamp": [-20, 20], "kl_value_clamp": [-10, 10], "kl_importance_weight": True,
        "kl_straight_through_k2": True,
    }  # fmt: skip
    assert loss_config(config).definition(7) == LossDefinition(
        ratio_level="sequence", surrogate="clip",
        aggregation=Aggregation(mode="seq-mean-token-sum-norm", seq_len_eps=1e-6, loss_scale_factor=64), clip_low=1.5,
        clip_high=0.2, clip_ratio_c=3.0, ratio_upper_clamp=2.0, loss_upper_clamp=3.0, log_ratio_min=-20.0,
        log_ratio_max=20.0, ratio_len_eps=1e-8, tau_pos=1.5, tau_neg=2.5, advantage_pool="masked-mean",
        kl=KLTerm(
            kind="k3", aggregation=Aggregation(mode="seq-mean-token-mean", seq_len_eps=1e-6), arg_clamp=(-20.0, 20.0),
            value_clamp=(-10.0, 10.0), importance_weight=True, straight_through_k2=True,
        ),
    )  # fmt: skip


def test_scale_defaults_to_the_number_of_slots():
    for mode in ("seq-mean-token-sum-norm", "batch-token-sum-norm"):
        assert loss_config({"loss_agg_mode": mode}).aggregation(7).loss_scale_factor == 7
        assert loss_config({"loss_agg_mode": mode, "loss_scale_factor": 64}).aggregation(7).loss_scale_factor == 64
    assert (
        loss_config({"loss_agg_mode": "token-mean", "loss_scale_factor": 64}).aggregation(7).loss_scale_factor is None
    )


def test_a_sum_over_ranks_that_average_is_scaled():
    scaled = loss_config({"loss_agg_mode": "token-sum", "dp_size": 4}).aggregation(7)
    assert (scaled.mode, scaled.loss_scale_factor) == ("batch-token-sum-norm", 0.25)
    assert loss_config({"loss_agg_mode": "token-sum", "dp_size": 1}).aggregation(7).mode == "token-sum"
    assert loss_config({"loss_agg_mode": "batch-token-sum-norm", "dp_size": 4}).aggregation(7).loss_scale_factor == 7


def test_kl_is_aggregated_like_the_loss_unless_told_otherwise():
    case = {"kl_type": "k2", "loss_agg_mode": "seq-mean-token-mean"}
    assert loss_config(case).kl_term(7).aggregation.mode == "seq-mean-token-mean"
    assert loss_config(case | {"kl_agg_mode": "token-mean"}).kl_term(7).aggregation.mode == "token-mean"
    beside_gmpo = loss_config(case | {"loss_agg_mode": "batch-mean", "empty_rows": "exclude"}).kl_term(7).aggregation
    assert (beside_gmpo.mode, beside_gmpo.empty_rows) == ("seq-mean-token-mean", "include")


def test_denominators_of_a_case():
    mask = np.array([[1, 1], [0, 0]])
    token_mean = loss_config(SHORT).aggregation(2)
    assert loss_config(SHORT).denominators(token_mean, mask) == (2.0, 2.0)
    given = SHORT | {"norm_seqs": 9, "norm_tokens": 37, "token_mean_eps": 1.0, "dp_size": 2}
    assert loss_config(given).denominators(token_mean, mask) == (4.5, 19.0)


@pytest.mark.parametrize(("change", "message"), [
    ({"clip_lo": 0.2}, r"config\.clip_lo: unknown key; did you mean 'clip_low'\?"),
    ({"surrogate": "clipp"}, r"config\.surrogate: expected one of clip, .*, got 'clipp'; did you mean 'clip'\?"),
    ({"empty_rows": True}, r"config\.empty_rows: expected one of exclude, include, got True"),
    ({"clip_low": -0.2}, r"config\.clip_low: must be >= 0, got -0.2"),
    ({"clip_high": float("nan")}, r"config\.clip_high: expected a finite number"),
    ({"clip_high": "0.2"}, r"config\.clip_high: expected a finite number, got '0.2'"),
    ({"clip_ratio_c": 0}, r"config\.clip_ratio_c: must be > 0, got 0"),
    ({"kl_arg_clamp": 20}, r"config\.kl_arg_clamp: expected a list, got 20"),
    ({"kl_value_clamp": [10, -10]}, r"config\.kl_value_clamp: 10 is above high -10"),
    ({"kl_importance_weight": 1}, r"config\.kl_importance_weight: expected true or false, got 1"),
    ({"dp_size": 0}, r"config\.dp_size: must be >= 1, got 0"),
    ({"dp_size": 1.5}, r"config\.dp_size: expected a whole number"),
    ({"log_ratio_min": 1.0, "log_ratio_max": -1.0}, r"config\.log_ratio_min: 1 is above log_ratio_max -1"),
    ({"surrogate": None}, r"config\.surrogate: missing; one of clip, cispo"),
])  # fmt: skip
def test_what_the_format_does_not_know_is_refused(change, message):
    with pytest.raises(DataError, match=message):
        loss_config(SHORT | change).definition(7)
