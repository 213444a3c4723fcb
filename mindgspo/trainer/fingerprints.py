"""What a run learns from, in a few hashes: they go into its checkpoints and are compared when one is taken up.

What enters: tokenizer, training rows and reward functions. What leaves: JSON, or an error that says what differs.
Called by `build` and `restoring`. The configuration is compared before (`resume`); this sees files that changed under
one name. No MindSpore.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from mindgspo.config import ExperimentConfig
from mindgspo.config.reward import file_function
from mindgspo.data import PromptDataset
from mindgspo.errors import CheckpointError
from mindgspo.tokenization import Tokenizer

Fingerprints = dict[str, Any]


def fingerprints(config: ExperimentConfig, tokenizer: Tokenizer, rows: PromptDataset, *, digest: str) -> Fingerprints:
    """digest: of the training rows."""
    files = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(tokenizer.files.contents.items())}
    own = [file for name in config.reward.functions if (file := file_function(name)) is not None]
    return {
        "tokenizer": {
            "name": tokenizer.name,
            "tokens": tokenizer.vocab_size,
            "eos_ids": list(tokenizer.eos_ids),
            "pad_id": tokenizer.pad_id,
            "files": files,
        },
        "data": {"rows": len(rows), "digest": digest},
        "reward": {file.label: hashlib.sha256(file.path.read_bytes()).hexdigest() for file in own},
    }


def check_fingerprints(
    saved: Mapping[str, Any] | None, ours: Mapping[str, Any], *, where: object, weights_only: bool
) -> list[str]:
    """Warnings, one line each. saved: None in checkpoints that have none. weights_only: data and reward may be others.

    Raises CheckpointError for another tokenizer, whose ids the weights do not know, and for other training rows.
    """
    if not saved:
        return [f"{where} does not say with which tokenizer and data it was made; nothing is compared"]
    problems = list(_tokenizer_problems(saved["tokenizer"], ours["tokenizer"]))
    if problems:
        raise CheckpointError(
            f"{where}: its weights were trained with another tokenizer than {ours['tokenizer']['name']}:\n  "
            + "\n  ".join(problems)
            + f"\nSet tokenizer.path to the one it was trained with ({saved['tokenizer']['name']})"
        )
    if weights_only:
        return []
    if saved["data"]["digest"] != ours["data"]["digest"]:
        raise CheckpointError(
            f"{where}: it was trained on other rows of data.train ({saved['data']['rows']:,}, here "
            f"{ours['data']['rows']:,}, with other content); its place in the data means nothing here. Resume with the "
            "former data, or take the weights alone into a new run with restore=weights"
        )
    return [
        f"reward.functions: {name} is not the file any more that it was when {where} was saved; rewards before and "
        "after may not compare"
        for name, digest in ours["reward"].items()
        if saved["reward"].get(name, digest) != digest
    ]


def rows_digest(rows: PromptDataset) -> str:
    """Over everything of the rows that training reads."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(row.ids.tobytes())
        digest.update(json.dumps([row.index, row.answer, row.data_source, row.solution]).encode())
    return digest.hexdigest()


def _tokenizer_problems(saved: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
    for key, what in (("tokens", "tokens"), ("eos_ids", "EOS ids"), ("pad_id", "pad id")):
        if saved[key] != ours[key]:
            yield f"{what}: {saved[key]} there, {ours[key]} here"
    for name in sorted(saved["files"].keys() | ours["files"].keys()):
        theirs, own = saved["files"].get(name), ours["files"].get(name)
        if theirs != own:
            yield f"{name}: " + ("only there" if own is None else "only here" if theirs is None else "another content")
