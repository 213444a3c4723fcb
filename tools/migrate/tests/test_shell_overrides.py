"""Shell scripts as bash reads them, as far as assignments and words go; and nothing of them is run."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from mindgspo_migrate.shell import read_overrides
from mindgspo_migrate.tables import Status

TRAIN = "python3 -m verl.trainer.main_ppo"


def values(text: str) -> dict[str, object]:
    return read_overrides(text).values


def unread(text: str) -> dict[str, str]:
    return {
        finding.source: finding.text for finding in read_overrides(text).findings if finding.status is Status.UNREADABLE
    }


@pytest.mark.parametrize(("line", "value"),
                        [("a.b=1", 1), ("a.b=1e-6", 1e-6), ("a.b=-1", -1), ("a.b=True", True), ("a.b=null", None),
                         ("a.b=text", "text"), ("a.b='two words'", "two words"), ('a.b="two words"', "two words"),
                         ("'a.b=two words'", "two words"), ("a.b=''", None), ("a.b=x'y'\"z\"", "xyz"),
                         (r"a.b=x\ y", "x y"), (r'a.b="x\"y"', 'x"y'), (r"a.b='x\"y'", r"x\"y"),
                         ('a.b=\'["x","y"]\'', ["x", "y"]), ("a.b=\"['/d/x.parquet']\"", ["/d/x.parquet"]),
                         ("+a.b=1", 1), ("++a.b=1", 1), ("a.b=x=y", "x=y"), ("a.b=1 # a remark", 1),
                         ("a.b=x#y", "x#y"), ("a.b=1 \\\n  c.d=2", 1), ("a.b=\\\n1", 1), ("a.b=1 | tee log", 1),
                         ("a.b=1 > log 2>&1", 1), ("a.b=1 2>&1 | tee log", 1), ("a.b=1 &", 1),
                         ("a.b=1; echo c.d=2", 1), ("a.b=${x}", 7), ("a.b=$x", 7), ("a.b=${x}0", 70),
                         ('a.b="$x $x"', "7 7"), ('a.b="-  ${x} $((x))"', "-  7 7"),
                         ('a.b="${x}"', 7), ("a.b='$y'", "$y"), (r"a.b=\$y", "$y"), ("a.b=${missing:-5}", 5),
                         ("a.b=${missing-5}", 5), ("a.b=${empty:-5}", 5), ("a.b=${x:-5}", 7),
                         ('a.b=${missing:-"${x}/y"}', "7/y"), ("a.b=$((x * 2))", 14),
                         ("a.b=${missing:-$((x * 2))}", 14), ("a.b=${missing:-${other:-$x}}", 7),
                         ('a.b="${missing:-a b}"', "a b"), ("a.b=1 '' \"\" $empty", 1),
                         ("a.b=$(( (x + 1) * 1024 / 3 - 1 % 2 ))", 2729),
                         ("a.b=${missing:-$(((x + 1) * 2))}", 16), ("a.b=${missing:-['y','z']}", ["y", "z"]),
                         ("a.b=$(($x * ${x}))", 49),
                         ("a.b=$((-x))", -7)])  # fmt: skip
def test_words_as_bash_reads_them(line: str, value: object) -> None:
    assert values(f"x=7\nempty=\n{TRAIN} {line}\n")["a.b"] == value


@pytest.mark.parametrize("text", ["$((7 / 2))", "$((-7 * 3))", "${x}${y:-3}$((x-1))", "'a b'\"c$x\"d\\ e", "${x:-4}"])
def test_bash_itself_says_the_same(text: str) -> None:
    said = subprocess.run(["bash", "-c", f"x=7\nprintf %s {text}"], capture_output=True, text=True, check=True).stdout
    assert str(values(f"x=7\n{TRAIN} a.b={text}")["a.b"]) == said


def test_variables_exports_and_prefixes() -> None:
    text = f"export A=1 B=2\nreadonly C=$A\nD=$B E=4\nE=5 {TRAIN} a.b=$A a.c=$B a.d=$C a.e=$D a.f=$E"
    assert values(text) == {"a.b": 1, "a.c": 2, "a.d": 1, "a.e": 2, "a.f": 4}, "E=5 is not yet set when words are read"


def test_lists_of_settings() -> None:
    text = """
n=4
FIRST=(
    a.b=$n  # a remark
    a.c='x y'
)
FIRST+=(a.d=5)
ALL=("${FIRST[@]}" a.e=6)
"""
    assert values(f'{text}{TRAIN} "${{ALL[@]}}" a.f=7') == {"a.b": 4, "a.c": "x y", "a.d": 5, "a.e": 6, "a.f": 7}


def test_the_branch_that_the_values_lead_to_is_followed() -> None:
    lines = """
backend=megatron
steps=3
CONFIG=" a.b=1"
EXTRA=(a.x=0)
if [[ $backend == "fsdp" ]]; then
    CONFIG="$CONFIG a.c=2"
elif [ "$backend" = megatron ] && [ $steps -ge 3 ]; then
    CONFIG="$CONFIG  a.c=3"
    EXTRA=("${EXTRA[@]}" a.y=1)
else
    exit 1
fi
case "$backend" in
    fsdp|fsdp2) size=1 ;;
    megatron)
        size=2
        ;;
    *) exit 1 ;;
esac
[ -z "$backend" ] || EXTRA+=(a.z=5)
[[ -n $backend && ! $steps -lt 3 ]] && last=7
"""
    text = f'{lines}{TRAIN} $CONFIG "${{EXTRA[@]}}" a.d=$size a.e=$last'
    assert values(text) == {"a.b": 1, "a.c": 3, "a.x": 0, "a.y": 1, "a.z": 5, "a.d": 2, "a.e": 7}
    assert unread(text) == {}
    said = subprocess.run(
        ["bash", "-c", f'{lines}printf "%s " $CONFIG "${{EXTRA[@]}}" a.d=$size a.e=$last'],
        capture_output=True,
        text=True,
    )
    assert sorted(said.stdout.split()) == sorted(f"{key}={value}" for key, value in values(text).items())


def test_where_no_branch_is_sure_what_all_of_them_say_stays() -> None:
    text = f"""
LIST=(a.b=1 a.c=2)
TEXT=" a.d=1"
if [ "$HOST" = here ]; then
    LIST+=(a.e=3)
    TEXT="$TEXT a.f=4"
else
    LIST=(a.b=1 a.c=5)
fi
{TRAIN} "${{LIST[@]}}" $TEXT a.g=6"""
    assert values(text) == {"a.b": 1, "a.d": 1, "a.g": 6}
    assert set(unread(text)) == {"a.c", "a.e", "a.f"}, "each is set in one branch alone, or differs"
    assert read_overrides(text).unread_words == [], "no other key can be in them"


@pytest.mark.parametrize(
    "test", ["[[ ! $u == b ]]", "[ $x = $u ]", "[[ $x == 7* ]]", "[ -f $x ]", "grep -q $x", "[[ $x =~ 7 ]]"]
)
def test_conditions_whose_outcome_is_not_in_the_file(test: str) -> None:
    assert unread(f"x=7\nif {test}; then\n y=1\nfi\n{TRAIN} a.b=$y a.c=1").keys() == {"a.b"}


def test_a_branch_that_ends_the_script_leaves_nothing_behind() -> None:
    text = f'case "$ON" in\n gpu) x=1 ;;\n npu) x=1; y=2 ;;\n *) x=3; exit 1 ;;\nesac\n{TRAIN} a.b=$x a.c=$y'
    assert values(text) == {"a.b": 1} and set(unread(text)) == {"a.c"}


def test_a_word_that_may_hold_any_key_is_noted() -> None:
    assert read_overrides(f"{TRAIN} a.b=1 $UNKNOWN").unread_words == ["${UNKNOWN}"]
    assert read_overrides(f'{TRAIN} a.b=1 "${{UNKNOWN[@]}}"').unread_words == ["${UNKNOWN[@]}"]
    added = f'if [ -e x ]; then\n L=($(cat x))\nfi\nL+=(a.c=1)\n{TRAIN} a.b=1 "${{L[@]}}"'
    assert values(added) == {"a.b": 1, "a.c": 1} and len(read_overrides(added).unread_words) == 1
    assert read_overrides(f'{TRAIN} a.b=1 "$@"').unread_words == [], (
        "a script is converted as it is called without them"
    )


def test_scripts_of_verl_find_out_that_they_run_on_ascend() -> None:
    text = f"""
DEVICE=${{DEVICE:-$(python3 -c 'import torch_npu' && echo npu || echo gpu)}}
case "$DEVICE" in
    gpu) size=512 ;;
    npu) size=256 ;;
esac
{TRAIN} a.b=$size"""
    reading = read_overrides(text)
    assert reading.values == {"a.b": 256}
    assert ("$DEVICE", "npu") in [(one.source, one.value) for one in reading.findings if one.status is Status.ASSUMED]


def test_many_branches_end_soon() -> None:
    text = "".join(f"if [ $u = {n} ]; then\n v{n}=(a.k{n}=1)\nfi\n" for n in range(4000))
    started = time.monotonic()
    assert values(f"{text}{TRAIN} a.b=1") == {"a.b": 1}
    assert time.monotonic() - started < 60


def test_an_unquoted_variable_is_as_many_words_as_it_holds() -> None:
    text = f'MORE=" a.b=1\n  a.c=2 "\nNONE=\n{TRAIN} $MORE $NONE ${{MORE}} a.d=3'
    assert values(text) == {"a.b": 1, "a.c": 2, "a.d": 3}
    glued = f'A="1 a.c=2 "\nB=" a.d=3 a.e="\n{TRAIN} a.b=$A${{B}}4 a.f="$A"'
    assert values(glued) == {"a.b": 1, "a.c": 2, "a.d": 3, "a.e": 4, "a.f": "1 a.c=2"}


def test_an_unquoted_variable_in_a_list_is_as_many_words_as_it_holds() -> None:
    text = f'MORE=" a.b=1 a.c=2"\nALL=($MORE a.d=3 "$MORE")\n{TRAIN} "${{ALL[@]}}"'
    assert values(text) == {"a.b": 1, "a.c": 2, "a.d": 3}
    said = subprocess.run(
        ["bash", "-c", 'MORE=" a.b=1 a.c=2"\nALL=($MORE a.d=3)\nprintf "%s|" "${ALL[@]}"'],
        capture_output=True,
        text=True,
    )
    assert said.stdout == "a.b=1|a.c=2|a.d=3|"
    assert read_overrides(f'ALL=($MORE a.d=3)\n{TRAIN} "${{ALL[@]}}"').unread_words == ["${MORE}"]


def test_one_setting_without_a_value_does_not_take_the_list_with_it() -> None:
    text = f'ALL=(a.b=1 a.c=$later a.d=3)\nlater=2\n{TRAIN} "${{ALL[@]}}"'
    assert values(text) == {"a.b": 1, "a.d": 3}
    assert unread(text) == {"a.c": "$later has no value in the file"}


def test_a_list_of_overrides_needs_no_command() -> None:
    assert values("# remark\na.b=1\n\na.c='x y'\n+a.d=3\n") == {"a.b": 1, "a.c": "x y", "a.d": 3}
    assert values("a.b=1 a.c=2") == {"a.b": 1, "a.c": 2}


def test_what_stands_before_the_trainer_is_no_setting() -> None:
    text = f"ray job submit --runtime-env=x.yaml --working-dir . -- {TRAIN} a.b=1"
    assert values(text) == {"a.b": 1}
    assert values("torchrun --nnodes=2 verl/trainer/main_ppo.py a.b=1") == {"a.b": 1}
    assert values("python3 -m recipe.dapo.main_dapo a.b=1") == {"a.b": 1}


def test_what_counts_twice_or_is_taken_out_and_defaults_of_variables_are_said() -> None:
    reading = read_overrides(f"{TRAIN} a.b=1 a.b=2 a.c=3 ~a.c plain --other=x")
    assert reading.values == {"a.b": 2}
    said = {finding.source: finding.text for finding in reversed(reading.findings)}
    assert said["a.b"] == "given twice; the last one counts"
    assert said["~a.c"].startswith("a key that is taken out there")
    assert said["plain"] == said["--other=x"] == "no override of the form section.key=value"
    reading = read_overrides(f"NODES=${{NODES:-4}}\n{TRAIN} a.b=$NODES")
    assert [(one.status, one.source, one.value) for one in reading.findings] == [(Status.ASSUMED, "$NODES", "4")]


@pytest.mark.parametrize(("lines", "word", "reason"), [
    ("", "$x", "$x has no value in the file"),
    ("", "${x##*/}", "the form ${x##*/} is not read"),
    ("", "$((x + 1))", "$x has no value in the file"),
    ("", "$((2 ** 9))", "the arithmetic $((2 ** 9)) is not read"),
    ("", "$((1 / 0))", "the arithmetic $((1 / 0)) is not read"),
    ("x=a", "$((x))", "the arithmetic $((x)) is not read"),
    ("x=(1 2)", "$x", "$x is a list"),
    ("if [ -e /tmp ]; then\n  x=1\nfi", "$x", "$x is set under a condition or in a loop, which is not followed"),
    ("[ -e /tmp ] && x=1", "$x", "$x is set under a condition or in a loop, which is not followed"),
    ("for x in 1 2; do\n  echo $x\ndone", "$x", "$x is set by a loop"),
    ("x+=2", "$x", "$x is added to, and what it was is not in the file"),
    ("", "${data.seed}", "the form ${data.seed} is not read"),
    ("", "'${data.seed}'", "it refers to another setting, which is not followed"),
])  # fmt: skip
def test_values_that_are_not_in_the_file(lines: str, word: str, reason: str) -> None:
    assert unread(f"{lines}\n{TRAIN} a.b={word} a.c=1") == {"a.b": reason}


@pytest.mark.parametrize("attack", [
    "$(touch {})",
    "`touch {}`",
    "<(touch {})",
    '"$(touch {})"',
    '"`touch {}`"',
    "${{x:-$(touch {})}}",
    "$(($(touch {})))",
])  # fmt: skip
def test_commands_in_words_are_reported_and_never_run(tmp_path: Path, attack: str) -> None:
    made = tmp_path / "made"
    word = attack.format(made)
    found = unread(f"y={word}\n{TRAIN} a.b={word} a.c=$y a.d=1\ntouch {made}\nrm -rf {tmp_path}/none")
    assert set(found) == {"a.b", "a.c"} and not made.exists()
    assert all("which is not run" in reason and "touch" in reason for reason in found.values())


def test_defaults_within_defaults_without_end_and_the_callers_arguments() -> None:
    deep = "${a:-" * 90 + "1" + "}" * 90
    assert unread(f"{TRAIN} a.b={deep} a.c=1")["a.b"].startswith("the default ${a:-")
    for arguments in ('"$@"', "$@"):
        assert set(unread(f"{TRAIN} a.b=1 {arguments}")) == {"$@"}, "they are not in the file"


@pytest.mark.parametrize(("text", "message"), [
    ("", "holds no override"),
    ("echo hello", "holds no override"),
    (f"{TRAIN} a.b='x", "line 1: a quote or bracket is not closed"),
    (f'\n{TRAIN} a.b="x', 'line 2: " is missing: a quote or bracket is not closed'),
    (f"{TRAIN} a.b=$(x", r"line 1: \) is missing: a quote or bracket is not closed"),
    (f"{TRAIN} a.b=${{x", "line 1: } is missing: a quote or bracket is not closed"),
    (f"{TRAIN} a.b=1\n{TRAIN} a.b=2", r"holds 2 training commands \(lines 1, 2\)"),
    (f"{TRAIN} a.b=1\0", "holds a zero byte"),
    (f"{TRAIN} a.b=1 <<END\nx\nEND", "line 1: a here-document"),
    ("x" * 200_001, "is longer than 200,000 characters"),
])  # fmt: skip
def test_scripts_that_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_overrides(text)


def test_variables_that_double_each_other_end_soon() -> None:
    doubling = "a0=xxxxxxxxxx\n" + "".join(f"a{n + 1}=$a{n}$a{n}$a{n}$a{n}$a{n}$a{n}$a{n}$a{n}\n" for n in range(60))
    lists = "b0=(1 2 3 4 5 6 7 8)\n" + "".join(
        f'b{n + 1}=("${{b{n}[@]}}" "${{b{n}[@]}}" "${{b{n}[@]}}" "${{b{n}[@]}}")\n' for n in range(60)
    )
    started = time.monotonic()
    found = unread(f'{doubling}{lists}{TRAIN} a.b=$a60 "${{b60[@]}}" a.c=1')
    assert "a.b" in found and len(found) == 2 and all("grow" in reason for reason in found.values())
    assert time.monotonic() - started < 60


def test_deep_brackets_and_long_arithmetic_end_soon() -> None:
    deep = "(" * 90 + "1" + ")" * 90
    assert unread(f"{TRAIN} a.b=$(({'1+' * 5000}1)) a.c=1") == {"a.b": "its arithmetic is longer than 200 characters"}
    assert values(f"{TRAIN} a.b=$(({deep}))") == {"a.b": 1}
    assert "a.b" in unread(f"{TRAIN} a.b=$((9999999999 * 9999999999)) a.c=1")
