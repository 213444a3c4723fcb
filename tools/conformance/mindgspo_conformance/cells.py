"""What the MindSpore cells make of cases in float32: jobs that share a compiled graph, over several processes.

A graph is compiled per definition and shape, which takes a third of a second and one thread. So every case is padded to
a common shape (a masked slot or row changes nothing, because denominators are passed in), and cases with one definition
make one job. Numbers that change from case to case, denominators and kl_coef, are inputs of the graph.

    N  responses    K  response-token slots
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray

from mindgspo.algorithms.losses.definition import Aggregation, KLTerm, LossDefinition
from mindgspo.types import BoolArray
from mindgspo_conformance.cases import Case, Float64Array
from mindgspo_conformance.compare import CELL_TOLERANCE, Check, check, failed_check
from mindgspo_conformance.definitions import loss_config

# A process takes 3 s to start and about 600 MB.
_GRAPHS_PER_PROCESS = 16
_MOST_PROCESSES = 4
# Cases of these tags, or this close to a clip edge, have no right answer in float32.
SKIPPED_TAGS = ("float64_only", "log_ratio_overflow")
SMALLEST_EDGE_MARGIN = 1e-6
# Smallest common shape; larger ones are the next powers of two.
_SMALLEST_N, _SMALLEST_K = 8, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CellInputs:
    """The inputs of one case, padded. number: its place in the list of cases.

    arrays: float32 [N, K] by the names of the file; an input that the case does not have is absent. kl_share:
    sequences of the loss over sequences of the KL term, which divide by different counts beside a batch-mean; a cell
    has one count, so kl_coef holds this factor already, and the KL loss that comes out wants it too.
    """

    number: int
    arrays: Mapping[str, NDArray[np.float32]]
    mask_NK: BoolArray
    num_sequences: float
    num_tokens: float
    kl_coef: float = 0.0
    kl_share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CellJob:
    """Cases that one compiled graph computes. The type of the definition says which graph."""

    definition: LossDefinition | KLTerm | Aggregation
    inputs: tuple[CellInputs, ...]


def skip_reason(case: Case) -> str | None:
    """Why the cells are not asked about a case; None if they are."""
    for tag in SKIPPED_TAGS:
        if tag in case.tags:
            return tag
    # "not >=" so that a nan is skipped, and said, rather than compared.
    return None if case.edge_margin >= SMALLEST_EDGE_MARGIN else f"edge_margin < {SMALLEST_EDGE_MARGIN:g}"


def cell_jobs(cases: Mapping[int, Case]) -> list[CellJob]:
    """Jobs for the cases, by their numbers, that are to be computed by cells."""
    groups: dict[tuple[LossDefinition | KLTerm | Aggregation, tuple[int, ...]], list[CellInputs]] = {}
    for number, case in cases.items():
        definition, inputs = _prepared(number, case)
        groups.setdefault((definition, inputs.mask_NK.shape), []).append(inputs)
    return [CellJob(definition=definition, inputs=tuple(inputs)) for (definition, _), inputs in groups.items()]


def padded(matrix: NDArray, shape: Sequence[int]) -> NDArray:
    """The matrix in the top left corner of zeros."""
    larger = np.zeros(shape, dtype=matrix.dtype)
    larger[: matrix.shape[0], : matrix.shape[1]] = matrix
    return larger


def common_shape(shape: Sequence[int]) -> tuple[int, int]:
    """The next shape whose sides are powers of two."""
    num_rows, num_slots = shape
    return max(_SMALLEST_N, 1 << (num_rows - 1).bit_length()), max(_SMALLEST_K, 1 << (num_slots - 1).bit_length())


def _prepared(number: int, case: Case) -> tuple[LossDefinition | KLTerm | Aggregation, CellInputs]:
    mask_NK, config = case.inputs["mask"], loss_config(case.config)
    num_slots = mask_NK.shape[1]
    kl_coef, kl_share = 0.0, 1.0
    definition: LossDefinition | KLTerm | Aggregation
    if case.kind == "policy_loss":
        definition = config.definition(num_slots)
        aggregation = definition.aggregation
        if definition.kl is not None:
            num_sequences, _ = config.denominators(aggregation, mask_NK)
            kl_num_sequences, _ = config.denominators(definition.kl.aggregation, mask_NK)
            kl_share = num_sequences / kl_num_sequences if _by_sequence(definition.kl.aggregation) else 1.0
            kl_coef = (config.kl_coef or 0.0) * kl_share
    elif case.kind == "kl":
        definition = config.kl_term(num_slots)
        aggregation, kl_coef = definition.aggregation, 1.0 if config.kl_coef is None else config.kl_coef
    else:
        definition = aggregation = config.aggregation(num_slots)
    num_sequences, num_tokens = config.denominators(aggregation, mask_NK)
    shape = common_shape(mask_NK.shape)
    arrays = {name: array for name, array in case.inputs.items() if name != "mask"}
    if case.correction is not None:
        arrays["rollout_is_weights"] = case.correction
    if case.kind == "policy_loss" and arrays["advantages"].ndim == 2 and config.surrogate == "gmpo":
        # A row without tokens may have an advantage of its own, which the cell finds in its slots, but none per token.
        arrays["advantages"] = np.where(mask_NK.any(axis=1, keepdims=True), arrays["advantages"], 0.0)
    return definition, CellInputs(
        number=number,
        arrays={name: _float32(array, shape) for name, array in arrays.items()},
        mask_NK=padded(mask_NK == 1, shape),
        num_sequences=num_sequences,
        num_tokens=num_tokens,
        kl_coef=kl_coef,
        kl_share=kl_share,
    )


def _by_sequence(aggregation: Aggregation) -> bool:
    """Whether the aggregation divides by a number of sequences."""
    return aggregation.mode.startswith("seq-mean")


def _float32(array: Float64Array, shape: tuple[int, int]) -> NDArray[np.float32]:
    """Padded float32; one value per response is put into each of its slots, masked ones too."""
    if array.ndim == 1:
        array = np.repeat(array[:, None], shape[1], axis=1)
    with np.errstate(over="ignore"):  # 1e300 in a masked slot becomes inf, and must do no harm
        return padded(array.astype(np.float32), shape)


Found = list[tuple[int, Check]]


class CellRuns:
    """Cases by any number, split into skipped ones, and jobs. All are of KINDS_OF_CELLS."""

    def __init__(self, cases: Mapping[int, Case]) -> None:
        self._cases = cases
        reasons = {number: skip_reason(case) for number, case in cases.items()}
        self.skipped = {number: Check(skipped=reason) for number, reason in reasons.items() if reason}
        self._jobs = cell_jobs({number: case for number, case in cases.items() if number not in self.skipped})

    @property
    def num_graphs(self) -> int:
        return len(self._jobs)

    @property
    def num_processes(self) -> int:
        wanted = -(-self.num_graphs // _GRAPHS_PER_PROCESS)
        return max(1, min(wanted, len(os.sched_getaffinity(0)), _MOST_PROCESSES))

    def checks(self) -> Iterator[Found]:
        """Checks by the number of the case, as the jobs end. A failing compile is the failure of its cases."""
        if self.num_processes == 1:
            yield from (check_job(job, self._cases_of(job)) for job in self._jobs)
            return
        # spawn: MindSpore's threads do not survive a fork.
        pool = ProcessPoolExecutor(self.num_processes, mp_context=get_context("spawn"))
        try:
            waiting = {pool.submit(check_job, job, self._cases_of(job)): job for job in self._jobs}
            for done in as_completed(waiting):
                try:
                    yield done.result()
                except BrokenProcessPool as error:
                    yield [(inputs.number, failed_check(error)) for inputs in waiting[done].inputs]
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _cases_of(self, job: CellJob) -> list[Case]:
        return [self._cases[inputs.number] for inputs in job.inputs]


def check_job(job: CellJob, cases: Sequence[Case]) -> Found:
    """Compute one job and compare. cases: those of `job.inputs`, in their order. Runs in any process."""
    from mindgspo_conformance.graphs import compute  # MindSpore

    try:
        results = compute(job)
    except Exception as error:
        return [(inputs.number, failed_check(error)) for inputs in job.inputs]
    found = []
    for inputs, case, got in zip(job.inputs, cases, results, strict=True):
        shape = inputs.mask_NK.shape
        # Padded slots are compared, too: their gradient is 0.
        expected = {
            name: padded(values, shape) if values.ndim == 2 else values for name, values in case.expected.items()
        }
        found.append((inputs.number, check(expected, got, CELL_TOLERANCE)))
    return found
