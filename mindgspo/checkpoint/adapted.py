"""Checkpoints of adapters, which hold what is trained and not the base that it belongs to.

They record the base: digests of the files of `model.path`, or the seed that it was drawn from. Another base is refused,
since adapters mean nothing on it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from mindgspo.checkpoint.manifest import content_digest, new_digest
from mindgspo.checkpoint.store import PARAMETERS_FILE, read_state, stateful_file
from mindgspo.config import ModelSection
from mindgspo.errors import CheckpointError, WeightsError
from mindgspo.models.initial_values import open_base
from mindgspo.models.lora import BASE_KEY
from mindgspo.models.names import is_adapter, trained_weight_shapes
from mindgspo.models.principal import plain_adapters
from mindgspo.models.weight_check import check_names
from mindgspo.tensor_files.reader import open_tensors, weight_files
from mindgspo.tensor_files.tensors import ArraySource, PickedTensors, TensorSource

JSONObject = Mapping[str, Any]
PARTS = "principal_parts"
"""Name in checkpoints of what adapters began with, where they began with parts of the base."""


def base_record(model: ModelSection, seed: int) -> dict[str, Any] | None:
    """What adapters belong to, as JSON; None for a model without adapters. Reads all weights of `model.path`."""
    if model.lora is None:
        return None
    record = {"path": None, "scale": model.lora.scale, "is_what_parts_left": model.lora.init == "pissa"}
    if model.path is None:
        return {**record, "files": {"weights drawn from the seed": str(seed)}}
    try:
        files = {file.name: content_digest(file) for file in weight_files(model.path)}
    except OSError as error:
        raise WeightsError(
            f"{model.path}: cannot be read ({error.strerror}); give a folder that you may read"
        ) from error
    return {**record, "path": str(model.path), "files": files}


def base_digest(record: JSONObject) -> str:
    """One digest of the base, which PEFT folders carry."""
    digest = new_digest()
    digest.update(json.dumps(record["files"], sort_keys=True).encode())
    return digest.hexdigest()


def check_base(saved: JSONObject | None, ours: JSONObject | None, *, where: object) -> None:
    """Raises CheckpointError, one line, unless a checkpoint's base is this run's. None: every weight is trained."""
    if saved is None and ours is None:
        return
    if saved is None:
        raise CheckpointError(
            f"{where}: holds every weight, and model.lora trains adapters beside a base; export it "
            "(mindgspo checkpoint export) and set model.path to the export"
        )
    if ours is None:
        raise CheckpointError(
            f"{where}: holds adapters alone, and without model.lora every weight is trained; export it with --merge "
            "(mindgspo checkpoint export) and set model.path to the export"
        )
    there, here = saved["files"], ours["files"]
    differing = sorted(name for name in there.keys() | here.keys() if there.get(name) != here.get(name))
    if differing:
        name = differing[0]
        what = "only there" if name not in here else "only here" if name not in there else "another content"
        given = f"model.path to the folder of that run as it was ({saved['path']})" if saved["path"] else _random(there)
        raise CheckpointError(
            f"{where}: its adapters belong to another base than {ours['path'] or 'the random one'}: {name}: {what}; "
            f"set {given}"
        )
    if saved["is_what_parts_left"] != ours["is_what_parts_left"]:
        raise CheckpointError(
            f"{where}: its adapters were trained with model.lora.init {'' if saved['is_what_parts_left'] else 'not '}"
            "pissa, which changes the base; set init as it was"
        )
    if saved["scale"] != ours["scale"]:
        raise CheckpointError(
            f"{where}: its adapters were trained at the scale {saved['scale']:g}, and model.lora says "
            f"{ours['scale']:g}; set alpha, rank and use_rslora as they were"
        )


def _random(files: Mapping[str, str]) -> str:
    return f"no model.path, and seed to {', '.join(files.values())}"


@contextmanager
def open_all_weights(step: Path, model: ModelSection, seed: int) -> Iterator[TensorSource]:
    """Every tensor of the `plain_model` of a run's checkpoint, for the block: its own, and those of the base beside
    them. A tensor of the base in whose place another was trained is there as `base.<name>`. Raises CheckpointError,
    WeightsError.

    model, seed: of the run's configuration.
    """
    with ExitStack() as opened:
        trained = opened.enter_context(open_tensors(step / PARAMETERS_FILE))
        if model.lora is None:
            yield trained
            return
        record = base_record(model, seed)
        assert record is not None
        try:
            check_base(read_state(step)["inputs"]["base"], record, where=step)
        except (LookupError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{step}: its state does not say which base its adapters belong to; restore it from a copy"
            ) from error
        base = opened.enter_context(open_base(model, seed))
        shapes = trained_weight_shapes(model)
        check_names(shapes, trained.tensors, where=trained.path)
        own: TensorSource = trained
        if model.lora.init == "pissa":
            parts = opened.enter_context(open_tensors(step / stateful_file(PARTS)))
            check_names({name: shape for name, shape in shapes.items() if is_adapter(name)}, parts.tensors, where=step)
            arrays = ({name: one.read(name) for name in one.tensors} for one in (trained, parts))
            own = ArraySource(plain_adapters(*arrays), path=step)
        picked = {f"base.{name}" if name in shapes else name: (base, name) for name in base.tensors}
        picked |= {name: (own, name) for name in shapes}
        yield PickedTensors(picked, path=step, metadata={BASE_KEY: base_digest(record)})
