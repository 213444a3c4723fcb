"""Conversion of weights, and the Hugging Face export."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from damage import flip_bit
from planned_checkpoints import save_small
from small_plans import LATENTS, small_model
from weight_files import write_safetensors

from mindgspo.checkpoint.adapted import base_digest, base_record
from mindgspo.checkpoint.convert import Conversion, convert_model
from mindgspo.checkpoint.export import export_huggingface
from mindgspo.checkpoint.store import Retention, save_checkpoint
from mindgspo.cli import main
from mindgspo.config import ExperimentConfig, ModelSection, TokenizerSection, dump_config, load_config
from mindgspo.config.huggingface_config import generation_config, huggingface_config
from mindgspo.config.yaml_dialect import parse_document
from mindgspo.errors import CheckpointError, WeightsError
from mindgspo.models.initial_values import DrawnTensors
from mindgspo.models.lora import BASE_KEY, peft_names
from mindgspo.models.names import is_adapter, is_trained, weight_shapes
from mindgspo.tensor_files.reader import open_tensors
from mindgspo.tensor_files.tensors import bfloat16_bits
from mindgspo.tensor_files.writer import read_safetensors
from mindgspo.tokenization import load_tokenizer


class FakeTokenizer:
    """A tokenizer's files, of which only the bytes matter here; error: as of a full disk."""

    def __init__(self, error: OSError | None = None) -> None:
        self.error = error

    def save(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text('{"of": "the test"}')
        if self.error:
            raise self.error
        (folder / "chat_template.jinja").write_text("{{ messages }}")


def section(*, architecture: str = "qwen2", tied: bool = False) -> ModelSection:
    return ModelSection(architecture=architecture, vocab_size=16, hidden_size=8, intermediate_size=12,
                        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                        tie_word_embeddings=tied)  # fmt: skip


def some_weights(model: ModelSection) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {name: random.standard_normal(shape, dtype=np.float32) for name, shape in weight_shapes(model).items()}


def exported(folder: Path, model: ModelSection | None = None, **options: object) -> Path:
    model = model or section()
    export_huggingface(folder, tensors=some_weights(model),
                       model_config=huggingface_config(model, eos_ids=[2], pad_id=0),
                       generation_config=generation_config(eos_ids=[2], pad_id=0),
                       tokenizer=FakeTokenizer(), **options)  # fmt: skip
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return exported(tmp_path / "source")


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def assert_nothing_is_left(parent: Path, *names: str) -> None:
    assert sorted(path.name for path in parent.iterdir()) == sorted(names)


# ---- there and back
def test_an_export_converts_to_itself(tmp_path: Path, source: Path) -> None:
    done = convert_model(Conversion(source=source, out=tmp_path / "out"))
    assert files(tmp_path / "out") == files(source)
    assert done.files == (tmp_path / "out" / "model.safetensors",)
    assert json.loads((source / "generation_config.json").read_text()) == generation_config(eos_ids=[2], pad_id=0)
    assert done.travelled == ("chat_template.jinja", "config.json", "generation_config.json", "tokenizer.json")
    assert (done.num_weights, done.num_bytes) == (27, sum(array.nbytes for array in some_weights(section()).values()))


def test_shards_and_back_are_the_same_bytes(tmp_path: Path, source: Path) -> None:
    convert_model(Conversion(source=source, out=tmp_path / "shards", max_shard_bytes=1500))
    names = sorted(path.name for path in (tmp_path / "shards").glob("*.safetensors"))
    count = len(names)
    assert count > 2 and names == [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]
    index = json.loads((tmp_path / "shards" / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": sum(array.nbytes for array in some_weights(section()).values())}
    for name in names:
        with open_tensors(tmp_path / "shards" / name) as shard:
            assert sum(info.num_bytes for info in shard.tensors.values()) <= 1500
    convert_model(Conversion(source=tmp_path / "shards", out=tmp_path / "back"))
    assert files(tmp_path / "back") == files(source)
    assert files(exported(tmp_path / "sharded", max_shard_bytes=1500)) == files(tmp_path / "shards")
    convert_model(Conversion(source=source, out=tmp_path / "mf", layout="mindformers", max_shard_bytes=1500))
    content = files(tmp_path / "mf")
    assert content["param_name_map.json"] == content["model.safetensors.index.json"], "which MindSpore looks for"
    assert "model.norm_out.weight" in json.loads(content["param_name_map.json"])["weight_map"]


@pytest.mark.parametrize("file_format", ["safetensors", "ckpt"])
@pytest.mark.parametrize("model", [section(), section(tied=True), section(architecture="llama")], ids=repr)
def test_mindformers_and_back_are_the_same_bytes(tmp_path: Path, model: ModelSection, file_format: str) -> None:
    mindspore = pytest.importorskip("mindspore")
    source = exported(tmp_path / "source", model)
    convert_model(Conversion(source=source, out=tmp_path / "mf", layout="mindformers", file_format=file_format))
    loaded = mindspore.load_checkpoint(str(tmp_path / "mf" / f"model.{file_format}"), format=file_format)
    weights = some_weights(model)
    assert len(loaded) == len(weights)
    for theirs, name in (("tok_embeddings.embedding_weight", "embed_tokens.weight"),
                         ("layers.1.feed_forward.w2.weight", "layers.1.mlp.down_proj.weight")):  # fmt: skip
        assert np.array_equal(loaded[f"model.{theirs}"].asnumpy(), weights[f"model.{name}"])
    convert_model(Conversion(source=tmp_path / "mf", out=tmp_path / "back"))
    assert files(tmp_path / "back") == files(source)


def test_a_bare_file_takes_its_description_from_another_folder(tmp_path: Path, source: Path) -> None:
    (tmp_path / "bare").mkdir()
    weights = (source / "model.safetensors").rename(tmp_path / "bare" / "w.safetensors")
    with pytest.raises(WeightsError, match="w.safetensors: a file with weights alone.*--model-folder"):
        convert_model(Conversion(source=weights, out=tmp_path / "out"))
    convert_model(Conversion(source=weights, out=tmp_path / "out", model_folder=source))
    assert files(tmp_path / "out") == {**files(source), "model.safetensors": weights.read_bytes()}


# ---- dtypes
def test_bfloat16_is_rounded_and_named(tmp_path: Path, source: Path) -> None:
    convert_model(Conversion(source=source, out=tmp_path / "half", dtype="bfloat16"))
    with open_tensors(tmp_path / "half") as found:
        for name, array in some_weights(section()).items():
            assert found.tensors[name].dtype == "BF16"
            assert np.array_equal(found.read(name), bfloat16_bits(array))
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (source, tmp_path / "half"))
    assert after == {**before, "torch_dtype": "bfloat16"}
    convert_model(Conversion(source=tmp_path / "half", out=tmp_path / "wide", dtype="float32"))
    assert files(tmp_path / "wide")["config.json"] == files(source)["config.json"]
    assert files(tmp_path / "wide").keys() == files(source).keys()


def test_mixed_dtypes_are_kept_and_a_config_without_dtype_gets_one(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    source = exported(tmp_path / "source")
    weights = some_weights(section())
    weights["model.norm.weight"] = weights["model.norm.weight"].astype(np.float16)
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    del config["torch_dtype"]
    (source / "config.json").write_text(json.dumps(config))
    convert_model(Conversion(source=source, out=tmp_path / "kept"))
    assert files(tmp_path / "kept") == files(source)
    convert_model(Conversion(source=source, out=tmp_path / "wide", dtype="float32"))
    assert json.loads((tmp_path / "wide" / "config.json").read_text())["torch_dtype"] == "float32"
    assert read_safetensors(tmp_path / "wide")["model.norm.weight"].dtype == np.float32


def test_overflow_is_refused_and_leaves_nothing(tmp_path: Path, source: Path) -> None:
    weights = some_weights(section())
    weights["lm_head.weight"][3, 4] = 70000
    write_safetensors(source / "model.safetensors", weights)
    with pytest.raises(WeightsError, match="1 values of lm_head.weight are too large for float16.*70000"):
        convert_model(Conversion(source=source, out=tmp_path / "out", dtype="float16"))
    assert_nothing_is_left(tmp_path, "source")


@pytest.mark.parity
@pytest.mark.parametrize(("family", "own"), [
    ("Qwen2", {"tie_word_embeddings": False}),
    ("Qwen2", {"tie_word_embeddings": True}),
    ("Llama", {}),
    ("Qwen3", {"head_dim": 16}),
    ("Qwen3Moe", {"head_dim": 16, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 20}),
])  # fmt: skip
def test_what_transformers_saved_is_written_again_byte_for_byte(tmp_path: Path, family: str, own: dict) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = getattr(transformers, f"{family}Config")(vocab_size=64, num_hidden_layers=2, **sizes, **own)
    model = getattr(transformers, f"{family}ForCausalLM")(config).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) >= 2
    for kind in ("whole", "shards"):
        convert_model(Conversion(source=tmp_path / kind, out=tmp_path / f"from_{kind}"))
        found, theirs = files(tmp_path / f"from_{kind}"), files(tmp_path / "whole")
        del found["mindgspo_export.json"]
        assert found == theirs
    convert_model(Conversion(source=tmp_path / "whole", out=tmp_path / "ours", max_shard_bytes=20_000))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.bfloat16)
    for (name, one), (_, other) in zip(model.named_parameters(), loaded.named_parameters(), strict=True):
        assert torch.equal(one, other), name


# ---- tied weights
def test_a_copy_of_the_tied_table_is_left_out_if_it_is_one(tmp_path: Path) -> None:
    source = exported(tmp_path / "source", section(tied=True))
    expected = files(source)
    weights = some_weights(section(tied=True))
    table = weights["model.embed_tokens.weight"]
    write_safetensors(source / "model.safetensors", {**weights, "lm_head.weight": table.copy()})
    convert_model(Conversion(source=source, out=tmp_path / "out"))
    assert files(tmp_path / "out") == expected
    write_safetensors(source / "model.safetensors", {**weights, "lm_head.weight": table + 1})
    with pytest.raises(WeightsError, match="lm_head.weight differs from model.embed_tokens.weight; set tie"):
        convert_model(Conversion(source=source, out=tmp_path / "other"))


# ---- layers that predict further tokens, and FP8
def predicting(folder: Path) -> Path:
    """A DeepSeek-V3 of two layers in a real file, with tensors of a third one that predicts a second token."""
    model = small_model(**LATENTS)
    exported(folder, model)
    weights = some_weights(model)
    of_third = {name.replace(".1.", ".2.", 1): array for name, array in weights.items() if "layers.1." in name}
    more = {f"model.layers.2.{name}.weight": np.ones((4, 4), np.float32) for name in ("eh_proj", "shared_head.head")}
    write_safetensors(folder / "model.safetensors", weights | of_third | more)
    content = json.loads((folder / "config.json").read_text()) | {"num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(content))
    return folder


def test_layers_that_are_left_out_are_named_by_config_json(tmp_path: Path) -> None:
    source = predicting(tmp_path / "source")
    convert_model(Conversion(source=source, out=tmp_path / "out"))
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (written["num_nextn_predict_layers"], written["mindgspo_left_out"]) == (0, ["model.layers.2"])
    names = read_safetensors(tmp_path / "out" / "model.safetensors").keys()
    assert "model.layers.1.mlp.gate.weight" in names and not any("layers.2." in name for name in names)
    convert_model(Conversion(source=tmp_path / "out", out=tmp_path / "again"))
    assert files(tmp_path / "again") == files(tmp_path / "out")


def test_weights_in_fp8_are_refused_by_name(tmp_path: Path) -> None:
    source = predicting(tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    fp8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    (source / "config.json").write_text(json.dumps(config | {"quantization_config": fp8}))
    with pytest.raises(WeightsError, match=r"config.json: quantization_config is set .*fp8.*; cast the weights to bf"):
        convert_model(Conversion(source=source, out=tmp_path / "out"))
    # Without the key: the tensors say it.
    (source / "config.json").write_text(json.dumps(config))
    name = "model.layers.1.self_attn.o_proj.weight"
    header = {name: {"dtype": "F8_E4M3", "shape": [2, 2], "data_offsets": [0, 4]},
              f"{name}_scale_inv": {"dtype": "F32", "shape": [1, 1], "data_offsets": [4, 8]}}  # fmt: skip
    text = json.dumps(header).encode()
    (source / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(WeightsError, match=rf"(?s)cannot be read here \(use float32, .*{name}.*F8_E4M3"):
        convert_model(Conversion(source=source, out=tmp_path / "out"))
    assert_nothing_is_left(tmp_path, "source")


# ---- what cannot be converted
def test_a_target_that_holds_something_is_never_touched(tmp_path: Path, source: Path) -> None:
    (tmp_path / "out").mkdir()
    convert_model(Conversion(source=source, out=tmp_path / "out"))  # an empty folder may be filled
    before = files(tmp_path / "out")
    for _ in range(2):
        with pytest.raises(CheckpointError, match="out: already there, so it is not replaced"):
            convert_model(Conversion(source=source, out=tmp_path / "out"))
        (tmp_path / "out" / "thesis.txt").write_text("years of work")
        before["thesis.txt"] = b"years of work"
    assert files(tmp_path / "out") == before
    with pytest.raises(CheckpointError, match="source: already there"):
        convert_model(Conversion(source=source, out=source))


def break_shard(folder: Path) -> None:
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-5])


def drop_index_entry(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    del content["weight_map"]["model.norm.weight"]
    index.write_text(json.dumps(content))


def change_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


@pytest.mark.parametrize(("damage", "message"), [
    (break_shard, r"model-00002-of-\d+\.safetensors: truncated.*bytes"),
    (drop_index_entry, r"does not agree with .*index.json.*\n.*not placed there.*\n.*model.norm.weight"),
    (lambda folder: change_config(folder, model_type="mamba"), "model_type is 'mamba'; supported: qwen2, qwen3"),
    (lambda folder: change_config(folder, hidden_size=16), r"wrong shape.*\n.*the model has \(.*16"),
    (lambda folder: change_config(folder, num_hidden_layers=3), r"missing \(12\)"),
    (lambda folder: (folder / "config.json").unlink(),
     "source: holds no config.json; name a folder .* by --model-folder"),
])  # fmt: skip
def test_a_damaged_source_is_named_and_leaves_nothing(tmp_path: Path, damage, message: str) -> None:
    source = exported(tmp_path / "source", max_shard_bytes=1500)
    damage(source)
    with pytest.raises(WeightsError, match=message):
        convert_model(Conversion(source=source, out=tmp_path / "deep" / "out"))
    assert_nothing_is_left(tmp_path, "source")


def test_what_a_killed_conversion_left_is_cleared_away(tmp_path: Path, source: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        dead.wait(timeout=60)
    left = tmp_path / f".out.tmp-{dead.pid}"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    convert_model(Conversion(source=source, out=tmp_path / "out"))
    assert_nothing_is_left(tmp_path, "out", "source")


def test_what_mindformers_has_no_name_for_is_refused(tmp_path: Path) -> None:
    qwen3, source = exported(tmp_path / "qwen3", section(architecture="qwen3")), exported(tmp_path / "source")
    with pytest.raises(WeightsError, match="q_norm.weight: MindFormers has no name"):
        convert_model(Conversion(source=qwen3, out=tmp_path / "out", layout="mindformers"))
    convert_model(Conversion(source=source, out=tmp_path / "mf", layout="mindformers"))
    weights = read_safetensors(tmp_path / "mf")
    weights["adam_m.lm_head.weight"] = weights["lm_head.weight"]
    write_safetensors(tmp_path / "mf" / "model.safetensors", weights)
    with pytest.raises(WeightsError, match=r"checkpoint_network.*\n.*unknown \(1\):\n.*adam_m.lm_head.weight"):
        convert_model(Conversion(source=tmp_path / "mf", out=tmp_path / "out"))
    assert_nothing_is_left(tmp_path, "mf", "qwen3", "source")


LIMITED = """
import resource, signal, sys
from mindgspo.cli import main

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
sys.exit(main(["convert", "weights", *sys.argv[1:]]))
"""


@pytest.mark.parametrize("options", [[], ["--layout", "mindformers", "--format", "ckpt"], ["--max-shard-size", "6KB"]])
def test_a_full_disk_leaves_nothing(tmp_path: Path, source: Path, options: list[str]) -> None:
    command = [sys.executable, "-c", LIMITED, source, tmp_path / "out", *options]
    child = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert child.returncode == 1
    assert f"error: {tmp_path / 'out'}: cannot be written: the file would be larger than the limit" in child.stderr
    assert_nothing_is_left(tmp_path, "source")


# ---- the command
def test_the_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = exported(tmp_path / "source"), tmp_path / "out"
    assert main(["convert", "weights", str(source), str(out), "--dtype", "bfloat16", "--max-shard-size", "3KB"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:-1] == [str(path) for path in sorted(out.glob("*.safetensors"))]
    assert lines[-1].startswith("27 weights, ") and lines[-1].endswith("generation_config.json, tokenizer.json")


@pytest.mark.parametrize(("options", "message"), [
    (["--max-shard-size", "5 gigabytes"], "is not a size; write 5GB"),
    (["--max-shard-size", "0GB"], "is not a size"),
    (["--format", "ckpt"], "ckpt goes with --layout mindformers"),
    (["--format", "ckpt", "--layout", "mindformers", "--max-shard-size", "1GB"], "nothing reads shards of ckpt"),
])  # fmt: skip
def test_wrong_options_are_usage_errors(tmp_path, options, message, capsys):
    assert main(["convert", "weights", "source", str(tmp_path / "out"), *options]) == 2
    assert message in capsys.readouterr().err


# Of getrusage the peak would begin with that of this process, which forks the child.
MEASURED = """
import re, sys
from pathlib import Path
from mindgspo.checkpoint.convert import Conversion, convert_model

def peak_kib() -> int:
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

before = peak_kib()
source, out = map(Path, sys.argv[1:3])
convert_model(Conversion(source=source, out=out, dtype="bfloat16", max_shard_bytes=40_000_000))
print(peak_kib() - before)
"""


def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    """200 MiB of weights, the largest of 50 MiB, in less memory than that one has."""
    model = section(tied=True).model_copy(update={"vocab_size": 1_638_400, "intermediate_size": 800_000})
    source = exported(tmp_path / "source", model)
    size = (source / "model.safetensors").stat().st_size
    assert size > 190 << 20
    command = [sys.executable, "-c", MEASURED, source, tmp_path / "out"]
    child = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert child.returncode == 0, child.stderr
    assert int(child.stdout) < 48 << 10, f"{child.stdout} KiB more than before, for {size >> 10} KiB"


# ----- A run's checkpoint as a Hugging Face folder: what the run itself exports, byte for byte
PROJECT = Path(__file__).resolve().parents[3]


def run_with_checkpoint(run: Path) -> tuple[ExperimentConfig, dict[str, np.ndarray], Path]:
    """A run folder with config.yaml and one checkpoint."""
    config = load_config(PROJECT / "examples" / "arithmetic" / "gspo.yaml")
    weights = some_weights(config.model)
    run.mkdir()
    (run / "config.yaml").write_text(dump_config(config))
    return config, weights, save_small(run / "checkpoints", 3, parameters=weights)


def test_a_checkpoint_becomes_what_the_run_exports(tmp_path: Path) -> None:
    config, weights, step = run_with_checkpoint(tmp_path / "run")
    tokenizer = load_tokenizer(config.tokenizer)
    ids = {"eos_ids": tokenizer.eos_ids, "pad_id": tokenizer.pad_id}
    export_huggingface(tmp_path / "run" / "export", tensors=weights,
                       model_config=huggingface_config(config.model, **ids),
                       generation_config=generation_config(**ids),
                       tokenizer=tokenizer)  # fmt: skip
    convert_model(Conversion(source=step, out=tmp_path / "out"))
    assert files(tmp_path / "out") == files(tmp_path / "run" / "export")


ON_VALUES = ("model.lora.targets=[v_proj]", "model.lora.train_norms=true")
ON_EXPERTS = ("model.lora.targets=[o_proj, experts, router]", "model.lora.train_norms=true",
              "model.architecture=qwen3_moe", "model.num_experts=4", "model.num_experts_per_tok=2",
              "model.moe_intermediate_size=12")  # fmt: skip


def run_with_adapters(
    folder: Path, *settings: str, base_dtype: str | None = None
) -> tuple[ModelSection, dict[str, np.ndarray], Path]:
    """A run with a checkpoint of adapters on a random base, or on a folder with weights of a type: its model, the
    weights of the base, which the checkpoint does not hold, and the checkpoint."""
    overrides = ["model.lora.rank=4", *settings]
    example = PROJECT / "examples" / "arithmetic" / "gspo.yaml"
    model = load_config(example, [*overrides]).model.base
    base = {name: DrawnTensors(model, 1, path=folder).read(name) for name in weight_shapes(model)}
    if base_dtype is not None:
        base = {name: (array.view(np.uint32) >> 16 << 16).view(np.float32) for name, array in base.items()}
        tokenizer = load_tokenizer(TokenizerSection())
        raw = huggingface_config(model, eos_ids=tokenizer.eos_ids, pad_id=tokenizer.pad_id)
        raw = {key: base_dtype if key.endswith("dtype") else value for key, value in raw.items()}
        export_huggingface(folder / "model", tensors=base, model_config=raw, generation_config={}, tokenizer=tokenizer,
                           dtype=base_dtype)  # fmt: skip
        overrides.append(f"model.path={folder / 'model'}")
    config = load_config(example, [*overrides, "seed=1"])
    run = folder / "run"
    run.mkdir()
    (run / "config.yaml").write_text(dump_config(config))
    some = some_weights(config.model).items()
    own = {name: np.float32(0.1) * array for name, array in some if is_trained(config.model, name)}
    state = {"inputs": {"base": base_record(config.model, config.seed)}}
    step = save_checkpoint(
        run / "checkpoints", step=4, parameters=own, optimizer={}, state=state, keep=Retention(last=1)
    )
    return config.model, base | {name: array for name, array in own.items() if is_adapter(name)}, step


@pytest.mark.parametrize(("settings", "base_dtype"), [(ON_VALUES, None), (ON_VALUES, "bfloat16"), (ON_EXPERTS, None)])
def test_a_checkpoint_of_adapters_becomes_its_base_and_a_peft_folder_or_merged_weights(
    tmp_path: Path, settings: tuple[str, ...], base_dtype: str | None
) -> None:
    """The latter as in float64."""
    model, weights, step = run_with_adapters(tmp_path, *settings, base_dtype=base_dtype)
    base, plus = tmp_path / "base", tmp_path / "merged"
    assert main(["checkpoint", "export", str(step), str(base)]) == 0
    assert main(["checkpoint", "export", str(step), str(plus), "--merge"]) == 0
    found, both = (read_safetensors(folder / "model.safetensors") for folder in (base, plus))
    adapter = read_safetensors(base / "adapter" / "adapter_model.safetensors")
    assert adapter.keys() == set(peft_names(model).values())
    assert not (plus / "adapter").exists() and found.keys() == both.keys() == weight_shapes(model.base).keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, weights[name], err_msg=name)
        layer = f"base_model.model.{name.removesuffix('.weight')}"
        if (a := adapter.pop(f"{layer}.lora_A.weight", None)) is not None:  # scale: 32 / 4
            b = adapter.pop(f"{layer}.lora_B.weight")
            array = array.astype(np.float64) + 8 * (b.astype(np.float64) @ a)
        array = adapter.pop(f"{layer}.weight", array)
        np.testing.assert_allclose(both[name], array, rtol=0, atol=5e-7 if array.dtype == np.float64 else 0)
    assert not adapter
    with open_tensors(base / "adapter" / "adapter_model.safetensors") as stored:
        assert stored.metadata[BASE_KEY] == base_digest(base_record(model, 1))


def test_adapters_are_not_put_on_another_base(tmp_path: Path) -> None:
    model, _, step = run_with_adapters(tmp_path, *ON_VALUES, base_dtype="bfloat16")
    file = model.path / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError) as refusal:
        convert_model(Conversion(source=step, out=tmp_path / "out"))
    assert str(refusal.value) == (
        f"{step}: its adapters belong to another base than {model.path}: model.safetensors: another content; set "
        f"model.path to the folder of that run as it was ({model.path})"
    )
    assert not (tmp_path / "out").exists()


def test_adapters_go_to_mindformers_names_and_back(tmp_path: Path) -> None:
    targets = "model.lora.targets=[q_proj, down_proj]"
    _, weights, step = run_with_adapters(tmp_path, "model.lora.alpha=6", targets)
    theirs, back, direct = tmp_path / "mf", tmp_path / "back", tmp_path / "direct"
    convert_model(Conversion(source=step, out=theirs, layout="mindformers"))
    found = read_safetensors(theirs / "model.safetensors")
    for name, of_pet in (("self_attn.q_proj.lora_A.weight", "attention.wq.mindpet_delta_lora_a"),
                         ("mlp.down_proj.lora_B.weight", "feed_forward.w2.mindpet_delta_lora_b")):  # fmt: skip
        np.testing.assert_array_equal(found[f"model.layers.1.{of_pet}"], weights[f"model.layers.1.{name}"])
    section = parse_document((theirs / "pet_config.yaml").read_text())["pet_config"]
    assert section == {"pet_type": "lora", "lora_rank": 4, "lora_alpha": 6.0, "lora_dropout": 0.0,
                       "target_modules": ".*wq|.*w2"}  # fmt: skip
    convert_model(Conversion(source=theirs, out=back))
    convert_model(Conversion(source=step, out=direct))
    for name in ("model.safetensors", "adapter/adapter_model.safetensors"):
        one, other = (read_safetensors(folder / name) for folder in (back, direct))
        assert one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)
    assert json.loads((back / "adapter/adapter_config.json").read_text())["lora_alpha"] == 6
    (theirs / "pet_config.yaml").unlink()
    with pytest.raises(WeightsError, match="has adapters, whose scale is not among the weights; write the section"):
        convert_model(Conversion(source=theirs, out=tmp_path / "scaled"))


@pytest.mark.parametrize(("text", "message"), [
    ("pet_config: {pet_type: slora}", "no 'target_modules'; it must hold pet_config with pet_type"),
    ("pet_config: {pet_type: slora, target_modules: '.*wq'}", "pet_type lora and target_modules of .*wq, "),
    ("pet_config: {pet_type: lora, lora_rank: 4, lora_alpha: 6, target_modules: '.*word_embeddings'}", "of .*wq"),
    ("pet_config: {pet_type: lora, lora_rank: x, lora_alpha: 6, target_modules: '.*wq'}", "lora_rank, lora_alpha"),
    ("pet_config: [", "it must hold pet_config"), ("[]", "it must hold pet_config"),
])  # fmt: skip
def test_a_section_of_adapters_that_says_something_else_is_refused(tmp_path: Path, text: str, message: str) -> None:
    source = exported(tmp_path / "source")
    (source / "pet_config.yaml").write_text(text)
    with pytest.raises(WeightsError) as refusal:
        convert_model(Conversion(source=source, out=tmp_path / "out"))
    assert message in str(refusal.value) and "pet_config.yaml: " in str(refusal.value)


def test_trained_norms_go_to_mindformers_merged_alone(tmp_path: Path) -> None:
    _, _, step = run_with_adapters(tmp_path, *ON_VALUES)
    with pytest.raises(WeightsError, match="norms were trained beside the adapters.*--merge"):
        convert_model(Conversion(source=step, out=tmp_path / "mf", layout="mindformers"))
    convert_model(Conversion(source=step, out=tmp_path / "mf", layout="mindformers", merges=True))


def test_a_checkpoint_that_was_changed_or_is_far_from_its_run_is_refused(tmp_path: Path) -> None:
    _, _, step = run_with_checkpoint(tmp_path / "run")
    with pytest.raises(WeightsError, match="run: a run; give its export, or one of its checkpoints/step_"):
        convert_model(Conversion(source=tmp_path / "run", out=tmp_path / "out"))
    flip_bit(step / "parameters.safetensors")
    with pytest.raises(CheckpointError, match=r"parameters\.safetensors: its content changed"):
        convert_model(Conversion(source=step, out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    alone = step.rename(tmp_path / "alone")
    with pytest.raises(CheckpointError, match="alone: not inside a run folder.*--model-folder"):
        convert_model(Conversion(source=alone, out=tmp_path / "out"))


# ----- The Hugging Face export: what is in it, and what it may replace
def export(folder: Path, value: float, run_id: str | None = "run-1", tokenizer: FakeTokenizer | None = None) -> None:
    export_huggingface(folder, tensors={"w": np.full(2, value, np.float32)},
                       model_config={"model_type": "qwen2", "torch_dtype": "float32"},
                       generation_config={"eos_token_id": [1, 2]}, tokenizer=tokenizer or FakeTokenizer(),
                       run_id=run_id)  # fmt: skip


def test_the_same_run_alone_replaces_its_export_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "export"
    folder.mkdir()  # an empty folder may be filled
    for value in (1.0, 2.0):
        export(folder, value)
        assert read_safetensors(folder)["w"][0] == value
    for run_id in ("run-2", None):
        with pytest.raises(CheckpointError, match="already there.*so it is not replaced"):
            export(folder, 3.0, run_id=run_id)
    with pytest.raises(CheckpointError, match="export: cannot be written: the disk is full"):
        export(folder, 3.0, tokenizer=FakeTokenizer(OSError(28, "No space left on device")))
    assert read_safetensors(folder)["w"][0] == 2 and [entry.name for entry in tmp_path.iterdir()] == ["export"]


def test_exports_without_a_run_and_foreign_files_are_kept(tmp_path: Path) -> None:
    export(tmp_path / "anonymous", 1.0, run_id=None)
    with pytest.raises(CheckpointError, match="not replaced"):
        export(tmp_path / "anonymous", 2.0, run_id=None)
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "thesis.txt").write_text("years of work")
    with pytest.raises(CheckpointError, match="export: already there and no export of this run"):
        export(tmp_path / "export", 1.0)
    assert (tmp_path / "export" / "thesis.txt").read_text() == "years of work"


@pytest.mark.parity
@pytest.mark.parametrize("target", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("source_dtype", ["float64", "float32", "bfloat16", "float16"])
def test_rounding_is_torchs(tmp_path: Path, source_dtype: str, target: str) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    source = exported(tmp_path / "source")
    random = np.random.default_rng(5)
    weights = {}
    for name, shape in weight_shapes(section()).items():
        values = random.standard_normal(shape) * 2.0 ** random.integers(-30, 14, shape)
        ties = np.abs(values) < 2**-12
        values[ties] = np.round(values[ties] * 2**20) / 2**20 + 2.0**-21  # halfway between coarser numbers
        weights[name] = torch.from_numpy(values).to(getattr(torch, source_dtype))
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    convert_model(Conversion(source=source, out=tmp_path / "out", dtype=target))
    found = load_file(tmp_path / "out" / "model.safetensors")
    for name, tensor in weights.items():
        expected = tensor.to(getattr(torch, target))
        assert found[name].dtype == expected.dtype
        assert torch.equal(found[name].contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8)), name
