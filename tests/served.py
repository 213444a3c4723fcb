"""`mindgspo serve` in a process of its own, and what it answers."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from running import command, environment


class Server:
    """One that listens at `url`; words follow the configuration on its command line. It writes into `log`, and takes
    weights from all folders of the tests."""

    def __init__(self, config: Path, log: Path, *words: str) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command("serve", config, "--port", "0", "--weights-dir", log.parent.parent, *words),
                cwd=log.parent, env=environment(), stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        give_up = time.monotonic() + 300
        while not (found := re.search(r"serving at (http://\S+)", log.read_text())):
            assert self.process.poll() is None and time.monotonic() < give_up, log.read_text()
            time.sleep(0.1)
        self.url = found[1]

    def post(self, path: str, content: Any = None) -> tuple[int, Any]:
        """Status and JSON of the answer. content: the body as it is if it is bytes, else JSON."""
        body = content if isinstance(content, bytes) else json.dumps(content or {}).encode()
        request = urllib.request.Request(
            self.url + path, data=body, headers={"Content-Type": "application/json"}, method="POST"
        )
        return self._answer(request)

    def get(self, path: str) -> tuple[int, Any]:
        """Status and JSON of the answer."""
        return self._answer(urllib.request.Request(self.url + path))

    def _answer(self, request: urllib.request.Request) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def end(self) -> int:
        """Ask it to end; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)
