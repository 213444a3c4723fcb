"""Writes `conformance_successors.json`: what verl's and FIPO's own functions make of random batches, in float64.

The packages are not dependencies of this project, and none of their code is here. verl 0.9.1 from its wheel, unpacked
into a folder; FIPO from its repository's first commit, whose `verl` is another version, so it runs in a process of its
own:

    python tools/conformance/make_successors.py --verl FOLDER --fipo FOLDER

Both need torch, tensordict, ray and omegaconf.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

OUTPUT = Path(__file__).with_name("conformance_successors.json")
LENGTHS = ((10, 4, 7, 1, 9, 6), (5, 0, 6), (3, 3), (17, 2, 30, 8), (1,))
SPREADS = (1e-4, 1e-2, 0.3, 1.5)
"""Standard deviations of a token's log-ratio."""
Entry = dict[str, Any]


def batch(lengths: tuple[int, ...], spread: float, seed: int) -> dict[str, np.ndarray]:
    """Random log-probs, advantages per response and mask; masked slots hold numbers, too."""
    random = np.random.default_rng([seed, len(lengths), sum(lengths), round(spread * 1e4)])
    shape = (len(lengths), max(lengths))
    logp = -random.exponential(0.8, shape)
    old_logp = np.minimum(logp + spread * random.standard_normal(shape), -1e-6)
    mask = (np.arange(shape[1]) < np.array(lengths)[:, None]).astype(np.float64)
    advantages = np.repeat(random.standard_normal(shape[0])[:, None], shape[1], axis=1)
    return {"logp": logp, "old_logp": old_logp, "advantages": advantages, "mask": mask}


class Peer:
    """A version of verl that was put on the path."""

    def __init__(self, source: str) -> None:
        import torch
        from verl.trainer.ppo import core_algos

        torch.set_default_dtype(torch.float64)
        self.torch, self.module, self.source = torch, core_algos, source

    def loss(self, name: str, settings: dict[str, Any], inputs: dict[str, np.ndarray], **options: Any) -> tuple:
        """(loss, gradient by logp, metrics) of a registered policy loss."""
        tensors = {key: self.torch.tensor(array) for key, array in inputs.items()}
        logp = tensors["logp"].requires_grad_(True)
        policy = {key: value for key, value in settings.items() if not key.startswith("clip_ratio")}
        config = _Config(policy_loss=_Config(**policy), global_batch_info={}, clip_ratio=0.2, **{
            key: value for key, value in settings.items() if key.startswith("clip_ratio")
        })  # fmt: skip
        found = self.module.get_policy_loss_fn(name)(
            old_log_prob=tensors["old_logp"],
            log_prob=logp,
            advantages=tensors["advantages"],
            response_mask=tensors["mask"],
            loss_agg_mode="token-mean",
            config=config,
            **options,
        )
        (gradient,) = self.torch.autograd.grad(found[0], logp)
        return float(found[0].detach()), gradient.numpy(), found[1]


class _Config(SimpleNamespace):
    """Attributes that can also be asked for by `get`, as omegaconf's."""

    def get(self, key: str, default: Any = None) -> Any:
        return getattr(self, key, default)


def entry(name: str, source: str, config: dict[str, Any], inputs: dict[str, np.ndarray], found: tuple) -> Entry:
    loss, gradient, metrics = found
    return {
        "name": name,
        "kind": "policy_loss",
        "source": source,
        "config": {"ratio_level": "token", "loss_agg_mode": "token-mean", **config},
        "inputs": {key: array.tolist() for key, array in inputs.items()},
        "expected": {"loss": loss, "grad_logp": gradient.tolist(), "metrics": metrics},
        "tags": ["successor"],
    }


def clip_share(metrics: dict[str, Any]) -> dict[str, float]:
    """The peer's averages by the names of the format."""
    names = {"actor/pg_clipfrac": "pg_clipfrac_token", "actor/pg_clipfrac_lower": "pg_clipfrac_lower_token"}
    return {names[key]: float(value) for key, value in metrics.items() if key in names}


def scenarios() -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    for number, lengths in enumerate(LENGTHS):
        for spread in SPREADS:
            yield f"{'x'.join(map(str, lengths))}_{spread:g}", batch(lengths, spread, number)


def dppo_cases(peer: Peer) -> Iterator[Entry]:
    """Thresholds of the paper, and narrow ones with a low truncation; with weights against the mismatch as well."""
    for kind, usual in (("tv", 0.15), ("kl", 0.05)):
        for low, high, largest in ((usual, usual, 20.0), (usual / 20, usual / 10, 1.2)):
            for name, inputs in scenarios():
                given, weights = {"clip_ratio_low": low, "clip_ratio_high": high, "clip_ratio_c": largest}, {}
                if largest < 2:
                    random = np.random.default_rng(inputs["mask"].size)
                    inputs["rollout_is_weights"] = np.exp(0.2 * random.standard_normal(inputs["mask"].shape))
                    weights = {"rollout_is_weights": peer.torch.tensor(inputs["rollout_is_weights"])}
                loss, gradient, metrics = peer.loss(f"dppo_{kind}", given, inputs, **weights)
                config = {
                    "surrogate": f"dppo_{kind}", "clip_low": low, "clip_high": high, "clip_ratio_c": largest,
                    "log_ratio_min": -20.0, "log_ratio_max": 20.0, "metric_eps": 1e-8,
                }  # fmt: skip
                found = (loss, gradient, clip_share(metrics))
                yield entry(
                    f"dppo_{kind}_{high:g}_{name}/verl-0.9.1", f"{peer.source}: dppo_{kind}", config, inputs, found
                )


def clip_cov_cases(peer: Peer) -> Iterator[Entry]:
    """The tokens that were drawn are read off the gradient of a batch without a clip: 0 where the loss is."""
    for low, high, clip in ((1.0, 5.0, 1.0), (0.05, 2.0, 0.2)):
        for name, inputs in scenarios():
            settings = {
                "clip_cov_ratio": 0.1, "clip_cov_lb": low, "clip_cov_ub": high,
                "clip_ratio_low": clip, "clip_ratio_high": clip,
            }  # fmt: skip
            peer.torch.manual_seed(7)
            chosen: list[np.ndarray] = []
            nonzero = peer.torch.nonzero

            def watched(tensor: Any, nonzero: Callable = nonzero, chosen: list = chosen) -> Any:
                chosen.append(nonzero(tensor).numpy())
                return nonzero(tensor)

            peer.torch.nonzero = watched
            try:
                loss, gradient, metrics = peer.loss("clip_cov", settings, inputs)
            finally:
                peer.torch.nonzero = nonzero
            candidates = chosen[0]
            count = min(max(int(0.1 * inputs["mask"].sum()), 1), len(candidates))
            peer.torch.manual_seed(7)
            drawn = candidates[peer.torch.randperm(len(candidates)).numpy()[:count]] if count else candidates
            selected = np.zeros_like(inputs["mask"])
            selected[drawn[:, 0], drawn[:, 1]] = 1
            config = {"surrogate": "clip_cov", "clip_low": clip, "clip_high": clip, "metric_eps": 1e-8}
            found = (loss, gradient, clip_share(metrics))
            source = f"{peer.source}: clip_cov"
            yield entry(f"clip_cov_{clip:g}_{name}/verl-0.9.1", source, config, inputs | {"selected": selected}, found)


def kl_cov_cases(peer: Peer) -> Iterator[Entry]:
    for share, coef in ((0.002, 1.0), (0.2, 0.5)):
        for name, inputs in scenarios():
            chosen: list[np.ndarray] = []
            topk = peer.torch.topk

            def watched(*args: Any, topk: Callable = topk, chosen: list = chosen, **options: Any) -> Any:
                found = topk(*args, **options)
                chosen.append(found.indices.numpy())
                return found

            peer.torch.topk = watched
            try:
                loss, gradient, _ = peer.loss("kl_cov", {"kl_cov_ratio": share, "ppo_kl_coef": coef}, inputs)
            finally:
                peer.torch.topk = topk
            selected = np.zeros_like(inputs["mask"])
            selected.reshape(-1)[np.flatnonzero(inputs["mask"])[chosen[0]]] = 1
            config = {"surrogate": "kl_cov", "kl_cov_coef": coef}
            source = f"{peer.source}: kl_cov"
            yield entry(
                f"kl_cov_{share:g}_{name}/verl-0.9.1",
                source,
                config,
                inputs | {"selected": selected},
                (loss, gradient, {}),
            )


def baseline_cases(peer: Peer) -> Iterator[Entry]:
    """Optimal token baseline: groups of two to four, one of one, with and without weights against the mismatch."""
    for lengths in ((5, 3, 5, 2, 7, 4, 1), (6, 6, 2, 9), (4,)):
        for weighted in (False, True):
            random = np.random.default_rng([len(lengths), int(weighted)])
            shape = (len(lengths), max(lengths))
            old_logp, mask = -random.exponential(0.8, shape), np.arange(shape[1]) < np.array(lengths)[:, None]
            squares = np.exp(2 * old_logp) + (1 - np.exp(old_logp)) ** 2 * random.random(shape)
            group = np.array([0, 0, 1, 1, 1, 1, 2][: len(lengths)])
            rewards = random.integers(0, 2, len(lengths)).astype(float) + 0.25 * random.random(len(lengths))
            token_rewards = np.zeros(shape)
            token_rewards[np.arange(len(lengths)), np.array(lengths) - 1] = rewards
            inputs = {
                "rewards": rewards, "mask": mask.astype(float), "group": group.astype(float), "old_logp": old_logp,
                "sum_pi_squared": squares,
            }  # fmt: skip
            if weighted:
                inputs["rollout_is_weights"] = np.exp(0.3 * random.standard_normal(shape))
            tensors = {key: peer.torch.tensor(array) for key, array in inputs.items()}
            advantages, returns = peer.module.compute_optimal_token_baseline_advantage(
                token_level_rewards=peer.torch.tensor(token_rewards),
                response_mask=tensors["mask"],
                index=group,
                old_log_probs=tensors["old_logp"],
                sum_pi_squared=tensors["sum_pi_squared"],
                rollout_is_weights=tensors.get("rollout_is_weights"),
            )
            suffix = "_is" if weighted else ""
            yield {
                "name": f"otb{suffix}_{'x'.join(map(str, lengths))}/verl-0.9.1",
                "kind": "advantage",
                "source": f"{peer.source}: compute_optimal_token_baseline_advantage",
                "config": {"estimator": "optimal_token_baseline", "singleton": "raw", "compare": "valid_slots"},
                "inputs": {key: array.tolist() for key, array in inputs.items()},
                "expected": {"advantages": advantages.tolist(), "returns": returns.tolist()},
                "tags": ["successor"],
            }


def fipo_cases(peer: Peer) -> Iterator[Entry]:
    """The published settings; a short half-life with weights on both sides; a dual clip that drops responses.

    The peer leaves a dropped response out of the mean over tokens as well: cases where that happens are told by the
    loss's denominator, `norm_tokens`.
    """
    for half_life, clip, only_high, c, safety in (
        (32.0, 0.2, True, 10.0, 10.0), (2.0, 0.5, False, 3.0, 1.5), (8.0, 0.0, False, 1.5, 4.0),
    ):  # fmt: skip
        for name, inputs in scenarios():
            settings = {
                "decay_rate": half_life, "chunk_size": 4, "future_kl_clip_ratio": clip,
                "future_kl_clip_high_only": only_high, "safety_thresh": safety,
                "future_kl_start": "include_current", "future_kl_window": -1, "future_kl_average": False,
                "clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": c,
            }  # fmt: skip
            kept: list[float] = []
            agg_loss = peer.module.agg_loss

            def watched(
                loss_mat: Any, loss_mask: Any, agg_loss: Any = agg_loss, kept: list = kept, **options: Any
            ) -> Any:
                kept.append(float(loss_mask.sum()))
                return agg_loss(loss_mat=loss_mat, loss_mask=loss_mask, **options)

            peer.module.agg_loss = watched
            try:
                loss, gradient, _ = peer.loss("future_kl", settings, inputs)
            finally:
                peer.module.agg_loss = agg_loss
            if not kept[0]:
                continue  # every response was dropped: the peer divides by 0
            low, high = (0.0, 10.0) if clip == 0 else (1.0 if only_high else 1.0 - clip, 1.0 + clip)
            config = {
                "surrogate": "fipo", "clip_low": 0.2, "clip_high": 0.28, "clip_ratio_c": c,
                "future_half_life": half_life, "influence_low": low, "influence_high": high, "safety_ratio": safety,
                "log_ratio_min": -20.0, "log_ratio_max": 20.0, "norm_tokens": kept[0], "token_mean_eps": 1e-8,
            }  # fmt: skip
            source = "qwenpilot/FIPO 4d52d01: compute_policy_loss_future_kl"
            yield entry(f"fipo_{half_life:g}_{name}/fipo", source, config, inputs, (loss, gradient, {}))


MAKERS = {"verl": (dppo_cases, clip_cov_cases, kl_cov_cases, baseline_cases), "fipo": (fipo_cases,)}


def main() -> None:
    """Make the cases of one peer and print them, or write those of both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verl", type=Path, required=True, help="folder with verl 0.9.1")
    parser.add_argument("--fipo", type=Path, required=True, help="folder with FIPO's verl")
    parser.add_argument("--peer", choices=MAKERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        sys.path.insert(0, str(getattr(arguments, arguments.peer)))
        peer = Peer("verl 0.9.1 (PyPI)")
        for case in (case for make in MAKERS[arguments.peer] for case in make(peer)):
            print(json.dumps(case))
        return
    lines: list[str] = []
    for name in MAKERS:
        command = [sys.executable, __file__, "--verl", arguments.verl, "--fipo", arguments.fipo, "--peer", name]
        found = subprocess.run([*map(str, command)], check=True, capture_output=True, text=True).stdout
        lines += [line for line in found.splitlines() if line.startswith('{"name"')]
    OUTPUT.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
    print(f"{OUTPUT}: {len(lines)} cases")


if __name__ == "__main__":
    main()
