"""One worker that has the routing of its replica's responses and brings it to those that train them.

usage: routing_pairs.py FOLDER. Every rank writes FOLDER/<plans>_<rank>.npz: experts by mini-batch and micro-batch where
it has them, what rank 0 asked for, loads, and the bytes that it sent.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from joined_ranks import run_joined

from mindgspo.parallel.platform import runtime


def body(folder: Path) -> None:
    from routing_cases import PLANS, SECTION, groups, mini_batches

    from mindgspo.parallel.collectives.replicas import Replicas
    from mindgspo.parallel.plans.placement import Placement
    from mindgspo.trainer.routing_transfer import RoutingTransfer, Wanted

    for name, (infer, train) in PLANS.items():
        rank = runtime.rank()
        place = Placement(plan=infer, rank=rank)
        whole = groups()
        own = Replicas(place).own(range(len(whole))) if place.is_replica_leader else []
        held = [
            group if number in own
            else replace(group, responses=tuple(replace(one, routing=None) for one in group.responses))
            for number, group in enumerate(whole)
        ]  # fmt: skip
        training = Placement(plan=train, rank=rank)
        transfer = RoutingTransfer(training, SECTION)
        routed = transfer.routed(mini_batches(held), held)
        arrays = {
            f"experts_{i}_{j}": batch.experts_RTX
            for i, batches in enumerate(routed)
            for j, batch in enumerate(batches)
            if batch.experts_RTX is not None
        }
        arrays["sent"] = np.array(transfer.bytes_sent)
        # As after scoring: the ranks that do not speak for their replica have nothing.
        silent = [[replace(batch, experts_RTX=None) for batch in batches] for batches in routed]
        for i, batches in enumerate(transfer.shared(routed if training.is_replica_leader else silent)):
            for j, batch in enumerate(batches):
                if batch.experts_RTX is not None:
                    arrays[f"shared_{i}_{j}"] = batch.experts_RTX
        for number, routing in transfer.brought(held, [Wanted((0, 4, 5, 17), (0,))]).items():
            arrays[f"asked_{number}"] = routing.whole
        arrays["loads"] = transfer.loads([response for group in held for response in group.responses])
        np.savez(folder / f"{name}_{rank}.npz", **arrays)


if __name__ == "__main__":
    run_joined(body)
