#!/usr/bin/env bash
# Runs one experiment. `run_gspo.sh --help` says how.
set -euo pipefail
trap 'echo "interrupted before the run" >&2; exit 130' INT

project=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
# shellcheck source=tools/setup_env.sh
source "$project/tools/setup_env.sh"

usage() {
    cat <<'TEXT'
Usage: run_gspo.sh CONFIG [ARGUMENT...]

Runs the experiment of a YAML file, for example:
  ./run_gspo.sh examples/arithmetic/gspo.yaml
  ./run_gspo.sh examples/arithmetic/gspo.yaml seed=2 run_dir=runs/second
  ./run_gspo.sh examples/arithmetic/gspo.yaml resume=auto

Arguments after CONFIG go to `mindgspo run`: a.b=c (any number), --overwrite, ...
Relative paths are taken from the current folder.

Where the active Python has MindSpore, that Python is used and its MindSpore is left as it is; otherwise the
first run makes a virtual environment and installs everything into it.
  PYTHON=...         the Python to use, or to make the environment from (default: python3, python on PATH)
  MINDGSPO_VENV=...  where that environment lies (default: .venv beside this script)
TEXT
}

case ${1-} in
    -h | --help)
        usage
        exit 0
        ;;
    "" | -*)
        usage >&2
        exit 2
        ;;
esac
if [[ ! -f $1 ]]; then
    printf 'error: %s: no such file (current folder: %s)\n' "$1" "$PWD" >&2
    (cd "$project" && printf '       there is %s\n' examples/*/*.yaml) >&2
    exit 2
fi

set_up_environment "$project"

# Ctrl-C waits until the command can answer it, where env (coreutils 8.31) can hold it back.
hold=()
if env --block-signal=INT true 2>/dev/null; then
    hold=(env --block-signal=INT)
fi

# `mindgspo run` starts as many workers as the experiment's plans need.
trap - INT
exec "${hold[@]}" "$MINDGSPO_PYTHON" -m mindgspo.cli run "$@"
