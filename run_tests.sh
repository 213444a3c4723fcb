#!/usr/bin/env bash
# Checks style and runs the test suite. `run_tests.sh --help` says how.
set -euo pipefail

project=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
# shellcheck source=tools/setup_env.sh
source "$project/tools/setup_env.sh"

usage() {
    cat <<'TEXT'
Usage: run_tests.sh [--parity] [--mindformers] [--mindspore SERIES] [--all] [PYTEST_ARGUMENT...]

Sets the environment up as run_gspo.sh does, with the development tools, then runs ruff, pyright and the test suite:
  ./run_tests.sh                          the default tier, within 10 minutes on 2 cores: unit tests, and one of each kind
                                          of whole run, launch of several ranks, emulated card and divided graph
  ./run_tests.sh --all                    every test, hours; random instead of fixed examples where tests draw some
  ./run_tests.sh tests/unit -k checkpoint part of it; paths are relative to this script's folder

  --mindspore SERIES
            with another MindSpore, such as 2.9, in an environment of its own (3.2 GB, .venv-mindspore-2.9): kernels,
            models, updates, generation, a whole run and one of two processes, unless more arguments follow.
  --parity  also install torch 2.13.0, transformers and peft, with which results are compared. Without them those
            tests are skipped. A machine without GPU saves gigabytes with torch's CPU build:
            PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu ./run_tests.sh --parity
  --mindformers
            also make an environment with MindFormers 1.9.0 and MindSpore 2.9.0 (3.5 GB; $MINDGSPO_MINDFORMERS_VENV, by
            default .venv-mindformers), whose cells ours are compared with. Without it those tests are skipped.
TEXT
}

# One of each kind of graph, compiled and run.
of_another_mindspore=(
    tools/kernels/tests tests/unit/models/test_packed_rows.py tests/unit/models/test_model_weights.py
    tests/unit/algorithms/test_adamw.py tests/unit/algorithms/test_update.py tests/unit/rollout/test_native_engine.py
    tests/integration/test_whole_run.py tests/distributed/test_whole_runs.py
)
tests=()
extras=(dev docs)
selection=(-m "not slow")
with_mindformers=
while true; do
    case ${1-} in
        -h | --help)
            usage
            exit 0
            ;;
        --parity)
            extras+=(parity)
            shift
            ;;
        --mindformers)
            with_mindformers=yes
            shift
            ;;
        --mindspore)
            export MINDGSPO_MINDSPORE=${2:?"--mindspore wants a series, such as 2.9"}
            extras=(dev)
            tests=("${of_another_mindspore[@]}")
            shift 2
            ;;
        --all)
            selection=()
            export HYPOTHESIS_PROFILE=${HYPOTHESIS_PROFILE:-thorough}
            shift
            ;;
        *)
            break
            ;;
    esac
done

(($# == 0)) || tests=()
set_up_environment "$project" "${extras[@]}"
cd "$project"
python=$MINDGSPO_PYTHON

if [[ -n $with_mindformers ]]; then
    second=${MINDGSPO_MINDFORMERS_VENV:-$project/.venv-mindformers}
    if ! "$second/bin/python" -m pip show --quiet mindformers mindgspo >/dev/null 2>&1; then
        echo "== making $second"
        "$python" -m venv "$second"
        "$second/bin/python" -m pip install --no-input --quiet --editable ".[mindformers]" --editable tools/kernels \
            --editable tools/math_answers --editable tools/ascend_emulator
    fi
    export MINDGSPO_MINDFORMERS_PYTHON=$second/bin/python
fi

echo "== ruff check"
"$python" -m ruff check .
echo "== ruff format"
"$python" -m ruff format --check .
if [[ -z ${MINDGSPO_MINDSPORE-} ]]; then  # typings/ declares MindSpore, whichever is installed
    echo "== pyright"
    # 1: asks no server for newer ones.
    PYRIGHT_PYTHON_IGNORE_WARNINGS=1 "$python" -m pyright --pythonpath "$python" --level error
fi
echo "== pytest"
# The workers below fill the cores; threads of operators would only wait for one another.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# A worker per core, four at most: each holds a MindSpore. Tests of one file share fixtures and stay together; files
# come in order, since those of whole runs, which take longest, have few tests and would come last.
"$python" -m pytest -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder --durations=10 "${selection[@]}" "${tests[@]}" "$@"
