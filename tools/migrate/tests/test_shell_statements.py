"""Statements of a shell script that change what the training command is given: what bash itself hands on stands beside
what is read as certain. A value that is not known is reported, never the one that stood there before."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from foreign_cases.conversions import flat

from mindgspo.config.yaml_dialect import parse_value
from mindgspo_migrate.convert import convert
from mindgspo_migrate.shell import read_overrides
from mindgspo_migrate.tables import Reading

TRAIN = "python3 -m verl.trainer.main_ppo"


@pytest.fixture(scope="module")
def of_bash(tmp_path_factory: pytest.TempPathFactory):
    """(script) -> the words that bash gives to python3, which only writes them down."""
    folder = tmp_path_factory.mktemp("bash")
    (folder / "python3").write_text(f'#!/bin/bash\nprintf "%s\\n" "${{@:3}}" > {folder}/words\n')
    (folder / "python3").chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(Path.home())}

    def run(script: str) -> dict[str, str]:
        (folder / "words").unlink(missing_ok=True)
        subprocess.run(
            ["bash", "-c", script], env=environment, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True
        )
        words = (folder / "words").read_text().splitlines()
        return dict(word.partition("=")[::2] for word in words)

    return run


def silent(reading: Reading, given: dict[str, str]) -> dict[str, tuple[object, object]]:
    """(what is read, what bash gives) of every key that is another one, and not reported."""
    given = {key: parse_value(text) for key, text in given.items() if re.fullmatch(r"\w+(\.\w+)+", key)}
    read = reading.values
    known = {key for key in read.keys() | given.keys() if key in read or not reading.is_unread(key)}
    return {key: (read.get(key), given.get(key)) for key in known if read.get(key) != given.get(key)}


# What is read with certainty must be bash's; None: bash's value, or a report.
@pytest.mark.parametrize(("lines", "value"), [
    # functions run where they are called, with their arguments and local names
    ("small() { n=2; }", 8),
    ("big() { n=16; }\nbig", 16),
    ("big() { n=$1; }\nbig 16", 16),
    ("big() { local n=4; }\nbig", 8),
    ("big() { local m=4; n=$m; }\nbig", 4),
    ("big() { if [ -e /none ]; then n=2; return; fi; n=16; }\nbig", None),
    ("big() { n=2; return; n=4; }\nbig", 2),
    ("function big { set -- 3; n=$1; }\nbig 5", 3),
    ("big() ( n=16 )\nbig", 8),
    ("set -- 16 4\nn=$1", 16),
    ("set -- 16 4\nshift\nn=$1", 4),
    ("n=16 true", 8),
    ("n=16 m=3\ntrue", 16),
    ("false && n=16 m=3\nn=4", 4),
    ("[ $n = 1 ] && m=1 o=2\ncd /\nn=$PWD", None),
    # a shell of its own changes nothing
    ("(n=16)", 8),
    ("echo 16 | read n", 8),
    ("echo a | while read x; do n=16; done", 8),
    ("n=16 &\nwait", 8),
    ("if true; then\n n=16 &\n wait\nfi", 8),
    ("case 1 in\n 1) declare n=16 & ;;\nesac\nwait", 8),
    ("f() { n=16 & }\nf\nwait", 8),
    # statements that change a variable
    ("((n *= 2))", None),
    ("((n++))", None),
    ("let n*=2", None),
    ('let "n = 3"', None),
    ("m=$((n++))", None),
    ("m=$((n = 3))", None),
    ("echo $[n += 1]", None),
    ("[[ -n $((n++)) ]]", None),
    ("a=(1 2)\necho ${a[n++]}", None),
    ("for ((n=0; n<3; n++)); do true; done", None),
    ("read n <<< 16", None),
    ("read -r m n <<< '4 16'", None),
    ("printf -v n %s 16", None),
    ("printf -vn %s 16", None),
    ("mapfile -t n <<< 16", None),
    ("eval n=16", 16),
    ("eval 'n=$n$n'", 88),
    ("eval $(echo n=16)", None),
    ("source /dev/stdin <<< n=16", None),
    ("export 'n=16'", None),
    ("m=n; declare $m=16", None),
    ("m=n; export $m=16", None),
    ("m=n; unset $m", None),
    ("m=n; read $m <<< 16", None),
    ("m='eval n=16'; $m", 16),
    ("declare -n m=n\nm=16", None),
    ("declare -i n\nn=4+4", None),
    ("declare -i n=4*4", None),
    ("declare -u n=x", None),
    ("readonly n\nn=16", None),
    ("n+=1", 81),
    ("getopts n: n", None),
    ("command eval n=16", 16),
    ("builtin printf -v n 16", None),
    ("time n=16", None),
    ("! n=16", 16),
    (": ${m:=16}\nn=$m", 16),
    ("unset m\n: ${m=16}\nn=$m", 16),
    ("select n in 16 4; do break; done", None),
    ("until true; do n=16; done", None),
    ("while read n; do :; done <<< 16", None),
    ("for n in 1 2; do true; done", None),
    ("for x in 1 2; do m=$n; n=16; done\nn=$m", None),
    ("case 1 in 1) n=16 ;& 2) n=4 ;; esac", None),
    ("p='*'; case $n in $p) n=16 ;; esac", None),
    ("p='*'; if [[ $n == $p ]]; then n=16; fi", None),
    ("m=3 && [ $m = 3 ] && n=16", None),
    ("m=; if [ -n $m ]; then n=16; fi", None),
    ("if [[ 010 -eq 8 ]]; then n=16; fi", None),
    ("if ((n == 8)); then n=16; fi", None),
    ("if read n <<< 16; then true; fi", None),
    ("if false; then true; elif read n <<< 16; then true; fi", None),
    ("cat <<EOF\n$((n++))\nEOF", None),
    ("IFS=,\nn='1 a.y=2'", None),
    # words
    ("n=1\\\n6", 16),
    ("n='1'\\\n'6'", 16),
    ("n=${m:-'16'}", 16),
    ("n=${m:-\"it's\"}", "it's"),
    ("n=\"/${m:-'a'}\"", "/'a'"),
    ('n="/${m:-\\"a\\"}"', '/"a"'),
    ("n=~/x", f"{Path.home()}/x"),
    ("n=${m:-~/x}", f"{Path.home()}/x"),
    ("m=\nn=${m-16}", ""),
    ("n=$'1\\x36'", None),
    ("cd /\nn=$PWD", None),
])  # fmt: skip
def test_a_variable_behind_a_statement_is_what_bash_has_or_unknown(lines: str, value: object, of_bash) -> None:
    script = f"n=8\n{lines}\n{TRAIN} a.n=$n a.x=1"
    reading = read_overrides(script)
    assert silent(reading, of_bash(script)) == {}
    if value is None:
        assert reading.unread_keys, "nothing certain is said of it"
    else:
        assert str(reading.values["a.n"] or "") == str(value) and not reading.unread_keys
    assert reading.values["a.x"] == 1, "the rest is read as ever"


@pytest.mark.parametrize("arguments", [
    "a.n={1,2}",
    "a.{n,m}=1",
    "a.n={1..3}",
    '"${L[*]}"',
    "${L[@]}",
    "${L[*]}",
    "a.n=${#L[@]}",
    "a.n=${n%.*} a.m=${n/8/9} a.k=${n:0:1}",
    "a.n=${!p}",
    "a.n=${m:-'x y'}",
    'a.n="${m:-"x y"}"',
    "a.n=5\\\n12 a.m=1",
    "a.$m=3 a.n=1",
    "a.n=1 $m",
    'a.n="$@" a.m=$#',
])  # fmt: skip
def test_words_are_what_bash_makes_of_them_or_unknown(arguments: str, of_bash) -> None:
    script = f"n=8\nm=\np=n\nL=('a.p=1 2' a.q=3)\n{TRAIN} a.x=1 {arguments}"
    assert silent(read_overrides(script), of_bash(script)) == {}


@pytest.mark.parametrize(("script", "keys"), [
    (f"run() {{ {TRAIN} a.n=$1; }}\nrun 16", {"a.n": 16}),
    (f'main() {{ {TRAIN} a.n=16 "$@"; }}\nmain "$@"', {"a.n": 16}),
    (f"cleanup() {{ exit 0; }}\ntrap cleanup EXIT\n{TRAIN} a.n=16", {"a.n": 16}),
    (f"die() {{ echo $1; exit 1; }}\n[ -d /tmp ] || die no\n{TRAIN} a.n=16", {"a.n": 16}),
    (f"if ! {TRAIN} a.n=16; then exit 1; fi", {"a.n": 16}),
    (f"if {TRAIN} a.n=16; then echo; fi", {"a.n": 16}),
    (f"false || {TRAIN} a.n=16 || exit 1", {"a.n": 16}),
    (f"while ! {TRAIN} a.n=16; do sleep 1; done", {"a.n": 16}),
    (f"({TRAIN} a.n=16) | tee log", {"a.n": 16}),
    (f"exec {TRAIN} a.n=16", {"a.n": 16}),
    (f"time {TRAIN} a.n=16", {"a.n": 16}),
    (f"{TRAIN} a.n=16 &\nwait", {"a.n": 16}),
    (f'CMD="{TRAIN} a.n=16"\n$CMD', {"a.n": 16}),
    (f'CMD="{TRAIN} a.n=16"\neval "$CMD"', {"a.n": 16}),
    (f'CMD=({TRAIN} a.n=16)\n"${{CMD[@]}}"', {"a.n": 16}),
    ("MODULE=verl.trainer.main_ppo\npython3 -m $MODULE a.n=16", {"a.n": 16}),
    ("python3 -m verl.experimental.fully_async_policy.fully_async_main a.n=16", {"a.n": 16}),
    ("python3 -m recipe.async_flow.grpo_main a.n=16", {"a.n": 16}),
    ("python3 -m my.own.trainer actor_rollout_ref.rollout.n=16", {"actor_rollout_ref.rollout.n": 16}),
    ("python3 train.py actor_rollout_ref.rollout.n=16", {"actor_rollout_ref.rollout.n": 16}),
    (f"{TRAIN} `# one` a.n=16 \\\n `# two` \\\n a.m=1", {"a.n": 16, "a.m": 1}),
    (f"{TRAIN} a.m=1`# one` a.n=16 `#` \\\n", {"a.n": 16, "a.m": 1}),
    (f"{TRAIN} a.m='x `# y` z' a.n=16", {"a.n": 16, "a.m": "x `# y` z"}),
    (f"[ -d / ] || exit 1\n{TRAIN} a.n=16", {"a.n": 16}),
    (f"{TRAIN} a.n=16 \\", {"a.n": 16}),
    (f"{TRAIN} a.n=16 \\\n\\\n", {"a.n": 16}),
    (f"echo {TRAIN} a.n=1\n{TRAIN} a.n=16", {"a.n": 16}),
    (f"eval_only() {{ {TRAIN} a.n=1; }}\n{TRAIN} a.n=16", {"a.n": 16}),
    (f"source /usr/local/Ascend/ascend-toolkit/set_env.sh\nn=16\nsource ~/.bashrc\n{TRAIN} a.n=$n", {"a.n": 16}),
])  # fmt: skip
def test_the_training_command_is_found(script: str, keys: dict[str, object]) -> None:
    assert read_overrides(script).values == keys


@pytest.mark.parametrize("between", [" # a.c=2 \\\n", "\n"], ids=["comment", "empty line"])
def test_what_is_cut_off_is_reported_key_by_key(between: str) -> None:
    reading = read_overrides(f"{TRAIN} \\\n a.b=1 \\\n{between} a.d=3 \\\n a.e=$x \\\n $more\n a.f=4")
    assert reading.values == {"a.b": 1}
    assert reading.unread_keys >= {"a.d", "a.e", "a.f"} and reading.unread_words == ["${more}"]


@pytest.mark.parametrize(("script", "message"), [
    ("torchrun -m verl.trainer.sft_trainer data.n=1", "line 1 runs verl.trainer.sft_trainer, which is no training"),
    ("x=1\npython3 -m verl.trainer.main_generation data.n=1", "line 2 runs verl.trainer.main_generation"),
    (f"train() {{ {TRAIN} a.n=1; }}", "trains in the function train, which is not called"),
    (f"shopt -s nullglob\n{TRAIN} a.n=1", "line 1: shopt changes how the script is run"),
    (f"trap 'n=3' DEBUG\n{TRAIN} a.n=1", "line 1: trap changes how the script is run"),
    ("f() { f; }\nf", "has a function that calls itself, f"),
    (f"x=1\\\n1\n{TRAIN} a.n=1\n{TRAIN} a.n=2", r"training commands \(lines 3, 4\)"),
])  # fmt: skip
def test_refusals_say_what_stands_there(script: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_overrides(script)


@pytest.mark.parametrize("text", [
    "a.b=" + "$(" * 20_000 + "x" + ")" * 20_000,
    "<(" * 20_000 + ")" * 20_000,
    "a.b=" + "$((" * 20_000,
    "x|" * 60_000,
    "f() { f; f; }\nf\n" + TRAIN + " a.n=1",
    "eval " * 30_000,
    "".join(f"f{n}() {{ f{n + 1}; f{n + 1}; }}\n" for n in range(60)) + "f60() { n=1; }\nf0",
], ids=["substitutions", "processes", "arithmetic", "pipes", "recursion", "eval", "doubling"])  # fmt: skip
def test_scripts_without_end_are_refused_or_read(text: str) -> None:
    try:
        assert read_overrides(text).values == {"a.n": 1}
    except ValueError as error:
        assert any(said in str(error) for said in ("no command line", "calls itself", "holds no override"))


CASES = Path(__file__).resolve().parents[3] / ".." / "shared" / "cases" / "convert"


@pytest.mark.skipif(not os.path.isdir(CASES), reason="../shared/cases is not there")
@pytest.mark.parametrize(("name", "wanted"), [
    ("F08_default_in_single_quotes.sh", {"run_dir": "/ckpts/first", "model.path": "/models/Qwen3-8B",
                                         "data.train.path": "/data/train.parquet"}),
    ("F05_comment_inside_the_command.sh", {"algorithm.name": None}),
    ("F06_fully_async_main.sh", {"algorithm.name": "gspo", "trainer.schedule": None}),
    ("F10_list_with_model_engine.txt", {"plans.train.pipeline_stage": 4, "plans.train.data_parallel": 1}),
    ("F13_baichuan2_13b.yaml", {"model.architecture": "Baichuan13BV2ForCausalLM"}),
    ("F19_loss_that_is_not_built_clip_cov.sh", {"algorithm.name": "clip_cov"}),
])  # fmt: skip
def test_experiments_of_the_shared_folder(name: str, wanted: dict[str, object]) -> None:
    found = convert([CASES / name])
    assert {key: flat(found)[key] for key in wanted} == wanted
    assert {key for key, value in wanted.items() if value is None} <= set(found.missing)
    assert ("model.architecture" in "".join(found.refused)) == name.startswith("F13")
