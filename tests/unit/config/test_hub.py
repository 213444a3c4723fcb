"""Names on hubs: what is one, what is fetched, which commit, what goes wrong. The hub is a server on this machine."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from fake_hub import Hub, serve_hub
from huggingface_folders import write_folder, write_rows

from mindgspo.cli import main
from mindgspo.cli.options import model_folder
from mindgspo.config import config_mapping, dump_config, load_config
from mindgspo.config.hub import REVISIONS, Fetch, hub_names, hub_revisions, is_hub_name, with_hub_folders
from mindgspo.errors import ConfigError
from mindgspo.metrics.environment import record_start
from mindgspo.trainer.check import check_experiment
from mindgspo.trainer.start import RunRequest

constants = pytest.importorskip("huggingface_hub.constants")

ROOT = Path(__file__).resolve().parents[3]
WARMED_UP = ROOT / "examples" / "arithmetic" / "warmed_up"
MODEL = {name: (WARMED_UP / name).read_bytes() for name in ("config.json", "model.safetensors")}
MODEL |= {"modeling.py": b"raise SystemExit", "pytorch_model.bin": b"pickle", "onnx/config.json": b"{}", "x.pkl": b""}
TAKEN = ["config.json", "model.safetensors"]
ROWS = b'{"question": "1+1", "answer": "2"}\n'


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with serve_hub() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        yield server


def resolved(text: str, section: str = "model", fetch: Fetch = Fetch.ALL, **more: object) -> Path:
    found = with_hub_folders("x.yaml", {section: {"path": text}, **more}, fetch)
    return Path(found[section]["path"])


def problem(text: str, section: str = "model", fetch: Fetch = Fetch.ALL) -> str:
    with pytest.raises(ConfigError) as caught:
        resolved(text, section, fetch)
    title, *lines = str(caught.value).split("\n")
    assert title == "x.yaml: 1 problem" and len(lines) == 1
    return lines[0].strip()


@pytest.mark.parametrize(
    ("text", "section", "is_name"),
    [
        ("Qwen/Qwen3-0.6B", "model", True),
        ("Qwen/Qwen3-0.6B@main", "tokenizer", True),
        ("modelscope:Qwen/Qwen3-0.6B", "model", True),
        ("openai/gsm8k/main/train-00000-of-00001.parquet", "data", True),
        ("openai/gsm8k", "data", True),
        ("Qwen/Qwen3-0.6B", "swap", False),  # no section with repositories
        ("Qwen/Qwen3/sub", "model", False),
        ("Qwen/../x", "model", False),
        ("./Qwen/x", "model", False),
        ("/Qwen/x", "model", False),
        ("here/x", "model", False),  # a folder beside the file
        ("models/x", "model", False),
        ("data/gsm8k/train.parquet", "data", False),
        ("rows/train.jsonl", "data", False),
        ("name", "model", False),
    ],
)
def test_what_is_a_name(text, section, is_name, tmp_path):
    (tmp_path / "here").mkdir()
    assert is_hub_name(text, section, tmp_path) is is_name


def test_only_weights_configuration_and_tokenizer_are_taken(hub: Hub):
    commit = hub.add("models/o/m", MODEL)
    folder = resolved("o/m")
    assert folder.parts[-2:] == ("snapshots", commit)
    assert sorted(path.name for path in folder.iterdir()) == TAKEN == sorted(hub.fetched)
    assert (folder / "model.safetensors").read_bytes() == MODEL["model.safetensors"]


def test_weights_are_left_out_by_check_and_data_by_plan(hub: Hub):
    hub.add("models/o/m", MODEL)
    hub.add("datasets/o/d", {"train.jsonl": ROWS})
    resolved("o/m", fetch=Fetch.INPUTS)
    resolved("o/d/train.jsonl", "data", Fetch.SIZES)
    assert hub.fetched == ["config.json"]
    assert resolved("o/d/train.jsonl", "data", Fetch.INPUTS).read_bytes() == ROWS


@pytest.mark.parametrize("bad", ["../../evil.json", "/etc/evil.json", "a/../../evil.json", "..", ".hidden.json"])
def test_names_that_try_to_escape_are_not_fetched(hub: Hub, bad, tmp_path):
    hub.add("models/o/m", {**MODEL, bad: b"{}"})
    hub.add("datasets/o/d", {"train.jsonl": ROWS, bad + "l": b"{}"})
    resolved("o/m")
    resolved("o/d/train.jsonl", "data")
    assert f"{bad}l" not in problem("o/d", "data")
    assert sorted(hub.fetched) == [*TAKEN, "train.jsonl"]
    assert not list(tmp_path.rglob("evil*"))


def test_a_data_set_without_a_file_lists_them(hub: Hub):
    hub.add("datasets/o/d", {"a/train.parquet": b"1", "b/test.jsonl": ROWS, "load.py": b""})
    fix = "is a data set; name one of its files, e.g. o/d/a/train.parquet, o/d/b/test.jsonl"
    assert problem("o/d", "data").endswith(fix)
    assert "has no c.jsonl; name one" in problem("o/d/c.jsonl", "data")


def test_a_resumed_run_uses_its_commit(hub: Hub, tmp_path):
    old = hub.add("models/o/m", MODEL)
    hub.repositories["models/o/m"].branches["dev"] = old
    run = tmp_path / "run"
    run.mkdir()
    first = resolved("o/m")
    assert resolved("o/m@dev") == first
    saved = hub_names({"model": {"path": str(first)}})
    assert saved == {"model": {"path": f"o/m@{old}"}}
    assert hub_revisions(saved) == {"model o/m": old, "model o/m@dev": old}
    record_start(run, step=0, device="CPU", hub=hub_revisions(saved))
    new = hub.repositories["models/o/m"].branches["dev"] = hub.add("models/o/m", MODEL)
    for name in ("o/m", "o/m@dev"):
        assert resolved(name).name == new
        assert resolved(name, resume="auto", run_dir=str(run)) == first
        assert resolved(name, resume=str(run / "checkpoints" / "step_1")) == first
        assert resolved(name, resume="never", run_dir=str(run)).name == new
    with (run / "environment.jsonl").open("a") as file:
        file.write('{"hub": 3\n')
    with pytest.raises(ConfigError, match="environment.jsonl: cannot be read .* remove the damaged line"):
        resolved("o/m", resume="auto", run_dir=str(run))
    assert resolved(str(first), resume="auto", run_dir=str(run)) == first, "without a name nothing is read"


def test_sft_finds_the_commit_of_its_own_folder(hub: Hub, tmp_path, monkeypatch):
    old = hub.add("models/o/m", MODEL)
    monkeypatch.chdir(tmp_path)
    request = RunRequest(
        command="sft",
        config=ROOT / "examples/arithmetic/gspo.yaml",
        overrides=("model.path=o/m", "warmup.max_steps=1", "resume=auto"),
        overwrite=False,
        complete=lambda config: config,
    )
    first = request.experiment()
    assert first.run_dir == Path("runs/arithmetic-gspo-sft") and first.model.path.name == old
    first.run_dir.mkdir(parents=True)
    record_start(first.run_dir, step=0, device="CPU", hub=hub_revisions(config_mapping(first)))
    new = hub.add("models/o/m", MODEL)
    assert request.experiment() == first
    assert replace(request, command="run").experiment().model.path.name == new


def test_processes_of_a_launch_do_not_ask_the_hub(hub: Hub, monkeypatch):
    commit = hub.add("models/o/m", MODEL)
    folder = resolved("o/m")
    hub.add("models/o/m", MODEL)
    asked = hub.asked
    monkeypatch.setenv(REVISIONS, json.dumps({"model o/m": commit}))
    assert resolved("o/m") == folder
    assert hub.asked == asked


def test_a_saved_experiment_is_read_without_the_hub(hub: Hub):
    """Its sizes are in it, so that reports need neither a connection nor the cache."""
    commit = hub.add("models/o/m", MODEL)
    saved = {"model": {"path": f"o/m@{commit}", "vocab_size": 8}}
    assert with_hub_folders("x.yaml", saved, Fetch.SIZES) == saved and hub.asked == 0
    folder = resolved("o/m")
    assert with_hub_folders("x.yaml", saved, Fetch.SIZES)["model"]["path"] == str(folder)


def test_missing_private_gated_and_unknown_revisions_are_one_line(hub: Hub):
    hub.add("models/o/m", MODEL)
    hub.add("models/o/gated", MODEL, status=403, error="GatedRepo")
    hub.add("models/o/private", MODEL, status=401, error="RepoNotFound")
    hub.add("models/o/pickles", {"config.json": b"{}", "pytorch_model.bin": b""})
    assert (
        f"o/none: no such folder here, and no such model at {hub.url}, or a private one; check the name, or log in"
        in problem("o/none")
    )
    assert "or a private one" in problem("o/private") and "HF_TOKEN" in problem("o/private")
    assert "o/gated: access is restricted; ask for it" in problem("o/gated")
    assert "o/m@v9: has no revision v9" in problem("o/m@v9")
    assert "o/pickles" in problem("o/pickles") and "has no model*.safetensors" in problem("o/pickles")


def test_offline_takes_what_the_cache_has(hub: Hub, monkeypatch):
    hub.add("models/o/m", MODEL)
    folder = resolved("o/m")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert resolved("o/m") == folder
    assert "cannot be reached" in (line := problem("o/other")) and "offline mode is enabled" in line


def test_a_hub_that_cannot_be_reached(hub: Hub, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    line = problem("o/m")
    assert "http://127.0.0.1:9 cannot be reached" in line and "set HF_ENDPOINT to a mirror, or give a folder" in line


def test_room_is_checked_before(hub: Hub, monkeypatch):
    hub.add("models/o/m", MODEL)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    assert "1,000 bytes are free" in (line := problem("o/m")) and line.endswith(
        "set HF_HOME to a folder on a larger disk"
    )
    assert hub.fetched == []


def test_repositories_of_very_many_files_are_refused(hub: Hub, monkeypatch):
    monkeypatch.setattr("mindgspo.config.hub._MOST_FILES", 5)
    hub.add("models/o/m", MODEL)
    assert "6 files; a commit of 1 to 5 can be used, or a folder" in problem("o/m")
    assert hub.fetched == []


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    assert "no such folder here; to fetch it, pip install 'mindgspo[huggingface]'" in problem("o/m")


def test_a_whole_experiment(hub: Hub, tmp_path):
    commit = hub.add("models/o/m", MODEL)
    config = load_config(ROOT / "examples/arithmetic/gspo.yaml", ["model.path=o/m", "warmup=null"])
    assert config.model.path == tmp_path / "cache" / "models--o--m" / "snapshots" / commit
    (tmp_path / "config.yaml").write_text(dump_config(config))
    assert f"path: o/m@{commit}\n" in dump_config(config)
    assert load_config(tmp_path / "config.yaml") == config


@pytest.fixture
def modelscope(monkeypatch, tmp_path):
    pytest.importorskip("modelscope_hub")
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "modelscope"))
    with serve_hub() as server:
        monkeypatch.setenv("MODELSCOPE_ENDPOINT", server.url)
        yield server


def test_modelscope(modelscope: Hub, monkeypatch):
    commit = modelscope.add("models/o/m", MODEL)
    folder = resolved("modelscope:o/m")
    assert folder.parts[-4:] == ("models", "o--m", "snapshots", commit)
    assert sorted(set(modelscope.fetched)) == TAKEN
    assert hub_names({"model": {"path": str(folder)}}) == {"model": {"path": f"modelscope:o/m@{commit}"}}
    modelscope.add("datasets/o/d", {"a/train.jsonl": ROWS, "load.py": b""})
    assert resolved("modelscope:o/d/a/train.jsonl", "data").read_bytes() == ROWS
    assert "modelscope:o/none: no such folder here, and no such model at" in problem("modelscope:o/none")
    newer = modelscope.add("models/o/m", MODEL)
    assert resolved("modelscope:o/m").name == newer
    assert resolved(f"modelscope:o/m@{commit}") == folder
    monkeypatch.setattr("urllib3.util.retry.Retry.sleep", lambda *_: None)
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", "http://127.0.0.1:9")
    assert resolved(f"modelscope:o/m@{commit}") == folder, "without a connection"
    assert "http://127.0.0.1:9 cannot be reached" in problem("modelscope:o/other")


def test_check_does_not_need_weights(hub: Hub, tmp_path):
    hub.add("models/o/m", MODEL)
    overrides = ["model.path=o/m", "warmup=null", f"run_dir={tmp_path / 'run'}"]
    config = load_config(ROOT / "examples/arithmetic/gspo.yaml", overrides, fetch=Fetch.INPUTS)
    lines = list(islice(check_experiment(config), 2))
    assert lines[1].startswith("model: o/m@") and lines[1].endswith("its weights are fetched when the run starts")
    assert hub.fetched == ["config.json"]


def test_init_takes_names_and_pins_them(hub: Hub, tmp_path, monkeypatch, capsys):
    write_rows(tmp_path / "pens.jsonl")
    write_folder(tmp_path / "hf", "Qwen2", tmp_path / "pens.jsonl")
    model = hub.add("models/o/m", {path.name: path.read_bytes() for path in (tmp_path / "hf").iterdir()})
    hub.add("datasets/o/d", {"pens.jsonl": (tmp_path / "pens.jsonl").read_bytes()})
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--model", "o/m", "--data", "o/d/pens.jsonl"]) == 0
    assert "parameters, o/m; responses end at <eos>" in capsys.readouterr().out
    text = (tmp_path / "m-pens.yaml").read_text()
    assert f"path: o/m@{model}" in text and str(tmp_path / "cache") not in text
    assert not any(name.endswith(".safetensors") for name in hub.fetched)


def test_commands_take_names(hub: Hub):
    hub.add("models/o/m", MODEL)
    assert sorted(path.name for path in model_folder(Path("o/m")).iterdir()) == TAKEN
    assert model_folder(ROOT / "examples") == ROOT / "examples"
    with pytest.raises(ConfigError, match="^o/none: no such folder here, and no such model at http"):
        model_folder(Path("o/none"))
