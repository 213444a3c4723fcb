"""One worker of many reshards, one after the other in one cluster.

usage: reshard_pairs.py FOLDER. FOLDER/job.json says what is to be done, FOLDER/<model>.npz holds whole tensors. Every
rank writes FOLDER/<case>_<rank>.npz with the slices it ended up with, and FOLDER/rank_<rank>.json with what it was
told.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from joined_ranks import run_joined

from mindgspo.config import ModelSection, ParallelPlan
from mindgspo.errors import MindGSPOError
from mindgspo.models.names import weight_shapes
from mindgspo.parallel.plans.layout import Layout
from mindgspo.parallel.plans.parameter_layouts import moment_layouts, parameter_layouts
from mindgspo.parallel.platform import runtime
from mindgspo.reshard.resharder import Resharder, gather_to_first_rank
from mindgspo.reshard.verify import verify_reshard

Slices = dict[str, np.ndarray]
Entry = Mapping[str, object]

# Ranks that wait for each other for ever end here, with their stacks in the logs.
LIMIT_S = 240.0


def body(folder: Path) -> None:
    """Everything that the job asks for."""
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    job = json.loads((folder / "job.json").read_text())
    bench = Pairs(job, folder)
    told = {
        "pairs": {entry["name"]: bench.travel(entry) for entry in job["pairs"]},
        "gathers": {entry["name"]: bench.gather(entry) for entry in job["gathers"]},
        "proof": bench.prove(job["proof"], job["flips"]),
        "refusals": bench.refuse(job["proof"]),
        "disagreements": [bench.disagree(job["proof"], rank) for rank in job["odd_ranks"]],
    }
    # Whatever was refused has left no message behind.
    told["pairs"]["afterwards"] = bench.travel({**job["proof"], "name": "afterwards"})
    (folder / f"rank_{runtime.rank()}.json").write_text(json.dumps(told))
    faulthandler.cancel_dump_traceback_later()


class Pairs:
    """The reshards of a job, seen from one rank."""

    def __init__(self, job: Entry, folder: Path) -> None:
        self.models = {name: ModelSection(**section) for name, section in job["models"].items()}
        self.folder, self.rank = folder, runtime.rank()

    def travel(self, entry: Entry) -> dict[str, object]:
        """Twice on one plan: with every bit inverted, then with the right ones over them."""
        source, destination = self.layouts(entry, "source"), self.layouts(entry, "destination")
        steps: list[list[str]] = []
        resharder = Resharder(source, destination, bucket_bytes=entry["bucket_bytes"], residency=noting(steps))
        old = self.cut(entry, source)
        new = old if entry["shared"] else empty(destination, self.rank)
        invert(old)
        first = resharder.run(old, new)
        invert(old)
        second = resharder.run(old, new)
        hashes = verify_reshard(list(source), source, destination, old, new)
        self.keep(entry, new)
        return {
            "first": dataclasses.asdict(first), "second": dataclasses.asdict(second),
            "digest": resharder.plan.digest(), "steps": steps, "hashes": hashes,
        }  # fmt: skip

    def gather(self, entry: Entry) -> list[str]:
        """Everything to rank 0; the names that arrived here."""
        layouts = self.layouts(entry, "source")
        whole = gather_to_first_rank(layouts, self.cut(entry, layouts))
        self.keep(entry, whole)
        return list(whole)

    def prove(self, entry: Entry, flips: list[Entry]) -> list[str | None]:
        """What `verify_reshard` says of the sound slices, and after each flip of single bits, which are flipped
        back."""
        source, destination = self.layouts(entry, "source"), self.layouts(entry, "destination")
        sides = {"old": self.cut(entry, source), "new": self.cut(entry, destination)}

        def verify() -> None:
            verify_reshard(list(source), source, destination, **sides)

        answers = [refusal(verify)]
        for flip in flips:
            mine = [sides[flip["side"]][name] for name in flip["parameters"]] if flip["rank"] == self.rank else []
            for array in mine:
                array.reshape(-1)[-1:].view(np.int32)[...] ^= 1 << flip["bit"]
            answers.append(refusal(verify))
            for array in mine:
                array.reshape(-1)[-1:].view(np.int32)[...] ^= 1 << flip["bit"]
        return [*answers, refusal(verify)]

    def refuse(self, entry: Entry) -> dict[str, str | None]:
        """What the resharder says of slices that do not fit the plan; every rank finds out by itself."""
        source, destination = self.layouts(entry, "source"), self.layouts(entry, "destination")
        resharder = Resharder(source, destination, bucket_bytes=entry["bucket_bytes"])
        old, new = self.cut(entry, source), empty(destination, self.rank)
        norm = "model.layers.0.input_layernorm.weight"
        stranger = {"model.layers.9.mlp.up_proj.weight": np.zeros(4, np.float32)}
        wrong = {
            "missing": (old, {name: array for name, array in new.items() if name != norm}),
            "unexpected": (old | stranger, new),
            "shape": (old, {**new, norm: np.zeros(3, np.float32)}),
            "type": (old, {**new, norm: new[norm].astype(np.float64)}),
        }
        return {key: refusal(lambda pair=pair: resharder.run(*pair)) for key, pair in wrong.items()}

    def disagree(self, entry: Entry, odd: int) -> str | None:
        """What this rank hears where rank `odd` plans with buckets of another size."""
        source, destination = self.layouts(entry, "source"), self.layouts(entry, "destination")
        bucket_bytes = entry["bucket_bytes"] + 4 * (self.rank == odd)
        return refusal(lambda: Resharder(source, destination, bucket_bytes=bucket_bytes))

    def layouts(self, entry: Entry, side: str) -> dict[str, Layout]:
        model, plan = self.models[entry["model"]], ParallelPlan(**entry[side])
        return (moment_layouts if entry["moments"] else parameter_layouts)(weight_shapes(model), model, plan)

    def cut(self, entry: Entry, layouts: Mapping[str, Layout]) -> Slices:
        """This rank's slices of the whole tensors."""
        with np.load(self.folder / f"{entry['model']}.npz") as whole:
            held = {name: layout.slice_of(self.rank) for name, layout in layouts.items()}
            return {name: whole[name][block.index].copy() for name, block in held.items() if block is not None}

    def keep(self, entry: Entry, slices: Slices) -> None:
        np.savez(self.folder / f"{entry['name']}_{self.rank}.npz", **slices)


def empty(layouts: Mapping[str, Layout], rank: int) -> Slices:
    """Room for this rank's slices."""
    return {
        name: np.full(layout.slice_shape, 7, np.float32)
        for name, layout in layouts.items()
        if layout.slice_of(rank) is not None
    }


def invert(slices: Slices) -> None:
    """Every bit of every element."""
    for array in slices.values():
        words = array.view(np.int32)
        np.invert(words, out=words)


def noting(steps: list[list[str]]) -> Callable[[tuple[str, ...]], object]:
    """A residency that writes down what it was asked for, when it is let go."""

    @contextmanager
    def resident(names: tuple[str, ...]) -> Iterator[None]:
        yield
        steps.append(list(names))

    return resident


def refusal(act: Callable[[], object]) -> str | None:
    """Class and text of the error that a user would see; None where there is none."""
    try:
        act()
    except MindGSPOError as error:
        return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    run_joined(body)
