"""Preparations that are killed, by real processes, and the chunks they leave; workers and one process agree."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from running import tree

from mindgspo.config.data import DataSourceSection, TokenizerSection
from mindgspo.data.dataset import open_dataset
from mindgspo.data.output_folder import OutputError, PartialFolder, partial_path, partials_of_others
from mindgspo.data.rendering import is_whole_chunk, read_chunks
from mindgspo.errors import DataError, TokenizerError
from mindgspo.tokenization import Tokenizer, load_tokenizer

NUM_ROWS = 400
# So many turns of a loop for each prompt: slow enough to be killed in the middle.
SLOW_TEMPLATE = "{% for i in range(99999) %}{% endfor %}{{ messages[0].content }}"
# As a user might write it, without a __main__ guard. A fourth argument: MindSpore is there before the workers start.
SCRIPT = """
import sys
from pathlib import Path
sys.path[:0] = {path!r}
if len(sys.argv) > 4:
    import mindspore
from mindgspo.config.data import DataSection, DataSourceSection, TokenizerSection
from mindgspo.data.prepare import prepare_dataset
from mindgspo.tokenization import load_tokenizer
source = DataSourceSection(format="gsm8k", path=Path(sys.argv[1]), dedup=True)
data = DataSection(train=source, eval=source, max_prompt_length=300)
tokenizer = load_tokenizer(TokenizerSection(path=Path(sys.argv[2])))
info = prepare_dataset(source, data, tokenizer, Path(sys.argv[3]), seed=1, workers=2, chunk_rows=20)
print("prepared", info.counts.rows_out)
"""


@pytest.fixture
def source(jsonl) -> DataSourceSection:
    path = jsonl({"question": f"What is {i % 390}?", "answer": f"It is\n#### {i % 390}"} for i in range(NUM_ROWS))
    return DataSourceSection(format="gsm8k", path=path, dedup=True)


def interrupt(data_source: str, gold: str) -> bool:
    """For `is_readable`: ends a preparation when all chunks are written."""
    raise KeyboardInterrupt


@pytest.fixture
def slow_tokenizer(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    folder = tmp_path / "slow"
    tokenizer.save(folder)
    (folder / "chat_template.jinja").write_text(SLOW_TEMPLATE)
    return folder


def start(source: DataSourceSection, tokenizer: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    script = out.parent / "script.py"
    script.write_text(SCRIPT.format(path=sys.path))
    return subprocess.Popen([sys.executable, str(script), str(source.path), str(tokenizer), str(out), *more],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=out.parent)  # fmt: skip


@pytest.mark.slow
def test_a_killed_preparation_goes_on_and_ends_in_the_same_bytes(prepare, source, slow_tokenizer, tmp_path):
    out = tmp_path / "out"
    process = start(source, slow_tokenizer, out)
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("out.partial-*/chunk-*.jsonl"))) < 4:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no chunk in two minutes"
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL and not out.exists()
    (partial,) = tmp_path.glob("out.partial-*")
    found = sorted(partial.glob("chunk-*.jsonl"))
    assert 4 <= len(found) < NUM_ROWS // 20
    # Damage one finished chunk and cut another: both must be made again, the third must be taken over.
    found[0].write_bytes(found[0].read_bytes().replace(b"What", b"Whot", 1))
    found[1].write_bytes(found[1].read_bytes()[:-30])
    again = start(source, slow_tokenizer, out, "with MindSpore")
    printed, told = again.communicate(timeout=300)
    assert again.returncode == 0 and printed == "prepared 390\n", told
    assert f"going on with {partial}: " in told and " rows were tokenized before" in told
    rows_found = int(told.partition("going on with")[2].partition(": ")[2].split()[0])
    assert 40 <= rows_found <= NUM_ROWS - 60 and not partial.exists()
    # The same inputs in one go, in this process, without workers.
    slow = load_tokenizer(TokenizerSection(path=slow_tokenizer))
    prepare(source, tmp_path / "whole", using=slow, max_prompt_length=300, workers=1, chunk_rows=20)
    assert tree(out) == tree(tmp_path / "whole")


def test_the_number_of_workers_changes_nothing(prepare, source: DataSourceSection, tmp_path: Path):
    prepare(source, tmp_path / "one")
    for workers in (1, 2, 3):
        prepare(source, tmp_path / f"out{workers}", workers=workers, chunk_rows=40)
        assert tree(tmp_path / f"out{workers}") == tree(tmp_path / "one")


def test_chunks_of_other_inputs_are_not_taken_over(prepare, source, tokenizer, tmp_path, capfd):
    """An interruption (here: while writing) leaves chunks; another setting starts anew and says what lies there."""
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        prepare(source, out, chunk_rows=40, is_readable=interrupt)
    (partial,) = tmp_path.glob("out.partial-*")
    assert len(list(partial.glob("chunk-*.jsonl"))) == 10 and not out.exists()
    prepare(source, out, system_prompt="S", chunk_rows=40)
    told = capfd.readouterr().err
    assert f"{partial}: left by an interrupted preparation of other inputs" in told and "going on" not in told
    assert partial.is_dir()
    everything = source.model_copy(update={"dedup": False})  # decided after tokenizing: it does not cost the chunks
    assert prepare(everything, out, chunk_rows=40, force=True).counts.rows_out == NUM_ROWS
    assert f"going on with {partial}: {NUM_ROWS} rows were tokenized before" in capfd.readouterr().err
    assert not list(tmp_path.glob("out.partial-*")) and len(open_dataset(out, tokenizer)) == NUM_ROWS


def test_a_held_folder_is_refused_and_a_left_one_is_taken_over(tmp_path: Path):
    out = tmp_path / "out"
    held, other = PartialFolder(out, "a" * 12), PartialFolder(out, "b" * 12)
    for folder in (held, other):
        folder.chunk(0).write_bytes(b"")
    with pytest.raises(OutputError, match=r"out.partial-a+: another process is preparing this data set; wait for it"):
        PartialFolder(out, "a" * 12)
    assert partials_of_others(out, held.path) == [other.path]
    held.close(keep=True)
    again = PartialFolder(out, "a" * 12)
    assert again.path == held.path == partial_path(out, "a" * 12)
    again.close(keep=False)
    assert not held.path.exists()


def test_errors_of_rows_are_the_same_from_workers(prepare, source, tokenizer, tmp_path):
    folder = tmp_path / "tok"
    tokenizer.save(folder)
    template = "{% if '233' in messages[0].content %}{{ raise_exception('no 233') }}{% endif %}x"
    (folder / "chat_template.jinja").write_text(template)
    refusing = load_tokenizer(TokenizerSection(path=folder))
    (folder / "chat_template.jinja").write_text("{{ '' if '233' in messages[0].content else 'x' }}")
    emptying = load_tokenizer(TokenizerSection(path=folder))
    for broken, kind in ((refusing, TokenizerError), (emptying, DataError)):
        found = []
        for workers in (1, 2):
            with pytest.raises(kind) as raised:
                out = tmp_path / "out"
                prepare(source, out, using=broken, workers=workers, chunk_rows=20)
            found.append(str(raised.value))
        assert found[0] == found[1] and str(folder) in found[0]
    assert not list(tmp_path.glob("out*")), "the settings are at fault, so nothing is kept"


def test_reusing_a_folder_clears_what_a_kill_left_after_the_rename(prepare, source: DataSourceSection, tmp_path: Path):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        prepare(source, out, is_readable=interrupt)
    (partial,) = tmp_path.glob("out.partial-*")
    partial.rename(tmp_path / "aside")
    info = prepare(source, out)
    (tmp_path / "aside").rename(partial)
    assert prepare(source, out) == info
    assert not partial.exists()


def test_a_chunk_is_whole_or_not(prepare, source: DataSourceSection, tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        prepare(source, chunk_rows=40, is_readable=interrupt)
    path = sorted(tmp_path.glob("out.partial-*/chunk-*.jsonl"))[3]
    content = path.read_bytes()
    assert is_whole_chunk(path, 40) and not is_whole_chunk(path, 39)
    assert [row.answer for row in read_chunks([path])] == [str(i) for i in range(120, 160)]
    for damaged in (content[:-1], content[:-200], content[1:], content.replace(b"131", b"132", 1), b"", b"\n"):
        path.write_bytes(damaged)
        assert not is_whole_chunk(path, 40)
    path.unlink()
    assert not is_whole_chunk(path, 40)


def test_a_text_that_mindrecord_cannot_hold_is_found_by_reading_back(prepare, jsonl, tmp_path: Path):
    path = jsonl([{"problem": "p", "solution": "\\boxed{1}\x00"}])
    with pytest.raises(DataError, match="row 0 of the data set is not read back as it was written: solution was"):
        prepare(DataSourceSection(format="math", path=path), is_readable=lambda source, gold: None)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]
