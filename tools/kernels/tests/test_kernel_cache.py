"""The cache of compiled code: what others could have put there is not loaded; compilers end with their process."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from running import environment

from mindgspo_kernels import build
from mindgspo_kernels.cache import check_own

STRANGER = 12_345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
needs_gcc = pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")


@pytest.fixture(autouse=True)
def fast_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "compile_library", lambda target: target.write_bytes(b"ours"))
    monkeypatch.setattr(build, "_key", lambda: "key")


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def test_what_is_made_is_this_users_alone_whatever_the_umask(tmp_path: Path, umask: None) -> None:
    path = build.library_in(tmp_path / "new" / "mindgspo")
    assert build.library_in(tmp_path / "new" / "mindgspo") == path and path.read_bytes()[:-32] == b"ours"
    made = [path, *list(path.parents)[:4]]
    assert [one.stat().st_mode & 0o777 for one in made] == [0o700] * 5 and made[-1] == tmp_path / "new"


def give_away(path: Path) -> None:
    os.chown(path, STRANGER, STRANGER)


def lead_away(path: Path) -> None:
    shutil.move(path, path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


@pytest.mark.parametrize("which", ["library", "key", "kernels", "cache", "base"])
@pytest.mark.parametrize(("change", "said"), [
    pytest.param(give_away, f"belongs to user {STRANGER}", marks=needs_root),
    (lambda path: path.chmod(0o777), r"may be written by others \(mode 777\): chmod go-w"),
    (lambda path: path.chmod(0o720), r"may be written by others \(mode 720\): chmod go-w"),
    (lead_away, "is a link, which is not followed"),
], ids=["owner", "all", "group", "link"])  # fmt: skip
def test_what_others_could_have_put_there_is_not_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], which: str, change: Callable[[Path], object], said: str
) -> None:
    cache = tmp_path / "base" / "mindgspo"
    path = build.library_in(cache)
    part = dict(zip(("library", "key", "kernels", "cache", "base"), [path, *path.parents], strict=False))[which]
    change(part)
    build.write_whole(path, b"planted")
    if which == "library":  # which was written anew
        change(path)
    found = build.library_in(cache)
    told = capsys.readouterr().err
    if which == "base" and change is lead_away:  # ~/.cache may be a link that the user has made
        assert found == path and not told
        return
    assert found.read_bytes() == b"ours" and not found.is_relative_to(tmp_path)
    assert re.search(rf"not kept, and compiled at each start: .*{said}.*{part.name}", told), told


@needs_root
def test_a_cache_in_tmp_is_taken_if_it_is_ours(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    path = build.library_in(tmp_path / "mindgspo")
    assert path.is_relative_to(tmp_path)
    (tmp_path / "linked").symlink_to(tmp_path)
    os.lchown(tmp_path / "linked", STRANGER, STRANGER)
    with pytest.raises(PermissionError, match=f"belongs to user {STRANGER}.*linked"):
        check_own(tmp_path / "linked" / "mindgspo", tmp_path / "linked" / "mindgspo")


@pytest.mark.parametrize("damage", [
    lambda content: content[:-1], lambda content: content[:20], lambda content: b"", lambda content: b"x" + content[1:],
    lambda content: bytes(len(content)),
], ids=["cut", "short", "empty", "changed", "zeros"])  # fmt: skip
def test_a_damaged_library_is_compiled_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[bytes], bytes]
) -> None:
    path = build.library_in(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert build.library_in(tmp_path) == path and path.read_bytes() == whole
    assert capsys.readouterr().err == f"[kernels] {path} is damaged, and is compiled anew\n"


FOREIGN = """
#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void run(void) { fclose(fopen(getenv("MARK"), "w")); }
"""


@needs_gcc
def test_foreign_code_does_not_run(tmp_path: Path) -> None:
    """A real library at the right place, below a folder that everybody may write."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "g++").write_text("#!/bin/sh\n[ $1 = --version ] && echo 1 || { echo error >&2; exit 1; }\n")
    (tmp_path / "bin" / "g++").chmod(0o755)
    (tmp_path / "foreign.c").write_text(FOREIGN)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    code = (
        "import sys\nfrom pathlib import Path\nfrom mindgspo_kernels import binding, build\n"
        "path = build.cache_folder({'XDG_CACHE_HOME': sys.argv[1]}) / 'kernels' / build._key() / build._NAME\n"
        "path.parent.mkdir(parents=True)\npath.write_bytes(Path(sys.argv[2]).read_bytes())\n"
        "try:\n    binding._library()\nexcept build.KernelsUnavailable as error:\n    print('refused', error)\n"
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "foreign.so", tmp_path / "foreign.c"], check=True)
    variables = environment(PATH=f"{tmp_path}/bin:{os.environ['PATH']}", XDG_CACHE_HOME=str(tmp_path / "shared"),
                            MARK=str(tmp_path / "mark"))  # fmt: skip
    command = [sys.executable, "-c", code, tmp_path / "shared", tmp_path / "foreign.so"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert not (tmp_path / "mark").exists() and done.stdout.startswith("refused"), done.stdout + done.stderr
    assert "may be written by others" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_compilers_end_with_the_process_that_started_them(tmp_path: Path, number: signal.Signals) -> None:
    """A compiler that has started another process, as g++ does."""
    compiler = tmp_path / "compiler"
    compiler.write_text(
        f"#!/bin/sh\nsleep 1000 &\necho $$ $! > {tmp_path}/part && mv {tmp_path}/part {tmp_path}/ids\nwait\n"
    )
    compiler.chmod(0o755)
    # A shell ignores SIGINT for what it starts in the background, these tests for example.
    code = (
        "import signal\nimport sys\nfrom mindgspo_kernels.build import run_compiler\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\nrun_compiler(sys.argv[1])"
    )
    process = subprocess.Popen([sys.executable, "-c", code, compiler], env=environment(), stderr=subprocess.DEVNULL)
    while not (tmp_path / "ids").exists():
        assert process.poll() is None
        time.sleep(0.01)
    ids = [int(word) for word in (tmp_path / "ids").read_text().split()]
    assert all(Path(f"/proc/{one}").exists() for one in ids)
    deadline = time.monotonic() + 30
    while process.poll() is None:  # Python drops an interrupt that falls into a destructor
        process.send_signal(number)
        time.sleep(0.5)
        assert time.monotonic() < deadline, "the process goes on"
    deadline = time.monotonic() + 30
    while any(is_running(one) for one in ids):
        assert time.monotonic() < deadline, "a compiler goes on"
        time.sleep(0.01)


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_output_and_exit_code_of_a_compiler() -> None:
    done = build.run_compiler("sh", "-c", "cat; echo out; echo 'err or' >&2; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err or\n")
    with pytest.raises(FileNotFoundError):
        build.run_compiler("no-such-compiler")
