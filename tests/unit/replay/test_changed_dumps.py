"""Dumps that somebody has changed: one line names the file before anything is computed; no code, little memory."""

from __future__ import annotations

import io
import json
import os
import shutil
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from running import EXPERIMENT

from mindgspo.batches.rows import TrainingSample, lay_out
from mindgspo.cli import main
from mindgspo.config import load_config
from mindgspo.errors import CheckpointError, ConfigError
from mindgspo.models.names import weight_shapes
from mindgspo.replay.dump import Dump, read_arrays
from mindgspo.tensor_files.writer import write_tensor_file
from mindgspo.trainer.updates import write_batches

BATCH = "update_1_micro_batch_0.npz"
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump of one update, as far as it can be judged without its model."""
    tmp_path = tmp_path_factory.mktemp("made")
    (tmp_path / "config.yaml").write_text(EXPERIMENT)
    weights = {name: np.ones(shape, np.float32) for name, shape in weight_shapes(configured(tmp_path).model).items()}
    for name in ("weights", "weights_after", "gradients"):
        write_tensor_file(tmp_path / f"{name}.safetensors", weights)
    moments = {f"adamw.{kind}.{name}": one for kind in "mv" for name, one in weights.items()}
    write_tensor_file(tmp_path / "optimizer.safetensors", moments | {"adamw.updates": np.array(3)})
    write_tensor_file(tmp_path / "update_1_found.safetensors", {"logp/0": np.zeros((2, 32), np.float32)})
    update = {"micro_batches": 1, "lr": 1e-3, "kl_coef": 0, "loss": 0.5, "grad_norm": 1.0}
    facts = {"format": 1, "step": 2, "device": "CPU", "is_emulated": False, "world_size": 1, "updates": [update],
             "versions": {"python": "3"}}  # fmt: skip
    (tmp_path / "step.json").write_text(json.dumps(facts))
    samples = [TrainingSample(prompt_ids=np.arange(3, dtype=np.int32), response_ids=np.arange(2, dtype=np.int32),
                              rollout_logp=np.zeros(2, np.float32), number=number) for number in range(2)]  # fmt: skip
    write_batches(tmp_path, "update_1", lay_out(samples, samples_per_micro_batch=2, length_multiple=32, pad_id=0))
    return tmp_path


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "dump"))


def configured(folder: Path):
    return load_config(folder / "config.yaml", ["model.path="], check_files=False)


def opened(folder: Path) -> Dump:
    """With all of its batches."""
    dump = Dump.open(folder)
    for number, _ in enumerate(dump.facts.updates, 1):
        dump.batches(number)
    return dump


def test_a_dump_as_it_was_written_is_read(folder: Path) -> None:
    (batch,) = opened(folder).batches(1)
    assert batch.ids_RT.shape == (2, 32) and (batch.num_sequences, batch.num_tokens) == (2, 4)
    assert batch.mask_NK.sum() == 4 and str(opened(folder)) == "step 2 of tiny, CPU, 1 rank; python 3"


def fact(**changes: object) -> Change:
    def change(folder: Path) -> None:
        facts = json.loads((folder / "step.json").read_text())
        (folder / "step.json").write_text(json.dumps(facts | changes))

    return change


def update(**changes: object) -> Change:
    def change(folder: Path) -> None:
        facts = json.loads((folder / "step.json").read_text())
        facts["updates"][0] |= changes
        (folder / "step.json").write_text(json.dumps(facts))

    return change


def array(name: str, value: Callable[[np.ndarray], np.ndarray] | None) -> Change:
    def change(folder: Path) -> None:
        arrays = read_arrays(folder / BATCH)
        found = arrays.pop(name, np.zeros(3))
        np.savez(folder / BATCH, **arrays, **({} if value is None else {name: value(found)}))

    return change


def tensors(file: str, **changes: np.ndarray) -> Change:
    return lambda folder: write_tensor_file(folder / f"{file}.safetensors", changes)


def written(name: str, content: bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(content)


def cut(name: str) -> Change:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:300])


def pipe(name: str) -> Change:
    return lambda folder: ((folder / name).unlink(), os.mkfifo(folder / name))


def member(shape: tuple[int, ...], content: bytes, method: int, times: int = 1) -> Change:
    """A batch of one array, whose header promises `shape`."""

    def change(folder: Path) -> None:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "<i4", "fortran_order": False, "shape": shape})
        with zipfile.ZipFile(folder / BATCH, "w", method) as archive, archive.open("ids_RT.npy", "w") as file:
            file.write(header.getvalue())
            for _ in range(times):
                file.write(content)

    return change


class Pickled:
    """Touches a file where it is loaded."""

    def __reduce__(self) -> tuple:
        return os.system, (f"touch {os.environ['MARK']}",)


def pickled(folder: Path) -> None:
    np.savez(folder / BATCH, ids_RT=np.array([Pickled()], dtype=object))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (fact(updates=5), "step.json: updates is not"),
        (fact(updates=[]), "step.json: updates is not"),
        (fact(updates=["x"]), "updates.0 is not"),
        (fact(versions=[]), "versions"),
        (fact(world_size="1"), "world_size"),
        (fact(is_emulated=0), "is_emulated"),
        (written("step.json", b"[]"), "another version"),
        (written("step.json", b""), "no dumped step"),
        (pipe("step.json"), "is no regular file"),
        (update(micro_batches=0), "updates.0.micro_batches"),
        (update(micro_batches=10**9), "updates.0.micro_batches"),
        (update(micro_batches=2), "micro_batch_1.npz"),
        (update(lr="x"), "updates.0.lr"),
        (update(lr=float("nan")), "updates.0.lr"),
        (update(loss=None), "updates.0.loss"),
        (update(grad_norm=[1]), "updates.0.grad_norm"),
        (update(kl_coef=10**400), "updates.0.kl_coef"),
        (update(is_skipped="yes"), "updates.0.is_skipped"),
        (written(BATCH, b""), "its end is missing"),
        (written(BATCH, b"PK\5\6"), "its end is missing"),
        (cut(BATCH), "end is"),
        (written(BATCH, b"PK\5\6" + bytes(8) + b"\xff\xff\xff\x0f" + bytes(6)), "directory that is too large"),
        (written(BATCH, b"PK\5\6" + bytes(4) + b"\1\0\1\0\x40\0\0\0" + bytes(6)), "no npz file that can be read"),
        (lambda folder: (folder / BATCH).unlink(), "No such file"),
        (pipe(BATCH), "is no regular file"),
        (member((1 << 20,), bytes(1 << 22), zipfile.ZIP_DEFLATED), "compressed members"),
        (member((1 << 40,), b"", zipfile.ZIP_STORED), r"has 0 bytes for shape \(1099511627776,\) of int32"),
        (member((-1, -1), bytes(4), zipfile.ZIP_STORED), r"has 4 bytes for shape \(-1, -1\)"),
        (array("mask_NK", None), "instead of"),
        (array("more", lambda one: one), "more"),
        (array("ids_RT", lambda one: one + 10**6), "ids_RT has numbers from 1000000"),
        (array("ids_RT", lambda one: one - 9), "ids_RT has numbers from -9"),
        (array("ids_RT", lambda one: one.astype(np.int64)), "ids_RT is int64"),
        (array("ids_RT", lambda one: one[:, :7]), "shape"),
        (array("positions_RT", lambda one: one + 64), "positions_RT has"),
        (array("segments_RT", lambda one: one - 1), "segments"),
        (array("predict_P", lambda one: one + 64), "predict_P has"),
        (array("place_NK", lambda one: one + 1), "place_NK has"),
        (array("targets_P", lambda one: one.astype(">i4") * 999), "targets_P"),
        (array("samples_N", lambda one: one[:1]), "samples_N"),
        (array("num_tokens", lambda one: one * 0), "num_tokens is no positive"),
        (array("num_sequences", lambda one: one * 1.0), "num_sequences is float64"),
        (array("mask_NK", lambda one: one.astype(np.int32)), "mask_NK is int32"),
        (array("advantages_NK", lambda one: one.astype(str)), "holds <U32"),
        (array("experts_RTX", lambda one: one), "experts_RTX"),
        (tensors("weights", x=np.zeros(3, np.float32)), "weights.safetensors: .* none"),
        (cut("weights.safetensors"), "damaged"),
        (written("weights.safetensors", b""), "weights.safetensors"),
        (pipe("weights.safetensors"), "weights.safetensors"),
        (tensors("weights_after", x=np.zeros(3, np.float32)), "weights_after"),
        (tensors("gradients", x=np.zeros(3)), "gradients"),
        (tensors("optimizer", x=np.zeros(3, np.float64)), "optimizer.safetensors: x is F64"),
        (pipe("config.yaml"), "config.yaml"),
    ],
)
def test_what_was_changed_is_named(folder: Path, change: Change, said: str) -> None:
    change(folder)
    with pytest.raises((CheckpointError, ConfigError), match=said) as raised:
        opened(folder)
    assert "\n" not in str(raised.value) and str(folder) in str(raised.value)


def test_the_model_is_as_large_as_its_files(folder: Path) -> None:
    """Thousands of layers would be made before the weights are compared with them."""
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("num_hidden_layers: 2", "num_hidden_layers: 1000"))
    with pytest.raises(CheckpointError, match=r"weights.safetensors: .* has shape none \(missing\)"):
        opened(folder)


def test_padded_tables_are_as_large_as_their_moments(folder: Path) -> None:
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("vocab_size: 384", "vocab_size: 384\n  table_rows: 16000000"))
    with pytest.raises(
        CheckpointError, match=r"optimizer.safetensors: .*(embed_tokens|lm_head).* has shape \(384, 32\), and the "
    ):
        opened(folder)


def test_no_code_of_a_pickle_runs(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARK", str(tmp_path / "mark"))
    pickled(folder)
    with pytest.raises(CheckpointError, match="holds object, which is not read"):
        opened(folder)
    with (folder / BATCH).open("wb") as file:
        np.save(file, np.array([Pickled()], dtype=object))
    with pytest.raises(CheckpointError, match="is no npz file"):
        opened(folder)
    assert not (tmp_path / "mark").exists()


def test_a_bomb_is_refused_in_little_memory(folder: Path) -> None:
    """A quarter of a GiB of zeros in a quarter of a MB."""
    member((1 << 26,), bytes(1 << 20), zipfile.ZIP_DEFLATED, times=1 << 8)(folder)
    assert (folder / BATCH).stat().st_size < 1 << 19
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="has compressed members, which are not read"):
            read_arrays(folder / BATCH)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_model_that_a_card_cannot_run_is_told_before_it_is_tried(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(folder), "--device", "Ascend"]) == 1
    assert "cannot be run on a card: model.head_dim: 8; FlashAttentionScore" in capsys.readouterr().err
