"""The secret that a trainer shares with the servers that generate for it.

Both sides sign what they send, and each request has a random number that its answer's signature covers. A process that
listens at a server's port in its place neither learns the key nor can answer. Clients that cannot sign send the key
itself, as OpenAI's do.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from pathlib import Path

from mindgspo.errors import ConfigError
from mindgspo.io import read_bytes
from mindgspo.parallel.platform import worker_process

NONCE, SIGNATURE = "X-MindGSPO-Nonce", "X-MindGSPO-Signature"
_MOST_BYTES = 4096


class ServerKey:
    """Signs and checks messages. text: visible ASCII; no representation of this object shows it."""

    def __init__(self, text: str) -> None:
        self._text = text

    @property
    def bearer(self) -> str:
        """Authorization header of a client that cannot sign."""
        return f"Bearer {self._text}"

    def signed(self, method: str, path: str, body: bytes) -> dict[str, str]:
        """Return the headers of a signed request. path: with its query, as the server sees it."""
        nonce = secrets.token_hex(16)
        return {NONCE: nonce, SIGNATURE: self._signature("request", nonce, method, path, body)}

    def allows(self, headers: Mapping[str, str], method: str, path: str, body: bytes) -> bool:
        """Whether a request is signed with the key, or contains it."""
        found, expected = headers.get("Authorization", ""), self.bearer
        if SIGNATURE in headers:
            found = headers[SIGNATURE]
            expected = self._signature("request", headers.get(NONCE, ""), method, path, body)
        return _are_equal(found, expected)

    def proof(self, nonce: str, status: int, body: bytes) -> dict[str, str]:
        """Return the headers of the signed answer to the request with this nonce."""
        return {SIGNATURE: self._signature("answer", nonce, str(status), body)}

    def is_proven(self, headers: Mapping[str, str], nonce: str, status: int, body: bytes) -> bool:
        """Whether an answer is signed with the key."""
        return _are_equal(headers.get(SIGNATURE, ""), self.proof(nonce, status, body)[SIGNATURE])

    def hidden(self, text: str) -> str:
        """Return a text with the key masked."""
        return text.replace(self._text, "***")

    def _signature(self, *parts: str | bytes) -> str:
        whole = hashlib.sha256()
        for part in parts:
            content = part if isinstance(part, bytes) else _bytes(part)
            whole.update(len(content).to_bytes(8, "big") + content)
        return hmac.new(self._text.encode(), whole.digest(), hashlib.sha256).hexdigest()


def server_key(path: Path | None) -> ServerKey | None:
    """Return the key from the environment, else from the file of rollout.servers.api_key_file; None without either.
    Raises ConfigError, which never quotes the key."""
    text = worker_process.api_key()
    if text is not None:
        return _checked(text, worker_process.API_KEY)
    return None if path is None else key_of_file(path, "rollout.servers.api_key_file")


def key_of_file(path: Path, setting: str) -> ServerKey:
    """Return the key in a file that `setting` names. Raises ConfigError, which never quotes the key."""
    where = f"{setting}: {path}"
    try:
        text = read_bytes(path, most=_MOST_BYTES).decode("ascii").strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
        raise ConfigError(f"{where}: the key cannot be read ({reason})") from None
    return _checked(text, where)


def _checked(text: str, where: str) -> ServerKey:
    if not text or not all("!" <= letter <= "~" for letter in text):
        raise ConfigError(f"{where}: a key is one line of visible ASCII letters, without spaces")
    return ServerKey(text)


def _are_equal(one: str, other: str) -> bool:
    return hmac.compare_digest(_bytes(one), _bytes(other))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
