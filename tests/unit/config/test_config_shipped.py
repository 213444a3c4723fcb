"""Every YAML that ships with the project loads, and what is dumped loads back equal."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mindgspo.config import ExperimentConfig, config_mapping, dump_config, load_config
from mindgspo.config.load import merge, read_layers, resolve
from mindgspo.config.messages import known_keys
from mindgspo.config.yaml_dialect import write_document

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted((ROOT / "examples").rglob("*.yaml"))
MODELS = sorted((ROOT / "model_configs").glob("*.yaml"))


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_there_are_yaml_files_to_load():
    assert len(EXAMPLES) >= 3 and len(MODELS) >= 4


@pytest.mark.parametrize("path", EXAMPLES, ids=_name)
def test_example_loads(path):
    assert load_config(path, check_files=False).run_dir is not None


@pytest.mark.parametrize("path", EXAMPLES, ids=_name)
def test_example_is_legal_on_ascend(path):
    assert load_config(path, ["device=Ascend"], check_files=False).device == "Ascend"


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
def test_dump_loads_back_equal_from_another_folder(path, tmp_path, monkeypatch):
    config = load_config(path, check_files=False)
    (tmp_path / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert load_config("config.yaml", check_files=False) == config


@given(
    prompt=st.none() | st.text(),
    seed=st.integers(0, 2**64),
    lr=st.floats(min_value=1e-12, max_value=10),
    tokens=st.lists(st.text(), min_size=1, max_size=3),
)
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_dump_loads_back_any_value(experiment, tmp_path, prompt, seed, lr, tokens):
    config = load_config(experiment)
    changed = ExperimentConfig.model_validate(
        merge(
            config_mapping(config),
            {
                "seed": seed,
                "data": {"system_prompt": prompt},
                "optimizer": {"lr": lr},
                "tokenizer": {"eos_tokens": tokens},
            },
        )
    )
    path = tmp_path / "dumped.yaml"
    path.write_text(dump_config(changed), encoding="utf-8")
    assert load_config(path) == resolve(changed)


@pytest.mark.parametrize(("key", "text"), list(known_keys()), ids=lambda value: value if "." in value else "")
def test_every_key_has_a_text(key: str, text: str):
    assert len(text) >= 10, f"{key} needs a docstring: meaning, unit, range, where the default comes from"
