"""tiktoken.model as a model of `tokenizers`: a line has a token in base64 and its rank, which is its id. What else the
tokenizer is, how it cuts texts, stands in code beside the file, which is never run: the one of Moonlight and Kimi is
known."""

from __future__ import annotations

import base64
from collections.abc import Iterator

from tokenizers import models

from mindgspo.errors import TokenizerError
from mindgspo.text import shorten
from mindgspo.tokenization.files import CONFIG, TIKTOKEN, TOKENIZER_JSON, TokenizerFiles

_KNOWN = ("tokenization_moonshot.TikTokenTokenizer", "tokenization_kimi.TikTokenTokenizer")
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_UPPER, _LOWER = (rf"[{case}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]" for case in (r"\p{Lu}\p{Lt}", r"\p{Ll}"))
# Han, words by case, up to three digits, punctuation, line breaks, spaces.
PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDING}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDING}",
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ]
)
_PRINTED = (*range(33, 127), *range(161, 173), *range(174, 256))
_LETTERS = {byte: chr(byte) for byte in _PRINTED}
_LETTERS |= {byte: chr(256 + n) for n, byte in enumerate(byte for byte in range(256) if byte not in _LETTERS)}
"""How byte-level BPE spells each byte (GPT-2)."""
_MOST_BYTES = 512  # of a token; the longest of Kimi's are runs of blanks


def ranked_bpe(files: TokenizerFiles) -> models.BPE:
    """The model: any two neighbours that make a token merge, those of the lowest rank first.

    Raises TokenizerError if the folder's code is not known, or a line is malformed."""
    classes = files.config().get("auto_map")
    named = classes.get("AutoTokenizer") if isinstance(classes, dict) else None
    code = named[0] if isinstance(named, list) and named else named
    if code not in _KNOWN:
        raise TokenizerError(
            f"{files.where(TIKTOKEN)}: how texts are cut stands in code, which is never run; {CONFIG} names "
            f"{shorten(repr(code), 60)}, and only {' and '.join(_KNOWN)} are known; put a {TOKENIZER_JSON} beside it"
        )
    ranks = {token: rank for rank, token in enumerate(_tokens(files))}
    spelled = {token: "".join(map(_LETTERS.__getitem__, token)) for token in ranks}
    if not all(bytes([byte]) in ranks for byte in range(256)):
        raise TokenizerError(f"{files.where(TIKTOKEN)}: not every byte has a rank")
    merges = [
        (spelled[token[:cut]], spelled[token[cut:]])
        for token in ranks
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    ]
    vocab = {spelled[token]: rank for token, rank in ranks.items()}
    return models.BPE(vocab=vocab, merges=merges, ignore_merges=True)


def _tokens(files: TokenizerFiles) -> Iterator[bytes]:
    """The tokens in order of rank, which is that of the lines."""
    seen: set[bytes] = set()
    for number, line in enumerate(files.contents[TIKTOKEN].splitlines()):
        try:
            text, rank = line.split(b" ")
            token = base64.b64decode(text, validate=True)
            is_next = int(rank) == number
        except ValueError:
            token, is_next = b"", False
        if not is_next or not 0 < len(token) <= _MOST_BYTES or token in seen:
            raise TokenizerError(
                f"{files.where(TIKTOKEN)}:{number + 1}: expected a new token of up to {_MOST_BYTES} bytes in base64, a "
                f"space and the rank {number}, got {shorten(repr(line), 60)}"
            )
        seen.add(token)
        yield token
