"""Values of a model's parameters: drawn from the seed, loaded from Hugging Face names, or read back.

Arrays are whole tensors under Hugging Face names; each rank takes its own slices of them. Under `optimizer_shard` the
ranks that share a weight train float32 rows of it, its master, and compute with whole copies that may be rounded: see
`hold_masters`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from mindspore import Parameter

from mindgspo.config import ModelSection
from mindgspo.config.huggingface_config import check_architecture, read_model_section
from mindgspo.models.lora import ADAPTER_WEIGHTS, check_peft_folder, peft_names
from mindgspo.models.model import Model
from mindgspo.models.names import (
    TABLES,
    hugging_face_names,
    is_adapter,
    parameter_shapes,
    trained_shapes,
    trained_type,
)
from mindgspo.models.transformer import DTYPES
from mindgspo.models.weight_check import require_weights
from mindgspo.parallel.ops.device import has_kernels
from mindgspo.parallel.plans.layout import Layout
from mindgspo.parallel.plans.parameter_layouts import moment_layouts, parameter_layouts
from mindgspo.parallel.platform.parameter_memory import set_values, values_of, zero_parameter
from mindgspo.tensor_files.reader import open_tensors
from mindgspo.tensor_files.tensors import ArraySource, TensorSource, widen_bfloat16

_INITIALIZATION_STREAM = 0x1717


def weight_layouts(section: ModelSection, model: Model) -> dict[str, Layout]:
    """{our parameter name: layout} of every weight, as the processes of the model's plan use it."""
    return parameter_layouts(parameter_shapes(section), section, model.place.plan)


def master_layouts(section: ModelSection, model: Model) -> dict[str, Layout]:
    """Return the layouts of the weights that are trained; see `master_views`."""
    layouts, trained = weight_layouts(section, model), trained_shapes(model.config)
    if model.masters is None:
        return layouts
    rows = moment_layouts(parameter_shapes(section), section, model.place.plan)
    return {name: rows[name] if name in trained else layout for name, layout in layouts.items()}


def hold_in_types(model: Model, type_of: Callable[[Parameter], str]) -> None:
    """Convert a model's parameters to other types, keeping their values."""
    for _, cell in model.cells_and_names():
        for attribute, parameter in list(cell.parameters_and_names(expand=False)):
            dtype = DTYPES[type_of(parameter)]
            if parameter.dtype != dtype:
                held = zero_parameter(
                    tuple(parameter.shape), parameter.name, dtype, requires_grad=parameter.requires_grad
                )
                if not parameter.has_init and (values := values_of(parameter)).any():
                    set_values(held, values)  # zeros that nobody has written take no memory
                setattr(cell, attribute, held)


def hold_masters(model: Model) -> dict[str, Parameter]:
    """{our parameter name: float32 rows that this rank trains}, `model.masters`, of the weights that ranks share out;
    empty without `optimizer_shard`. From then on the whole weights are copies for computing, with layers' matrices in
    their compute type. The CPU kernels read float32 weights."""
    plan, section = model.place.plan, model.config
    if model.masters is None and plan.optimizer_shard and plan.token_parts > 1:
        layouts = weight_layouts(section, model)
        rows = moment_layouts(trained_shapes(section), section, plan)
        masters = model.masters = {}
        for parameter in model.get_parameters():
            name = parameter.name
            if name not in rows or rows[name].slice_shape == layouts[name].slice_shape:
                continue
            own, whole = (each.held_by(model.place.rank) for each in (rows[name], layouts[name]))
            master = zero_parameter(own.shape, f"master.{name}", requires_grad=False)
            if not parameter.has_init:
                set_values(master, values_of(parameter)[own.relative_to(whole.starts).index])
            masters[name] = master
        if not has_kernels():
            hold_in_types(
                model,
                lambda one: trained_type(one.name, one.shape, section.dtype) if one.name in masters else "float32",
            )
    return model.masters or {}


def fill_model(model: Model, section: ModelSection, seed: int) -> None:
    """Weights of model.path, or random ones; adapters of model.lora.path, or new ones. Raises ConfigError if that
    folder's architecture is not the one configured, WeightsError if files do not fit."""
    if section.path is None:
        initialize_weights(model, section, seed)
    else:
        check_architecture(section, read_model_section(section.path))
        load_huggingface(model, section.base, section.path)
        initialize_weights(model, section, seed, among=trained_shapes(section) if section.lora else ())
    if section.lora is not None and section.lora.path is not None:
        load_adapters(model, section, section.lora.path)


def initialize_weights(model: Model, section: ModelSection, seed: int, *, among: Container[str] | None = None) -> None:
    """Random weights as Hugging Face draws them: matrices N(0, initializer_range^2), norms 1, biases 0; adapters as
    `LoraSection.init` says. among: names of parameters; None: all.

    Every parameter has its own stream, keyed by (seed, its name): neither the order of creation nor the plan matters.
    """
    for own in _own_slices(model, section):
        if among is None or own.name in among:
            set_values(own.parameter, _initial_values(own.name, own.shape, section, seed)[own.index])


def _initial_values(name: str, shape: tuple[int, ...], section: ModelSection, seed: int) -> np.ndarray:
    if len(shape) == 1:
        return np.full(shape, float(name.endswith("norm.weight")), dtype=np.float32)
    if name.endswith(".lora_B.weight"):
        return np.zeros(shape, np.float32)
    key = [seed, _INITIALIZATION_STREAM, zlib.crc32(name.encode())]
    random = np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))
    if name.endswith(".lora_A.weight"):
        assert section.lora is not None, name
        if section.lora.init == "gaussian":
            return random.standard_normal(shape, np.float32) / np.float32(section.lora.rank)
        return (random.random(shape, np.float32) * 2 - 1) * np.float32(shape[1] ** -0.5)  # kaiming, a = sqrt(5)
    padding = section.rows - section.vocab_size if name in TABLES else 0
    values = random.standard_normal((shape[0] - padding, *shape[1:]), dtype=np.float32)
    values *= np.float32(section.initializer_range)
    return np.pad(values, ((0, padding), (0, 0))) if padding else values


def load_weights(model: Model, section: ModelSection, arrays: Mapping[str, np.ndarray], *, where: Path) -> None:
    """Set every parameter from whole arrays under Hugging Face names.

    Raises WeightsError, before anything is changed, on a missing or unexpected name or another shape. A copy of the
    embedding table under `lm_head.weight` is accepted for a tied model only if it equals that table.
    """
    load_tensors(model, section, ArraySource(arrays, path=where))


def load_huggingface(model: Model, section: ModelSection, folder: Path) -> None:
    """Set every parameter from a folder's files, strictly, with memory for one parameter: only the rows that this rank
    holds are read of each tensor. Errors as in `load_weights`."""
    with open_tensors(folder) as stored:
        load_tensors(model, section, stored)


def load_tensors(model: Model, section: ModelSection, source: TensorSource) -> None:
    """Like `load_weights`, from whole tensors under Hugging Face names that are read on demand: only the rows that this
    rank holds."""
    require_weights(section, source, {name: name for name in source.tensors})
    names = hugging_face_names(section)
    for own in _own_slices(model, section):
        set_values(own.parameter, _part(source, names[own.name], own.index))


def load_adapters(model: Model, section: ModelSection, folder: Path) -> None:
    """Set every adapter from a PEFT folder. Raises WeightsError, before anything is changed, if it holds another
    adapter; see `check_peft_folder`."""
    names = peft_names(section)
    with open_tensors(folder / ADAPTER_WEIGHTS) as stored:
        check_peft_folder(section, folder, stored)
        for own in _own_slices(model, section):
            if own.name in names:
                set_values(own.parameter, _part(stored, (names[own.name],), own.index))


def _part(source: TensorSource, names: tuple[str, ...], index: tuple[slice, ...]) -> np.ndarray:
    """A part of a parameter, float32, from its tensor or from the tensors that it stacks."""
    if len(index) > len(source.tensors[names[0]].shape):
        return np.stack([_part(source, (name,), index[1:]) for name in names[index[0]]])
    info, rows = source.tensors[names[0]], index[0]
    there = [min(row, info.shape[0]) for row in (rows.start, rows.stop)]
    bits = source.read_slice(names[0], (slice(*there), *index[1:]))
    values = widen_bfloat16(bits) if info.dtype == "BF16" else bits.astype(np.float32, copy=False)
    missing = rows.stop - rows.start - values.shape[0]  # of a table with padding
    return np.pad(values, ((0, missing), (0, 0))) if missing else values


def held_parameters(model: Model) -> tuple[Parameter, ...]:
    """Return the parameters of a model on this rank: those it computes with, and master weights."""
    return (*model.get_parameters(), *(model.masters or {}).values())


def weight_views(model: Model, names: Container[str] | None = None) -> dict[str, np.ndarray]:
    """{our parameter name: its values} of what this rank holds, without a copy where memory is shared. names: of the
    wanted ones; None: all."""
    return {each.name: values_of(each) for each in model.get_parameters() if names is None or each.name in names}


def master_views(model: Model, names: Container[str] | None = None) -> dict[str, np.ndarray]:
    """`weight_views` of the weights that are trained, float32: this rank's rows if ranks share a weight out."""
    masters = model.masters or {}
    return {
        each.name: values_of(masters.get(each.name, each))
        for each in model.get_parameters()
        if names is None or each.name in names
    }


class _OwnSlice(NamedTuple):
    """name: our parameter name. shape: of the whole tensor. index: the parameter's, or its master's, place in it."""

    name: str
    shape: tuple[int, ...]
    parameter: Parameter
    index: tuple[slice, ...]


def _own_slices(model: Model, section: ModelSection) -> Iterator[_OwnSlice]:
    """The parameters of `section` that this rank holds, in table order, then their masters."""
    parameters = {parameter.name: parameter for parameter in model.get_parameters()}
    masters, layouts = model.masters or {}, master_layouts(section, model)
    if section.lora is None:  # adapters that a model has beside the weights asked for
        parameters, masters = (
            {name: one for name, one in each.items() if not is_adapter(name)} for each in (parameters, masters)
        )
    yield from _slices(parameters, weight_layouts(section, model), model.place.rank)
    yield from _slices(masters, {name: layouts[name] for name in masters}, model.place.rank)


def _slices(parameters: Mapping[str, Parameter], layouts: Mapping[str, Layout], rank: int) -> Iterator[_OwnSlice]:
    assert parameters.keys() <= layouts.keys(), f"without a layout: {sorted(parameters.keys() - layouts)}"
    for name, layout in layouts.items():
        parameter, held = parameters.get(name), layout.slice_of(rank)
        assert (parameter is None) == (held is None), f"{name}: model and layout of rank {rank} disagree"
        if parameter is not None and held is not None:
            assert tuple(parameter.shape) == held.shape, f"{name}: {parameter.shape}, the layout says {held.shape}"
            yield _OwnSlice(name, layout.shape, parameter, held.index)
