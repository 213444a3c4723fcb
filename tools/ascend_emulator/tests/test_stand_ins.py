"""Stand-ins built for a plugin of a few functions, which is then loaded with them."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ascend_emulator import stand_ins as made
from ascend_emulator.errors import EmulatorError, EmulatorUnavailable
from ascend_emulator.stand_ins import Wheel, assembly, installed_wheel, missing_symbols, read_symbols, stand_ins
from ascend_emulator.toolchain import find_toolchain, real_cann
from mindgspo_kernels.cache import cache_folder, private_folder, write_whole

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64" or not all(map(shutil.which, ("gcc", "g++", "nm"))),
    reason="needs gcc, g++ and binutils on Linux x86-64",
)

# What MindSpore's plugin does when it is loaded, in small: a static initialiser inserts into a map of CANN's.
PLUGIN = """
#define _GLIBCXX_USE_CXX11_ABI 0
#include <map>
#include <string>
extern "C" int aclmdlUnload();
namespace ge { struct StatusFactory { static StatusFactory* Instance(); std::map<unsigned, std::string> texts; }; }
struct Insert { Insert() { ge::StatusFactory::Instance()->texts[7] = "seven"; } } insert;
extern "C" int start() { return 10 * (int)ge::StatusFactory::Instance()->texts.size() + aclmdlUnload(); }
"""


@pytest.fixture
def wheel(tmp_path: Path) -> Wheel:
    """A MindSpore of one plugin, which was linked with a CANN that is gone."""
    plugin_folder = tmp_path / "mindspore" / "lib" / "plugin"
    plugin_folder.mkdir(parents=True)
    (tmp_path / "mindspore" / "version.py").write_text("__version__ = '2.10.0'\n")
    (tmp_path / "mindspore" / "__init__.py").write_text("raise ImportError('never imported')\n")
    real = installed_wheel().folder / made.HEADERS
    (tmp_path / "mindspore" / made.HEADERS).parent.mkdir(parents=True)
    (tmp_path / "mindspore" / made.HEADERS).symlink_to(real)
    cann, plugin = tmp_path / "cann.cc", tmp_path / "plugin.cc"
    cann.write_text('extern "C" int aclmdlUnload() { return 5; }\n')
    plugin.write_text(PLUGIN)
    run("g++", "-shared", "-fPIC", "-Wl,-soname,libascendcl.so", "-o", tmp_path / "libascendcl.so", cann)
    library = plugin_folder / "libmindspore_ascend.so.2"
    run("g++", "-shared", "-fPIC", "-o", library, plugin, tmp_path / "libascendcl.so")
    return Wheel(folder=tmp_path / "mindspore", version="2.10.0")


def run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True)


def loads(wheel: Wheel, libraries: Path) -> int:
    """Exit code of a process that loads the plugin with these libraries and returns what it says."""
    plugin = wheel.folder / "lib" / "plugin" / "libmindspore_ascend.so.2"
    code = f"import ctypes, os; os._exit(ctypes.CDLL({str(plugin)!r}).start())"
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"LD_LIBRARY_PATH": str(libraries)}, capture_output=True
    ).returncode


@pytest.mark.slow
def test_a_plugin_loads_with_its_stand_ins(wheel: Wheel, tmp_path: Path) -> None:
    assert loads(wheel, tmp_path / "nowhere") != 10
    libraries = stand_ins(wheel, tmp_path / "cache")
    assert libraries.parts[-3:] == ("ascend-toolkit", "latest", "lib64"), "the plugin looks for such a path"
    assert loads(wheel, libraries) == 10, "one text in a real map; aclmdlUnload returns 0"
    assert (libraries / "libhccl.so").is_file(), "opened by name at run time"


def test_stand_ins_are_built_once(wheel: Wheel, tmp_path: Path) -> None:
    first = stand_ins(wheel, tmp_path / "cache")
    before = (first / "libascend_stand_in.so").stat().st_ino
    assert stand_ins(wheel, tmp_path / "cache") == first
    assert (first / "libascend_stand_in.so").stat().st_ino == before
    with (wheel.folder / "lib" / "plugin" / "libmindspore_ascend.so.2").open("ab") as plugin:
        plugin.write(b"longer")
    assert made._key(wheel) != first.parents[2].name, "another build of MindSpore gets its own"


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["libascend_stand_in.so", "libhccl.so", "complete.json"])
def test_a_half_cleaned_cache_is_built_again(wheel: Wheel, tmp_path: Path, damage: str) -> None:
    libraries = stand_ins(wheel, tmp_path / "cache")
    folder = libraries.parents[2]
    (folder / damage if damage.endswith(".json") else libraries / damage).unlink()
    assert stand_ins(wheel, tmp_path / "cache") == libraries
    assert loads(wheel, libraries) == 10
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name], "nothing is left lying about"


@pytest.mark.slow
def test_several_processes_may_build_at_once(wheel: Wheel, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from ascend_emulator.stand_ins import stand_ins; "
        "from ascend_emulator.stand_ins import Wheel; "
        "print(stand_ins(Wheel(folder=Path(sys.argv[1]), version='2.10.0'), Path(sys.argv[2])))"
    )
    command = [sys.executable, "-c", code, wheel.folder, tmp_path / "cache"]
    builders = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = {builder.communicate()[0].strip() for builder in builders}
    assert [builder.returncode for builder in builders] == [0] * 4
    assert len(answers) == 1
    libraries = Path(answers.pop())
    assert loads(wheel, libraries) == 10
    assert [entry.name for entry in libraries.parents[3].iterdir()] == [libraries.parents[2].name]


def plain_wheel(folder: Path, version: str = "2.10.0") -> Wheel:
    """Files of the right names, nothing in them."""
    (folder / "lib" / "plugin").mkdir(parents=True)
    (folder / "lib" / "plugin" / "libmindspore_ascend.so.2").touch()
    return Wheel(folder=folder, version=version)


def test_a_missing_compiler_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmulatorUnavailable, match=r"lacks gcc, g\+\+, nm, readelf: install gcc") as error:
        stand_ins(plain_wheel(tmp_path / "mindspore"), tmp_path / "cache")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_written_is_named(wheel: Wheel, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(EmulatorError, match=f"cannot be written below {tmp_path}/cache"):
        stand_ins(wheel, tmp_path / "cache")


def cann(root: Path) -> Path:
    """Something that looks like CANN; returns its libraries' folder."""
    (root / "lib64").mkdir(parents=True)
    (root / "lib64" / "libascendcl.so").touch()
    return root / "lib64"


def test_real_cann_comes_first(tmp_path: Path) -> None:
    libraries = cann(tmp_path / "toolkit")
    environment = {"ASCEND_HOME_PATH": str(tmp_path / "toolkit")}
    toolchain = find_toolchain(environment, plain_wheel(tmp_path / "mindspore"))
    assert (toolchain.libraries, toolchain.is_stand_in) == (libraries, False)
    assert str(toolchain) == f"MindSpore 2.10.0, CANN of {tmp_path}/toolkit"
    empty = {"ASCEND_HOME_PATH": str(tmp_path / "empty"), "ASCEND_TOOLKIT_HOME": str(tmp_path / "toolkit")}
    assert real_cann(empty) == libraries, "it is looked for in both variables"


@pytest.mark.parametrize("version", ["2.9.0", "2.11.0", "3.0"])
def test_other_versions_of_mindspore_are_refused(tmp_path: Path, version: str) -> None:
    with pytest.raises(EmulatorUnavailable, match=rf"with MindSpore 2\.10\.x; this MindSpore is {version}"):
        find_toolchain({}, plain_wheel(tmp_path / "mindspore", version))


def test_other_processors_need_real_cann(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    wheel = plain_wheel(tmp_path / "mindspore")
    if real_cann({}) is None:
        with pytest.raises(EmulatorUnavailable, match="this processor is aarch64"):
            find_toolchain({}, wheel)
    cann(tmp_path / "toolkit")
    assert not find_toolchain({"ASCEND_HOME_PATH": str(tmp_path / "toolkit")}, wheel).is_stand_in


def test_a_wheel_without_the_plugin_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mindspore").mkdir()
    with pytest.raises(EmulatorUnavailable, match=r"no Ascend plugin \(libmindspore_ascend\.so\.2\); install"):
        find_toolchain({}, Wheel(folder=tmp_path / "mindspore", version="2.10.0"))


def test_stand_ins_that_others_could_have_put_there_or_damaged_are_not_loaded(tmp_path: Path) -> None:
    wheel = plain_wheel(tmp_path / "mindspore")
    folder = tmp_path / "cache" / "ascend-stand-ins" / made._key(wheel)
    private_folder(folder / made.LIBRARIES, tmp_path / "cache")
    for name in (made.OBJECT, made.INTERNAL_KERNELS):
        write_whole(folder / made.LIBRARIES / name, b"code")
    (folder / "complete.json").write_text(json.dumps({"names": [made.OBJECT, made.INTERNAL_KERNELS]}))
    assert stand_ins(wheel, tmp_path / "cache") == folder / made.LIBRARIES
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(EmulatorError, match=f"may be written by others .*{tmp_path}/cache'; export XDG_CACHE_HOME"):
        stand_ins(wheel, tmp_path / "cache")
    (tmp_path / "cache").chmod(0o700)
    (folder / made.LIBRARIES / made.INTERNAL_KERNELS).write_bytes(b"code")
    assert not made._is_complete(folder)


def test_the_cache_follows_the_user(tmp_path: Path) -> None:
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "mindgspo"
    assert cache_folder({"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache" / "mindgspo"
    assert cache_folder({}) == Path.home() / ".cache" / "mindgspo"


def test_the_wheel_is_found_without_importing_it(tmp_path: Path) -> None:
    package = tmp_path / "mindspore"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('never imported')\n")
    assert "does not tell MindSpore's version" in asked(tmp_path)
    texts = {"2.10.0": "__version__ = '2.10.0'\n__commit_id__ = 'x'", "2.10.1rc1": '__version__ = "2.10.1rc1"'}
    for version, text in texts.items():
        (package / "version.py").write_text(f"{text}\n")
        assert asked(tmp_path) == f"{package} {version}"


def asked(folder: Path) -> str:
    """What a process says that would import MindSpore from this folder."""
    code = (
        "from ascend_emulator.stand_ins import installed_wheel\n"
        "try: wheel = installed_wheel()\nexcept RuntimeError as error: print(error)\n"
        "else: print(wheel.folder, wheel.version)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parents[3])])}
    answer = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return answer.stdout.strip()


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
    symbols = read_symbols([plugin, plugin.with_name("libother.so")])
    assert {"start", "other"} <= symbols.offered
    assert missing_symbols(symbols.wanted, symbols.offered) == ["aclInit"]
    assert missing_symbols({"PyList_New", "_Py_NoneStruct", "aclInit"}, set()) == ["aclInit"], "Python offers its own"
    assert read_symbols([]).wanted == set()


def test_versioned_symbols_lose_their_version(tmp_path: Path) -> None:
    script = tmp_path / "versions.map"
    script.write_text("VERS_1 { global: versioned; local: *; };")
    options = (f"-Wl,--version-script={script}", "-Wl,-soname,libversioned.so")
    library = shared_object(tmp_path / "libversioned.so", "int versioned(void) { return 1; }", *options)
    source = "int versioned(void); int use(void) { return versioned(); }"
    user = shared_object(tmp_path / "user.so", source, str(library))
    assert "versioned" in read_symbols([library]).offered
    assert read_symbols([user]).wanted == {"versioned"}


def test_files_for_other_processors_are_told_apart(plugin: Path, tmp_path: Path) -> None:
    text = tmp_path / "script.so"
    text.write_text("INPUT(libreal.so)")
    foreign = tmp_path / "foreign.so"
    head = bytearray(plugin.read_bytes()[:64])
    head[18] = 183  # aarch64
    foreign.write_bytes(bytes(head))
    assert made.is_x86_64(plugin)
    assert not made.is_x86_64(text)
    assert not made.is_x86_64(foreign)


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
