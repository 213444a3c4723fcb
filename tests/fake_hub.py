"""A server on this machine with the routes of Hugging Face and ModelScope that their libraries fetch files by."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass(slots=True)
class Repository:
    """Commits of one repository, the newest last; status: other than 200 for one that is refused."""

    commits: dict[str, dict[str, bytes]]
    status: int = 200
    error: str = ""
    branches: dict[str, str] = field(default_factory=dict)
    """Commits of other branches than main."""

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """The commit that a revision means, and its files."""
        name = list(self.commits)[-1] if revision in ("main", "master") else self.branches.get(revision, revision)
        return (name, self.commits[name]) if name in self.commits else None


@dataclass(slots=True)
class Hub:
    """What the server has, and what was asked for."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    """By models/owner/name or datasets/owner/name."""
    url: str = ""
    fetched: list[str] = field(default_factory=list)
    """Names of files whose content was sent."""
    asked: int = 0
    """Requests."""

    def add(self, name: str, files: dict[str, bytes], *, status: int = 200, error: str = "") -> str:
        """A new commit, which is returned."""
        repository = self.repositories.setdefault(name, Repository({}, status, error))
        commit = hashlib.sha1(f"{name} {len(repository.commits)}".encode()).hexdigest()
        repository.commits[commit] = files
        return commit


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """Serve at hub.url until the block ends."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._respond(with_body=False)

        def do_GET(self) -> None:
            self._respond(with_body=True)

        def _respond(self, *, with_body: bool) -> None:
            hub.asked += 1
            url = urlsplit(self.path)
            parts, query = [unquote(part) for part in url.path.split("/")[1:]], parse_qs(url.query)
            status, headers, body = _answer(hub, parts, {key: values[0] for key, values in query.items()}, with_body)
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _answer(hub: Hub, parts: list[str], query: dict[str, str], with_body: bool) -> tuple[int, dict[str, str], bytes]:
    if parts[:2] == ["api", "v1"]:
        return _modelscope(hub, parts[2:], query, with_body)
    is_api = parts[0] == "api"
    parts = parts[1:] if is_api else parts if parts[0] == "datasets" else ["models", *parts]
    name, how, rest = "/".join(parts[:3]), parts[3] if len(parts) > 3 else "revision", parts[4:]
    repository = hub.repositories.get(name)
    if repository is None:
        return 404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}, b"{}"
    if repository.status != 200:
        return repository.status, {"X-Error-Code": repository.error}, b"{}"
    found = repository.at(rest[0] if rest else "main")
    if found is None:
        return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
    commit, files = found
    if how == "revision":
        siblings = [{"rfilename": file, "size": len(body), "blobId": _id(body)} for file, body in files.items()]
        info = {"id": "/".join(parts[1:3]), "sha": commit, "siblings": siblings, "private": False, "tags": []}
        return 200, {"Content-Type": "application/json"}, json.dumps({**info, "downloads": 0, "likes": 0}).encode()
    if how == "tree":
        rows = [{"type": "file", "path": file, "size": len(body), "oid": _id(body)} for file, body in files.items()]
        return 200, {"Content-Type": "application/json"}, json.dumps(rows).encode()
    assert how == "resolve", parts
    file = "/".join(rest[1:])
    if file not in files:
        return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}, b"{}"
    if with_body:
        hub.fetched.append(file)
    return 200, {"ETag": f'"{_id(files[file])}"', "X-Repo-Commit": commit}, files[file]


def _modelscope(
    hub: Hub, parts: list[str], query: dict[str, str], with_body: bool
) -> tuple[int, dict[str, str], bytes]:
    repository = hub.repositories.get("/".join(parts[:3]))
    found = repository.at(query.get("Revision", "master")) if repository is not None else None
    if repository is None or found is None or repository.status != 200:
        status = 404 if repository is None or found is None else repository.status
        return status, {}, json.dumps({"Code": status, "Success": False, "Message": "refused"}).encode()
    commit, files = found
    if parts[3:] in (["repo", "files"], ["repo", "tree"]):
        rows = [
            {"Path": file, "Name": file, "Type": "blob", "Size": len(body), "Sha256": hashlib.sha256(body).hexdigest()}
            | {"Revision": commit, "CommittedDate": 1_700_000_000}
            for file, body in files.items()
        ]
        rows = rows if int(query.get("PageNumber", 1)) == 1 else []
        data = {"Files": rows, "TotalCount": len(rows)}
        return (
            200,
            {"Content-Type": "application/json"},
            json.dumps({"Code": 200, "Success": True, "Data": data}).encode(),
        )
    assert parts[3:] == ["repo"], parts
    body = files[query["FilePath"]]
    if with_body:
        hub.fetched.append(query["FilePath"])
    return 200, {}, body


def _id(body: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
