"""What is read off shared objects, and the text that fills the gaps; small objects are compiled on the spot."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mindgspo.ascend.symbols import assembly, is_x86_64, missing_symbols, read_symbols

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64" or not shutil.which("gcc") or not shutil.which("nm"),
    reason="needs gcc and binutils on Linux x86-64",
)


def shared_object(path: Path, source: str, *options: str) -> Path:
    """C source -> shared object without the C library."""
    code = path.with_suffix(".c")
    code.write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", "-nostdlib", "-o", path, code, *options], check=True)
    return path


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """Wants `aclInit`, might use `aclMaybe`, offers `start` and `table`, names libother.so."""
    other = shared_object(tmp_path / "libother.so", "int other(void) { return 1; }", "-Wl,-soname,libother.so")
    return shared_object(
        tmp_path / "plugin.so",
        "int aclInit(void); int aclMaybe(void) __attribute__((weak)); int other(void); int table[4];"
        "static int hidden(void) { return 2; }"
        "int start(void) { return aclInit() + other() + hidden() + (aclMaybe ? aclMaybe() : 0); }",
        str(other),
    )


def test_symbols_wanted_and_offered(plugin: Path) -> None:
    symbols = read_symbols([plugin])
    assert symbols.wanted == {"aclInit", "other"}, "a weak reference may stay undefined"
    assert symbols.offered >= {"start", "table"}
    assert "hidden" not in symbols.offered and "aclMaybe" not in symbols.offered
    assert symbols.needed == {"libother.so"}


def test_symbols_of_several_objects_together(plugin: Path) -> None:
    symbols = read_symbols([plugin, plugin.with_name("libother.so")])
    assert {"start", "other"} <= symbols.offered
    assert missing_symbols(symbols.wanted, symbols.offered) == ["aclInit"]


def test_no_objects_no_symbols() -> None:
    assert read_symbols([]).wanted == set()


def test_versioned_symbols_lose_their_version(tmp_path: Path) -> None:
    script = tmp_path / "versions.map"
    script.write_text("VERS_1 { global: versioned; local: *; };")
    library = shared_object(
        tmp_path / "libversioned.so",
        "int versioned(void) { return 1; }",
        f"-Wl,--version-script={script}",
        "-Wl,-soname,libversioned.so",
    )
    user = shared_object(
        tmp_path / "user.so", "int versioned(void); int use(void) { return versioned(); }", str(library)
    )
    assert "versioned" in read_symbols([library]).offered
    assert read_symbols([user]).wanted == {"versioned"}


def test_python_offers_its_own() -> None:
    assert missing_symbols({"PyList_New", "_Py_NoneStruct", "aclInit"}, set()) == ["aclInit"]


def test_files_for_other_processors_are_told_apart(plugin: Path, tmp_path: Path) -> None:
    text = tmp_path / "script.so"
    text.write_text("INPUT(libreal.so)")
    foreign = tmp_path / "foreign.so"
    head = bytearray(plugin.read_bytes()[:64])
    head[18] = 183  # aarch64
    foreign.write_bytes(bytes(head))
    assert is_x86_64(plugin)
    assert not is_x86_64(text)
    assert not is_x86_64(foreign)


def test_assembled_functions_return_zero_and_tables_are_zeros(tmp_path: Path) -> None:
    text = assembly(["aclInit", "_ZN2ge5GraphC1Ev", "_ZTVN2ge5GraphE", "_ZTIi"])
    source = tmp_path / "all.s"
    source.write_text(text)
    library = tmp_path / "liball.so"
    subprocess.run(["gcc", "-shared", "-nostdlib", "-o", library, source], check=True)
    loaded = ctypes.CDLL(str(library))
    assert loaded.aclInit() == 0
    assert loaded["_ZN2ge5GraphC1Ev"]() == 0
    assert bytes((ctypes.c_char * 512).in_dll(loaded, "_ZTVN2ge5GraphE")) == bytes(512)
    assert {"aclInit", "_ZN2ge5GraphC1Ev", "_ZTVN2ge5GraphE", "_ZTIi"} <= read_symbols([library]).offered
