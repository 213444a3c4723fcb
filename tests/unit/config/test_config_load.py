"""Loading: files, includes, overrides, YAML, shipped files; every field is read."""

from __future__ import annotations

import ast
import math
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mindgspo.config import (
    ExperimentConfig,
    ParallelPlan,
    config_mapping,
    dump_config,
    load_config,
    load_model_and_plans,
    messages,
    resolve,
)
from mindgspo.config.load import merge, read_layers
from mindgspo.config.messages import known_keys, section_of
from mindgspo.config.section import Section
from mindgspo.config.yaml_dialect import parse_document, parse_value, write_document
from mindgspo.errors import ConfigError


def test_defaults_are_resolved(load):
    gspo = load()
    assert gspo.run_dir == Path("runs/small")
    assert (gspo.algorithm.clip_low, gspo.algorithm.clip_high) == (3e-4, 4e-4)
    grpo = load("algorithm.name=grpo", "algorithm.clip_high=0.3", "run_dir=elsewhere")
    assert (grpo.algorithm.clip_low, grpo.algorithm.clip_high) == (0.2, 0.3)
    assert grpo.run_dir == Path("elsewhere")
    assert resolve(grpo) == grpo


@pytest.mark.parametrize(("override", "line"), [
    ("rollout.num_generations=eight", "rollout.num_generations: expected an integer, got 'eight'"),
    ('rollout.num_generations="8"', "rollout.num_generations: expected an integer, got '8'"),
    ("rollout.num_generations=8.0", "rollout.num_generations: expected an integer, got 8.0"),
    ("rollout.top_p=1.5", "rollout.top_p: must be <= 1, got 1.5"),
    ("rollout.slots=0", "rollout.slots: must be >= 1, got 0"),
    ("optimizer.lr=fast", "optimizer.lr: expected a number, got 'fast'"),
    ("optimizer.lr=.inf", "optimizer.lr: expected a finite number, got Infinity"),
    ("data.shuffle=yes", "data.shuffle: expected true or false, got 'yes'"),
    ("device=cpu", "device: expected 'CPU' or 'Ascend', got 'cpu'; did you mean 'CPU'?"),
    ("algorithm.name=GSPO",
     "algorithm.name: expected 'gspo', 'gspo_token', 'grpo', 'ppo', 'dapo', 'dr_grpo', 'gmpo', 'cispo', 'sapo', "
     "'gpg', 'luspo', 'dppo_tv', 'dppo_kl', 'vespo', 'fipo', 'clip_cov' or 'kl_cov', got 'GSPO'; did you mean "
     "'gspo'?"),
    ("rollout.cache_dtype=fp16",
     "rollout.cache_dtype: expected 'float32', 'bfloat16' or 'float16', got 'fp16'; did you mean 'float16'?"),
    ("algorithm.name=gsop",
     "algorithm.name: expected 'gspo', 'gspo_token', 'grpo', 'ppo', 'dapo', 'dr_grpo', 'gmpo', 'cispo', 'sapo', "
     "'gpg', 'luspo', 'dppo_tv', 'dppo_kl', 'vespo', 'fipo', 'clip_cov' or 'kl_cov', got 'gsop'; did you mean "
     "'gspo'?"),
    ("device=NPU", "device: expected 'CPU' or 'Ascend', got 'NPU'; write Ascend"),
    ("algorithm.advantage.estimator=gae",
     "algorithm.advantage.estimator: expected 'grpo', 'dr_grpo', 'rloo', 'opo', 'max_rl', 'pass_k', 'gpg', 'remax', "
     "'reinforce_plus_plus', 'reinforce_plus_plus_baseline' or 'optimal_token_baseline', got 'gae'; it needs a value "
     "model, which this suite does not train"),
    ("algorithm.rollout_correction.level=tokens",
     "algorithm.rollout_correction.level: expected 'none', 'token', 'sequence' or 'geometric', got 'tokens'; did you "
     "mean 'token'?"),
    ("algorithm.clip_low=-0.1", "algorithm.clip_low: must be >= 0, got -0.1"),
    ("algorithm.clip_low=1.5", "algorithm.clip_low: must be <= 1, got 1.5"),
    ("reward.functions=gsm8k", "reward.functions: expected a list, e.g. [a, b], got 'gsm8k'"),
    ("reward.weights=[]", "reward.weights: needs at least 1 entry, got []"),
    ("reward.weights=[a]", "reward.weights[0]: expected a number, got 'a'"),
    ("optimizer=", "optimizer: expected a section with keys of its own, got null (nothing)"),
    ("plans.train=2", "plans.train: expected a section with keys of its own, got 2"),
    ("model.path=3", "model.path: expected a text, got 3"),
])  # fmt: skip
def test_a_wrong_value_is_named_with_its_rule(problems, override, line):
    assert problems(override) == [line]


@pytest.mark.parametrize(("key", "answer"), [
    ("trainer.max_step", "did you mean trainer.max_steps"),  # a sibling
    ("optimzer", "did you mean optimizer"),
    ("plans.infer.model_paralel", "did you mean plans.infer.model_parallel"),
    ("rollout.clip_low", "did you mean algorithm.clip_low"),  # the same key in another section
    ("warmup.every", "did you mean warmup.check_every or algorithm.kl.reference.every or eval.every"),  # both
    ("trainer.train_batch_size", "did you mean rollout.prompts_per_step"),  # another suite's word
    ("actor_rollout_ref", "a section of verl; `mindgspo convert config FILE --out NEW.yaml` converts its script"),
    ("rl_config", "a section of MindRLHF or MindSpeed-RL; `mindgspo convert config FILE --out NEW.yaml` converts its"),
    ("rollout.n", "did you mean rollout.num_generations"),
    ("learning_rate", "did you mean optimizer.lr"),
    ("data.max_new_token", "did you mean rollout.max_new_tokens"),  # a close key in another section
    ("reward.zzz", "keys here: functions, weights, answer, math_dapo, overlong, length, repetition, workers"),
])  # fmt: skip
def test_an_unknown_key_is_answered_with_the_nearest_one(problems, key, answer):
    assert problems(f"{key}=3")[0].startswith(f"{key}: unknown key; {answer}")


def test_no_key_is_described_by_half_a_sentence() -> None:
    first = {key: messages._SENTENCE_END.split(" ".join(text.split()))[0] for key, text in known_keys()}
    assert [
        key for key, text in first.items() if text.endswith((".g", ".e")) or text.count("(") != text.count(")")
    ] == []


def test_a_misspelt_required_key_leads_the_list(tmp_path, experiment):
    text = experiment.read_text().replace("max_prompt_length", "max_promt_length")
    experiment.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(experiment, ["seed=-1"])
    assert str(caught.value).split("\n  ")[1:] == [
        "data.max_promt_length: unknown key; did you mean data.max_prompt_length?",
        "seed: must be >= 0, got -1",
        "data.max_prompt_length: missing; Longest prompt in tokens, chat template included; with "
        "rollout.max_new_tokens it must fit model.max_position_embeddings",
    ]


def test_later_layers_win_and_mappings_merge_deeply(tmp_path, experiment):
    (tmp_path / "one.yaml").write_text("reward: {functions: [gsm8k, math_dapo], weights: [1, 2]}\nseed: 1\n")
    (tmp_path / "two.yaml").write_text("optimizer: {lr: 1e-3, beta1: 0.5}\nseed: 2\n")
    experiment.write_text(
        "include: [one.yaml, two.yaml]\noptimizer: {lr: 2e-3}\nreward: {functions: [auto], weights: [1]}\n"
        + experiment.read_text()
    )
    config = load_config(experiment, ["optimizer.beta2=0.9", "optimizer.beta2=0.8"])
    assert config.seed == 2
    assert (config.optimizer.lr, config.optimizer.beta1, config.optimizer.beta2) == (2e-3, 0.5, 0.8)
    assert config.reward.functions == ("auto",)


def test_includes_count_from_the_file_that_names_them(tmp_path, experiment):
    (tmp_path / "a" / "b").mkdir(parents=True)
    for file, text in (
        ("a/one.yaml", "include: b/two.yaml\n"),
        ("a/b/two.yaml", "include: ../three.yaml\n"),
        ("a/three.yaml", "seed: 33\n"),
        ("circle.yaml", "include: round.yaml\n"),
        ("round.yaml", "include: circle.yaml\n"),
    ):
        (tmp_path / file).write_text(text)
    experiment.write_text("include: [a/one.yaml, a/three.yaml]\n" + experiment.read_text())
    assert load_config(experiment).seed == 33, "a file included twice is no circle"
    with pytest.raises(ConfigError, match=r"circle: .*circle\.yaml -> .*round\.yaml -> .*circle\.yaml"):
        load_config(tmp_path / "circle.yaml")


@pytest.mark.parametrize(("content", "message"), [
    (b"a: [1", "line 1, column 6"),
    (b"seed: 1\nseed: 2\n", "line 2, column 1: key 'seed' is given twice"),
    (b"- a\n- b\n", "expected `section: ...` lines, got list"),
    (b"include: 3\n", "include: expected a path or a list of paths, got 3"),
    (b"include: nowhere.yaml\n", r"bad\.yaml: include: .*nowhere\.yaml: no such file"),
    (b"experiment: \xff\n", r"bad\.yaml: not UTF-8 text .*at byte 12"),
])  # fmt: skip
def test_an_unusable_file_is_named(tmp_path, content, message):
    (tmp_path / "bad.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(tmp_path / "bad.yaml")
    assert "bad.yaml" in str(caught.value)
    with pytest.raises(ConfigError, match=r"bed\.yaml: no such file; did you mean .*bad\.yaml\?"):
        load_config(tmp_path / "bed.yaml")


@pytest.mark.parametrize("override", ["seed", "=3", ".seed=3", "model..path=3"])
def test_an_override_without_key_or_value_is_refused(experiment, override):
    with pytest.raises(ConfigError, match="expected section.key=value"):
        load_config(experiment, [override])


def test_an_override_may_hold_colons_and_equal_signs(load):
    assert load("data.system_prompt=Answer: a=b # c").data.system_prompt == "Answer: a=b # c"
    assert load('data.system_prompt="12"').data.system_prompt == "12"
    assert load("data.train={split: dev}").data.train.split == "dev"  # merged: format stays


def test_paths_count_from_their_file_and_overrides_from_the_current_folder(tmp_path, experiment, monkeypatch):
    for folder in ("configs", "weights", "here/tokenizer"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "configs" / "model.yaml").write_text("model: {path: ../weights}\n")
    (tmp_path / "blob").write_text("")
    (tmp_path / "rows.jsonl").symlink_to(tmp_path / "blob")  # a linked file keeps its own name
    text = experiment.read_text().replace("arithmetic, split: train", "gsm8k, path: rows.jsonl")
    experiment.write_text("include: configs/model.yaml\n" + text)
    monkeypatch.chdir(tmp_path / "here")
    config = load_config(experiment, ["tokenizer.path=tokenizer"], check_files=False)
    assert config.model.path == tmp_path / "weights"
    assert config.data.train.path == tmp_path / "rows.jsonl"
    assert config.tokenizer.path == tmp_path / "here" / "tokenizer"
    assert config.run_dir == Path("runs/small")


def test_missing_files_are_refused_only_when_asked(experiment):
    overrides = ["model.path=/nowhere/weights", "tokenizer.path=/nowhere/tokenizer"]
    with pytest.raises(ConfigError) as caught:
        load_config(experiment, overrides)
    message = str(caught.value)
    assert "model.path: /nowhere/weights does not exist (nearest existing folder: /)" in message
    assert "tokenizer.path: /nowhere/tokenizer does not exist" in message
    overrides += ["data.eval.format=prepared", "data.eval.path=/nowhere/openai/gsm8k", "resume=/nowhere/run"]
    with pytest.raises(ConfigError) as caught:
        load_config(experiment, overrides)
    message = str(caught.value)
    assert "`hf download --repo-type dataset openai/gsm8k --local-dir /nowhere/openai/gsm8k`; then name one" in message
    assert message.endswith("--set resume=..., or --set resume=auto")
    assert load_config(experiment, overrides, check_files=False).model.path == Path("/nowhere/weights")


def test_importing_config_loads_neither_mindspore_nor_numpy():
    code = "import sys, mindgspo.config; print(sorted({'mindspore', 'numpy'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# ----- The YAML dialect: numbers as people write them, no YAML 1.1 surprises, nothing but plain data
SCALARS = [("1e-6", 1e-6), ("3E-4", 3e-4), ("-2e5", -2e5), ("1.", 1.0), (".5", 0.5), ("1_000_000.0", 1e6), ("512", 512),
           ("-0", 0), ("1_000", 1000), ("true", True), ("null", None), ("~", None), ("yes", "yes"), ("on", "on"),
           ("010", "010"), ("0x10", "0x10"), ("1:30", "1:30"), ("2024-01-01", "2024-01-01"), ("1e", "1e"),
           ("e5", "e5")]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), SCALARS)
def test_scalars_mean_the_same_in_files_and_overrides(text, value):
    from_file, from_override = parse_document(f"key: {text}")["key"], parse_value(text)
    assert from_file == value and type(from_file) is type(value)
    assert from_override == value and type(from_override) is type(value)


def test_an_empty_override_is_null_and_flow_values_are_read():
    assert parse_value("") is None
    assert parse_value("[1, 1e-6, a]") == [1, 1e-6, "a"]
    assert parse_value("{a: {b: 1}}") == {"a": {"b": 1}}
    assert math.isinf(parse_value(".inf"))


@pytest.mark.parametrize(("text", "message"), [
    ("a: {b: 1, b: 2}", "key 'b' is given twice"),
    ("1: x", "a key must be text, got 1"),
    ("a: &x 1\nb: *x", "alias"),
    ("a: !!python/name:os.system", "could not determine a constructor"),
    ("a: !!binary aGk=", "could not determine a constructor"),
    ("a: 1\n---\nb: 2", "another document"),
])  # fmt: skip
def test_what_is_not_plain_data_is_refused(text, message):
    with pytest.raises(yaml.YAMLError, match=message):
        parse_document(text)


KEYS = st.from_regex(r"[A-Za-z_.#:-]{1,6}", fullmatch=True)
PLAIN = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
                     lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
                     max_leaves=8)  # fmt: skip


@given(st.dictionaries(KEYS, PLAIN, max_size=4))
def test_what_is_written_is_read_back_equal(mapping):
    assert parse_document(write_document(mapping)) == mapping


@given(st.text(alphabet="\x85\u2028\u2029\r\n\t a'\"#:-\ufeff\x00"))
def test_line_breaks_and_quotes_survive(text):
    assert parse_document(write_document({"key": text, "list": [text]})) == {"key": text, "list": [text]}


@given(st.sampled_from([text for text, _ in SCALARS]))
def test_text_that_looks_like_a_number_stays_text(text):
    assert parse_document(write_document({"key": text})) == {"key": text}


# ----- Model and plans from an experiment or from a file that holds nothing else, with the same errors
ROOT = Path(__file__).resolve().parents[3]
MODELS = sorted((ROOT / "model_configs").glob("*.yaml"))

# Weights of the published safetensors files; of GLM-4.5-Air without the 3,616,573,568 of layer 46, which predicts
# further tokens.
PUBLISHED = {"qwen2_5_0_5b.yaml": 494_032_768, "qwen2_5_1_5b.yaml": 1_543_714_304, "qwen2_5_3b.yaml": 3_085_938_688,
             "qwen2_5_7b.yaml": 7_615_616_512, "qwen2_5_32b.yaml": 32_763_876_352,
             "qwen2_5_32b_64.yaml": 32_763_876_352, "qwen3_0_6b.yaml": 596_049_920, "qwen3_4b.yaml": 4_022_468_096,
             "qwen3_8b.yaml": 8_190_735_360, "qwen3_32b.yaml": 32_762_123_264, "qwen3_32b_64.yaml": 32_762_123_264,
             "qwen3_30b_a3b.yaml": 30_532_122_624, "llama3_1_8b.yaml": 8_030_261_248,
             "glm4_9b.yaml": 9_400_279_040, "glm4_5_air.yaml": 106_852_251_264,
             "moonlight_16b_a3b.yaml": 15_960_110_208}  # fmt: skip
TINY = """
model: {vocab_size: 64, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 4, num_attention_heads: 8,
  num_key_value_heads: 2}
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    (tmp_path / "tiny.yaml").write_text(TINY, encoding="utf-8")
    return tmp_path / "tiny.yaml"


@pytest.mark.parametrize("name", PUBLISHED)
def test_shipped_models_have_the_published_number_of_weights(name: str):
    from mindgspo.models.names import parameter_shapes

    model, _ = load_model_and_plans(ROOT / "model_configs" / name)
    assert sum(math.prod(shape) for shape in parameter_shapes(model).values()) == PUBLISHED[name]


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.name)
def test_shipped_plans_are_for_8_or_64_cards_or_16_or_32_for_many_experts(path: Path):
    _, plans = load_model_and_plans(path)
    cards = 64 if path.stem.endswith("_64") else 8 if path.name in PUBLISHED else 1
    cards = {"qwen3_30b_a3b": 32, "qwen3_30b_a3b_16": 16, "glm4_5_air": 64}.get(path.stem, cards)
    assert plans.train.world_size == plans.infer.world_size == cards


@pytest.mark.parametrize("name", ["qwen2_5_32b_64.yaml", "qwen3_32b_64.yaml"])
def test_what_64_cards_train_fits_them(name: str):
    from mindgspo.models.names import parameter_shapes
    from mindgspo.parallel.plans.parameter_layouts import moment_layouts, parameter_layouts

    model, plans = load_model_and_plans(ROOT / "model_configs" / name)
    shapes = parameter_shapes(model)

    def held(layouts, rank: int) -> int:
        return sum(math.prod(held.shape) for layout in layouts.values() if (held := layout.slice_of(rank)) is not None)

    weights = parameter_layouts(shapes, model, plans.train)
    shards = moment_layouts(shapes, model, plans.train)
    for rank in (0, 63):
        # bfloat16 copy and float32 gradient of all that is computed with, float32 weight and two moments of the shard.
        num_bytes = 6 * held(weights, rank) + 12 * held(shards, rank)
        assert 12e9 < num_bytes < 14e9


def test_an_experiment_gives_what_load_config_gives(experiment: Path):
    config = load_config(experiment, ["seed=3", "model.num_attention_heads=8"])
    assert load_model_and_plans(experiment, ["seed=3", "model.num_attention_heads=8"]) == (config.model, config.plans)


def test_a_model_file_takes_overrides_and_default_plans(tiny: Path):
    model, plans = load_model_and_plans(tiny, ["model.hidden_size=64"])
    assert (model.hidden_size, model.head_dim, plans.train.world_size) == (64, 8, 1)
    _, plans = load_model_and_plans(tiny, ["plans.train.model_parallel=4", "plans.infer.model_parallel=4"])
    assert plans.train.model_parallel == 4


@pytest.mark.parametrize(("overrides", "lines"), [
    (["seed=3"], ["seed: the file holds model and plans only; leave it out"]),
    (["plans.train.model_paralel=2"], ["plans.train.model_paralel: unknown key; did you mean"]),
    (["model.vocab_size=many"], ["model.vocab_size: expected an integer, got 'many'"]),
    (["plans.train.model_parallel=3", "plans.infer.model_parallel=3"],
     ["plans.train.model_parallel: 3 does not split", "plans.infer.model_parallel: 3 does not split"]),
    (["plans.train.model_parallel=4"], ["plans.infer: plans.train 1 x 4 x 1 needs 4 workers"]),
    (["model.num_attention_heads=10"], ["model.hidden_size: 32 / num_attention_heads 10 = 3.2 must be"]),
])  # fmt: skip
def test_what_is_wrong_is_named_as_in_an_experiment(tiny: Path, overrides: list[str], lines: list[str]):
    with pytest.raises(ConfigError) as caught:
        load_model_and_plans(tiny, overrides)
    header, *said = str(caught.value).split("\n  ")
    assert header.startswith(f"{tiny}: {len(said)} problem")
    for line in lines:
        assert any(one.startswith(line) for one in said), said


def test_a_file_with_other_sections_must_be_a_whole_experiment(tmp_path: Path):
    (tmp_path / "half.yaml").write_text(TINY + "seed: 3\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="data: missing"):
        load_model_and_plans(tmp_path / "half.yaml")
    with pytest.raises(ConfigError, match="no such file"):
        load_model_and_plans(tmp_path / "none.yaml")


# ----- Every YAML that ships with the project loads, and what is dumped loads back equal
EXAMPLES = sorted(path for path in (ROOT / "examples").rglob("*.yaml") if path.parent.name not in ("targets", "sweeps"))


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODELS, ids=_name)
def test_model_config_fits_into_an_experiment(path, tmp_path, experiment):
    own = read_layers(experiment, ())
    del own["model"]
    # Whatever the plans, replicas and micro-batches divide these.
    own["rollout"]["prompts_per_step"] = own["trainer"]["prompts_per_mini_batch"] = 16
    own["trainer"]["samples_per_micro_batch"] = 1
    if "plans:" in path.read_text():
        own["device"] = "Ascend"  # plans for cards: stages, shards, experts
    standalone = tmp_path / "with_model.yaml"
    standalone.write_text(f"include: {path}\n" + write_document(own))
    assert load_config(standalone).model.vocab_size == read_layers(path, ())["model"]["vocab_size"]


@pytest.mark.parametrize("path", EXAMPLES, ids=_name)
def test_an_example_is_legal_on_both_devices_and_its_dump_loads_back_from_another_folder(path, tmp_path, monkeypatch):
    assert load_config(path, ["device=Ascend"], check_files=False).device == "Ascend"
    config = load_config(path, check_files=False)
    (tmp_path / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert load_config("config.yaml", check_files=False) == config


@given(prompt=st.none() | st.text(), seed=st.integers(0, 2**64 - 1), lr=st.floats(min_value=1e-12, max_value=10),
      tokens=st.lists(st.text(), min_size=1, max_size=3))  # fmt: skip
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_dump_loads_back_any_value(experiment, tmp_path, prompt, seed, lr, tokens):
    values = {"seed": seed, "data": {"system_prompt": prompt}, "optimizer": {"lr": lr}}
    values["tokenizer"] = {"eos_tokens": tokens}
    changed = ExperimentConfig.model_validate(merge(config_mapping(load_config(experiment)), values))
    path = tmp_path / "dumped.yaml"
    path.write_text(dump_config(changed), encoding="utf-8")
    assert load_config(path) == resolve(changed)


@pytest.mark.parametrize(("key", "text"), list(known_keys()), ids=lambda value: value if "." in value else "")
def test_every_key_has_a_text(key: str, text: str):
    assert len(text) >= 10, f"{key} needs a docstring: meaning, unit, range, where the default comes from"


# ----- A field of the schema exists only if code outside the configuration room reads it
PACKAGE = Path(__file__).resolve().parents[3] / "mindgspo"

# Fields whose whole effect is inside the configuration room, each with its reason.
READ_BY_CONFIG_ALONE = {"AlgorithmSection.allow_wide_clip": "lifts a rule of config.rules",
                        "AlgorithmSection.allow_token_weighting": "lifts a rule of config.rules",
                        "LoraSection.dropout": "must be 0", "ModelSection.table_rows": "`rows` is read",
                        "ModelSection.partial_rotary_factor": "`rotary_dim` is read",
                        "ModelSection.use_qk_norm": "`has_head_norms` is read",
                        "ModelSection.first_k_dense_replace": "`expert_layers` is read",
                        "ModelSection.num_nextn_predict_layers": "`left_out_layers` is read"}  # fmt: skip


def _fields(section: type[Section] = ExperimentConfig) -> set[tuple[str, str]]:
    """(class name, field) of every section except the plan, whose rules refuse all but its defaults."""
    found = set()
    for name in section.model_fields:
        below = section_of(section, name)
        found.add((section.__name__, name))
        if below is not None and below is not ParallelPlan:
            found |= _fields(below)
    return found


def _attributes_read() -> set[str]:
    """Every `x` of a `....x` that is read in the package outside mindgspo/config."""
    files = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != "config"]
    return {
        node.attr
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


def test_every_field_is_read_by_some_code():
    read = _attributes_read()
    fields = {f"{section}.{field}": field for section, field in _fields()}
    assert fields.keys() >= READ_BY_CONFIG_ALONE.keys() and len(EXAMPLES) >= 3 and len(MODELS) >= 4
    dead = sorted({name for name, field in fields.items() if field not in read} - READ_BY_CONFIG_ALONE.keys())
    assert not dead, f"no code outside mindgspo/config reads: {', '.join(dead)}; use them or remove them"


@pytest.mark.parametrize("content", ["", "\n# a comment\n", "---\n"])
def test_an_empty_file_is_no_experiment(content: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"mine.yaml: is empty; `mindgspo init` writes an experiment"):
        load_config(path)
