"""Where a server listens, and what it is given: a bound socket, and a key that no other process sees."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import PROJECT, command, environment

from mindgspo.errors import ConfigError
from mindgspo.launch.processes import handed_over
from mindgspo.launch.serving import _bound
from mindgspo.parallel.platform import worker_process
from mindgspo.rollout.server_key import server_key

EXAMPLE = PROJECT / "examples" / "arithmetic" / "gspo.yaml"
LISTENS = """
import sys
from mindgspo.launch.processes import taken_over
listener = taken_over()
assert taken_over() is None and not listener.get_inheritable()
listener.listen()
print("listens", flush=True)
caller, _ = listener.accept()
caller.sendall(b"the child")
"""


@pytest.fixture
def no_key(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker_process, "_api_key", None)
    monkeypatch.delenv(worker_process.API_KEY, raising=False)
    yield


def test_nobody_else_can_have_the_port_that_a_server_is_given() -> None:
    """Not before it listens, not while it does."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = listener.getsockname()
        child = subprocess.Popen(
            [sys.executable, "-c", LISTENS], stdout=subprocess.PIPE, text=True, **handed_over(listener, environment())
        )
    assert_taken(address)
    assert child.stdout is not None and child.stdout.readline() == "listens\n"
    assert_taken(address)
    with socket.create_connection(address, timeout=10) as caller:
        assert caller.recv(100) == b"the child"
    assert child.wait(timeout=10) == 0


def assert_taken(address: tuple[str, int]) -> None:
    for option in (None, socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        for host in (address[0], "0.0.0.0"):
            with socket.socket() as other:
                if option is not None:
                    other.setsockopt(socket.SOL_SOCKET, option, 1)
                with pytest.raises(OSError, match="already in use"):
                    other.bind((host, address[1]))
                    other.listen()


def test_other_machines_are_not_listened_to_without_a_key() -> None:
    for host in ("0.0.0.0", "::", socket.gethostbyname(socket.gethostname())):
        if host.startswith("127.") or (host == "::" and not socket.has_ipv6):
            continue
        with pytest.raises(
            ConfigError, match=f"--host {host} --port 0: whoever reaches this address could load weights"
        ):
            _bound(host, 0, has_key=False)
        _bound(host, 0, has_key=True).close()
    for host in ("127.0.0.1", "localhost", "127.0.0.2"):
        found = _bound(host, 0, has_key=False)
        assert found.getsockname()[0].startswith("127.")
        found.close()


def test_a_taken_port_and_a_name_that_is_not_known() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"--port {port}: cannot listen there \(Address already in use\)"):
            _bound("127.0.0.1", port, has_key=False)
    with pytest.raises(ConfigError, match="--host nowhere.invalid --port 0: cannot listen there"):
        _bound("nowhere.invalid", 0, has_key=False)


def test_the_command_refuses_it_before_anything_is_compiled() -> None:
    refused = subprocess.run(
        command("serve", EXAMPLE, "--host", "0.0.0.0", "--port", "0"),
        env={name: text for name, text in environment().items() if name != worker_process.API_KEY},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert refused.returncode == 1 and "give a key, by --api-key-file or MINDGSPO_API_KEY" in refused.stderr, refused


@pytest.mark.usefixtures("no_key")
def test_a_key_of_the_environment_is_inherited_by_rank_0_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(worker_process.API_KEY, "s3cret")
    assert [worker_process.api_key(), worker_process.api_key()] == [
        "s3cret"
    ] * 2 and worker_process.API_KEY not in os.environ
    orders = worker_process.LaunchOrders(log_dir="", state_dir="", launcher=1, is_terminal=False)
    for rank in (None, 0, 1):
        found = worker_process.worker_environment(
            orders, rank=rank, num_workers=2, num_local_workers=2, scheduler=("127.0.0.1", 1)
        )
        assert found.get(worker_process.API_KEY) == ("s3cret" if rank == 0 else None)
    # That of a run and its own servers takes its place.
    monkeypatch.setenv("MINDGSPO_ROLLOUT_SERVERS", "")
    for found in ({"http://127.0.0.1:9": 7}, {"http://127.0.0.1:1": 8}):  # it was started again
        worker_process.tell_rollout_servers(found, "of the run", tmp_path / "servers.json")
        assert worker_process.api_key() == "of the run" and worker_process.rollout_servers() == found
    assert "of the run" not in str(dict(os.environ))


@pytest.mark.usefixtures("no_key")
def test_a_key_is_read_from_a_file_and_never_quoted(tmp_path: Path) -> None:
    path = tmp_path / "key"
    assert server_key(None) is None
    path.write_text("s3cret-key\n")
    key = server_key(path)
    assert key is not None and key.bearer == "Bearer s3cret-key" and "s3cret" not in repr(key)
    for content in (
        b"",
        b"\n",
        b"s3cret one",
        b"s3cret\nother",
        b"s3cret\xff",
        "s3cret\u00e9".encode(),
        b"s3cret" * 9999,
    ):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=f"rollout.servers.api_key_file: {path}: ") as caught:
            server_key(path)
        assert "s3cret" not in str(caught.value)
    os.remove(path)
    os.mkfifo(path)
    with pytest.raises(ConfigError, match=r"the key cannot be read \(is no regular file\)"):
        server_key(path)
    with pytest.raises(ConfigError, match=r"the key cannot be read \(No such file or directory\)"):
        server_key(tmp_path / "none")
