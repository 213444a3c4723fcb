"""Questions about two documents, and tools that search and read. The answer is right if it is the row's, word for word.

The documents are data/documents.jsonl, lines of {"title", "text"}, or the file that $SEARCH_DOCUMENTS names. They are
ranked by BM25 (pip install 'mindgspo[environments]').
"""

import json
import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from mindgspo.environments import End, Environment, Message, Row, Turn

DOCUMENTS = Path(os.environ.get("SEARCH_DOCUMENTS", Path(__file__).with_name("data") / "documents.jsonl"))
NUM_FOUND = 3


class Search(Environment):
    tools = ("search", "read")

    def reset(self, row: Row, seed: int) -> None:
        index()  # what is missing is told before the run
        self.answer = row.answer
        self.num_calls = 0

    def step(self, turn: Turn) -> str | Sequence[Message] | End:
        self.num_calls += len(turn.calls)
        if turn.calls or turn.problems:
            return super().step(turn)
        is_right = words(turn.content) == words(self.answer)
        return End(reward=float(is_right), is_correct=is_right, info={"calls": self.num_calls})

    def cut(self, reason: str) -> End:
        return End(reward=0.0, is_correct=False, info={"calls": self.num_calls})

    def search(self, query: str) -> str:
        """Find titles of documents.

        Args:
            query: Words to look for.
        """
        import numpy as np

        ranked, texts = index()
        known = [word for word in words(query) if word in ranked.vocab_dict]
        if not known:
            return "nothing found"
        scores = ranked.get_scores(known)
        best = [place for place in np.argsort(-scores, kind="stable")[:NUM_FOUND] if scores[place] > 0]
        titles = list(texts)
        return "\n".join(titles[place] for place in best)

    def read(self, title: str) -> str:
        """Read a document.

        Args:
            title: Its title, as the search shows it.
        """
        return index()[1].get(title, f"there is no document {title[:80]!r}")


@cache
def index():
    """(BM25 over titles and texts, {title: text}), read once in each worker process."""
    try:
        import bm25s
    except ImportError as error:
        raise RuntimeError("bm25s is not installed: pip install 'mindgspo[environments]'") from error
    if not DOCUMENTS.is_file():
        raise RuntimeError(f"{DOCUMENTS} is missing; write it by: python examples/environments/make_data.py")
    documents = [json.loads(line) for line in DOCUMENTS.read_text("utf-8").splitlines()]
    ranked = bm25s.BM25()
    ranked.index([words(f"{one['title']} {one['text']}") for one in documents], show_progress=False)
    return ranked, {one["title"]: one["text"] for one in documents}


def words(text: str) -> list[str]:
    """Words in small letters, without signs."""
    return re.findall(r"\w+", text.lower())
