"""Whether two models mean the same tokens by their ids."""

from __future__ import annotations

from pathlib import Path

from mindgspo.errors import TokenizerError
from mindgspo.text import shorten
from mindgspo.tokenization.files import TOKENIZER_JSON, VOCAB, TokenizerFiles, read_added_tokens, read_files
from mindgspo.tokenization.tokenizer import Tokenizer


def check_same_vocabulary(tokenizer: Tokenizer, folder: Path) -> None:
    """Raises TokenizerError unless the tokenizer in a model's folder gives every id the same token; by the files alone,
    so that nothing in them is run. A folder without a tokenizer says nothing."""
    ours, theirs = tokenizer.files, read_files(folder)
    if not theirs.contents:
        return
    if ours.sentencepiece_names() and theirs.sentencepiece_names():
        if ours.contents[ours.sentencepiece_names()[0]] != theirs.contents[theirs.sentencepiece_names()[0]]:
            raise TokenizerError(f"{folder}: its sentencepiece model is not that of {ours.origin}")
        return
    known, others = _tokens(ours), _tokens(theirs)
    if known is None or others is None:
        raise TokenizerError(
            f"{folder}: its tokenizer has other files than {ours.origin}, so that their tokens cannot be compared; "
            f"give both a {TOKENIZER_JSON}"
        )
    differing = min((id for id in known.keys() | others.keys() if known.get(id) != others.get(id)), default=None)
    if differing is not None:
        one, other = (shorten(repr(tokens.get(differing, "none")), 60) for tokens in (known, others))
        raise TokenizerError(
            f"{folder}: its vocabulary is not that of {ours.origin}: id {differing} is {other} there and {one} here "
            f"({len(others):,} tokens and {len(known):,})"
        )


def _tokens(files: TokenizerFiles) -> dict[int, str] | None:
    """{id: token}; None for files of another kind. Raises TokenizerError if they are malformed."""
    if TOKENIZER_JSON in files:
        whole = files.json_object(TOKENIZER_JSON)
        model, added = whole.get("model"), whole.get("added_tokens", [])
        vocab = model.get("vocab") if isinstance(model, dict) else None
        where = files.where(TOKENIZER_JSON)
    elif VOCAB in files:
        vocab, added, where = files.json_object(VOCAB), [], files.where(VOCAB)
    else:
        return None
    if not isinstance(vocab, dict) or not isinstance(added, list):
        raise TokenizerError(f"{where}: expected a vocabulary of token -> id")
    tokens = {id: token for token, id in vocab.items() if isinstance(id, int)}
    named = (one for one in added if isinstance(one, dict))
    tokens |= {one["id"]: str(one.get("content")) for one in named if isinstance(one.get("id"), int)}
    return tokens | {id: token.content for id, token in read_added_tokens(files).items()}
