"""Values of a model's parameters: drawn from the seed, loaded from Hugging Face names, or read back.

Arrays are whole tensors under Hugging Face names; each rank takes its own slices of them. Under `optimizer_shard` the
ranks that share a weight train float32 rows of it, its master, and compute with whole copies that may be rounded: see
`hold_masters`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from mindspore import Parameter

from mindgspo.config import ModelSection
from mindgspo.config.huggingface_config import check_architecture, read_model_section
from mindgspo.models.initial_values import initial_values
from mindgspo.models.lora import ADAPTER_WEIGHTS, check_peft_folder, merged_weight, peft_names
from mindgspo.models.model import Model
from mindgspo.models.names import (
    InFile,
    adapter_pairs,
    compute_type,
    hugging_face_names,
    is_adapter,
    parameter_shapes,
    trained_shapes,
    trained_type,
    weight_shapes,
)
from mindgspo.models.transformer import DTYPES
from mindgspo.models.weight_check import check_names, require_weights
from mindgspo.parallel.ops.device import has_kernels
from mindgspo.parallel.plans.layout import Layout
from mindgspo.parallel.plans.parameter_layouts import moment_layouts, parameter_layouts
from mindgspo.parallel.platform.parameter_memory import set_values, values_of, zero_parameter
from mindgspo.progress import activity
from mindgspo.tensor_files.reader import open_tensors
from mindgspo.tensor_files.tensors import ArraySource, TensorSource, widen_bfloat16


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


def hold_in_compute_type(model: Model, *, but: Container[str] = ()) -> None:
    """Store what is not trained in its compute type. It is cast to that type wherever it is read, so no result
    changes. but: names of the parameters that are trained."""
    dtype = model.config.dtype
    _hold_in_types(model, lambda one: None if one.name in but else compute_type(one.name, dtype))


def _hold_in_types(model: Model, type_of: Callable[[Parameter], str | None]) -> None:
    """Convert a model's parameters to other types, keeping their values. None: a parameter stays as it is."""
    for _, cell in model.cells_and_names():
        for attribute, parameter in list(cell.parameters_and_names(expand=False)):
            wanted = type_of(parameter)
            dtype = parameter.dtype if wanted is None else DTYPES[wanted]
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
            _hold_in_types(
                model, lambda one: trained_type(one.name, one.shape, section.dtype) if one.name in masters else None
            )
    return model.masters or {}


def share_parameters(model: Model, owner: Model, *, but: Container[str]) -> None:
    """Have a model compute with the parameters of another one of the same layouts, except those named in `but`."""
    theirs = {parameter.name: parameter for parameter in owner.get_parameters()}
    for _, cell in model.cells_and_names():
        for attribute, parameter in list(cell.parameters_and_names(expand=False)):
            if parameter.name not in but:
                assert tuple(theirs[parameter.name].shape) == tuple(parameter.shape), parameter.name
                setattr(cell, attribute, theirs[parameter.name])


def fill_model(model: Model, section: ModelSection, seed: int, *, base: str | None = None) -> None:
    """Weights of model.path, or random ones; adapters of model.lora.path, or new ones. Raises ConfigError if that
    folder's architecture is not the one configured, WeightsError if files do not fit. base: see `load_adapters`."""
    if section.path is None:
        initialize_weights(model, section, seed)
    else:
        check_architecture(section, read_model_section(section.path))
        load_huggingface(model, section.base, section.path)
        adapters = {name for name in parameter_shapes(section) if is_adapter(name)}
        initialize_weights(model, section, seed, among=adapters)
    if section.lora is not None and section.lora.path is not None:
        load_adapters(model, section, section.lora.path, base=base)


def initialize_weights(model: Model, section: ModelSection, seed: int, *, among: Container[str] | None = None) -> None:
    """Random weights, see `initial_values`. among: names of parameters; None: all."""
    for own in own_slices(model, section):
        if among is None or own.name in among:
            set_values(own.parameter, initial_values(own.name, own.shape, section, seed)[own.index])


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


def load_tensors(
    model: Model, section: ModelSection, source: TensorSource, *, among: Container[str] | None = None
) -> None:
    """Like `load_weights`, from whole tensors under Hugging Face names that are read on demand: only the rows that this
    rank holds. among: names of parameters, which the source holds alone; None: all."""
    names = hugging_face_names(section)
    if among is None:
        require_weights(section, source, {name: name for name in source.tensors})
    else:
        shapes = weight_shapes(section)
        expected = {one: shapes[one] for name, theirs in names.items() if name in among for one in theirs.names}
        check_names(expected, source.tensors, where=source.path)
    _set_among(model, section, source, names, among)


def load_trained(model: Model, section: ModelSection, source: TensorSource) -> None:
    """`load_tensors` for what a run's checkpoint holds, see `stored_shapes`."""
    load_tensors(model, section, source, among=None if section.lora is None else trained_shapes(section))


def load_adapters(
    model: Model,
    section: ModelSection,
    folder: Path,
    *,
    base: str | None = None,
    weights: TensorSource | None = None,
    whole: bool = False,
) -> None:
    """Set what is trained from a PEFT folder. Raises WeightsError, before anything is changed, if it holds another
    adapter; see `check_peft_folder`.

    base: digest of the base; None: it is not compared. weights: those of the base, W, for a model that has none yet, or
    that has no adapters and gets W + scale B A, summed in float32 and rounded once. whole: set what has no part in the
    folder to W, too.
    """
    lora, theirs, of_base = section.lora, peft_names(section), hugging_face_names(section)
    assert lora is not None
    pairs, names = adapter_pairs(section), {}
    for ours, one in of_base.items():
        if one.names[0] in theirs:
            names[ours] = one._replace(names=tuple(theirs[name] for name in one.names))
    with open_tensors(folder / ADAPTER_WEIGHTS) as stored:
        check_peft_folder(section, folder, stored, base=base)
        for own in own_slices(model, model.config):
            pair = pairs.get(own.name)
            is_merged = pair is not None and model.config.lora is None
            if own.name in names:
                values = _part(stored, names[own.name], own.index)
            elif weights is not None and (whole or is_merged):
                values = _part(weights, of_base[own.name], own.index)
            else:
                continue
            if is_merged and pair is not None:
                *experts, rows, columns = own.index
                ranks = slice(0, lora.rank)
                parts = (names[pair[0]], (*experts, ranks, columns)), (names[pair[1]], (*experts, rows, ranks))
                values = merged_weight(lora, values, *(_part(stored, *part) for part in parts))
            set_values(own.parameter, values)


def _set_among(
    model: Model,
    section: ModelSection,
    source: TensorSource,
    names: Mapping[str, InFile],
    among: Container[str] | None,
) -> None:
    """names: {our parameter name: its place in the source}."""
    for own in own_slices(model, section):
        if among is None or own.name in among:
            set_values(own.parameter, _part(source, names[own.name], own.index))


def _part(source: TensorSource, place: InFile, index: tuple[slice, ...]) -> np.ndarray:
    """A part of a parameter, float32, from its tensor or from the tensors that it stacks."""
    name, info = place.names[0], source.tensors[place.names[0]]
    if len(index) > len(info.shape):
        return np.stack([_part(source, InFile((name,)), index[1:]) for name in place.names[index[0]]])
    rows, held = index[0], place.rows_of(info.shape)
    there = [min(held.start + row, held.stop) for row in (rows.start, rows.stop)]
    bits = source.read_slice(name, (slice(*there), *index[1:]))
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


class OwnSlice(NamedTuple):
    """A parameter, or a master, of this rank.

    name: our parameter name. shape: of the whole tensor. index: its place in that tensor.
    """

    name: str
    shape: tuple[int, ...]
    parameter: Parameter
    index: tuple[slice, ...]


def own_slices(model: Model, section: ModelSection) -> Iterator[OwnSlice]:
    """The parameters of `section` that this rank holds, in table order, then their masters."""
    parameters = {parameter.name: parameter for parameter in model.get_parameters()}
    masters, layouts = model.masters or {}, master_layouts(section, model)
    if section.lora is None:  # adapters that a model has beside the weights asked for
        parameters, masters = (
            {name: one for name, one in each.items() if not is_adapter(name)} for each in (parameters, masters)
        )
    slices = [*_slices(parameters, weight_layouts(section, model), model.place.rank)]
    slices += _slices(masters, {name: layouts[name] for name in masters}, model.place.rank)
    with activity("setting weights", len(slices), "tensors") as doing:
        for one in slices:
            yield one
            doing.advance(1)


def _slices(parameters: Mapping[str, Parameter], layouts: Mapping[str, Layout], rank: int) -> Iterator[OwnSlice]:
    assert parameters.keys() <= layouts.keys(), f"without a layout: {sorted(parameters.keys() - layouts)}"
    for name, layout in layouts.items():
        parameter, held = parameters.get(name), layout.slice_of(rank)
        assert (parameter is None) == (held is None), f"{name}: model and layout of rank {rank} disagree"
        if parameter is not None and held is not None:
            assert tuple(parameter.shape) == held.shape, f"{name}: {parameter.shape}, the layout says {held.shape}"
            yield OwnSlice(name, layout.shape, parameter, held.index)
