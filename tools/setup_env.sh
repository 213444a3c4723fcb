# shellcheck shell=bash
# Finds or makes the Python that mindgspo runs in. Sourced by run_gspo.sh and run_tests.sh.
#
#   set_up_environment PROJECT_FOLDER [EXTRA...]      leaves the interpreter's path in $MINDGSPO_PYTHON
#
# 1. The active Python ($PYTHON, else python3, else python on PATH) has MindSpore, as in a CANN image: it is
#    used. Where mindgspo or an extra is missing, it is installed there. Its MindSpore is never replaced:
#    mindgspo asks for MindSpore only through the extra `mindspore`, which is not installed here; the present
#    version is given to pip as a constraint all the same; and afterwards it is checked to be still the same.
# 2. Otherwise a virtual environment is used, and made where there is none: $MINDGSPO_VENV, by default .venv
#    in the project. mindgspo goes in with its extra `mindspore`.
#
# With $MINDGSPO_MINDSPORE (such as 2.9) it is always 2., with that series of MindSpore, in a folder beside the other
# (.venv-mindspore-2.9).
#
# What was installed is remembered per extra, with the checksum of pyproject.toml here and below tools, so that pip runs
# again only when one of them changes. pip's output is shown only when it fails. All messages go to standard error.

# The packages beside mindgspo, below tools.
_parts=(kernels math_answers ascend_emulator migrate gguf conformance)

_say() { printf '[setup] %s\n' "$*" >&2; }

_fail() {
    printf 'error: %s\n' "$1" >&2
    shift
    (($#)) && printf '       %s\n' "$@" >&2
    exit 1
}

# _executable COMMAND: the absolute path of the interpreter behind a command (pyenv's commands depend on the
# current folder, and a relative path would).
_executable() { "$1" -c 'import sys; print(sys.executable)' 2>/dev/null; }

# _probe PYTHON: fills the variables below. It runs in / so that a folder that happens to be called mindspore
# or mindgspo in the current one is not taken for an installed package.
#   _version    such as 3.11                _prefix   of the interpreter's environment
#   _mindspore  where it lies, or nothing   _pin      the requirement that pins it, such as mindspore==2.10.0
#   _mindgspo   where it lies, or nothing   _missing  modules of the wanted extras that are absent
_probe() {
    local lines modules=() extra
    for extra in "${_extras[@]}"; do
        case $extra in
            dev) modules+=(pytest hypothesis ruff pyright) ;;
            parity) modules+=(torch transformers) ;;
            docs) modules+=(mkdocs material jieba) ;;
        esac
    done
    mapfile -t lines < <(cd / && "$1" - "${modules[@]}" 2>/dev/null <<'PY'
import importlib.metadata as metadata
import sys
from importlib.util import find_spec


def location(name):
    spec = find_spec(name)
    return spec.origin or "" if spec else ""


mindspore = location("mindspore")
pins = []
if mindspore and sys.version_info >= (3, 10):
    names = metadata.packages_distributions().get("mindspore", [])
    pins = sorted({f"{name}=={metadata.version(name)}" for name in names})
print("{}.{}".format(*sys.version_info))
print(sys.prefix)
print(mindspore)
print(" ".join(pins))
print(location("mindgspo"))
print(" ".join(name for name in sys.argv[1:] if not find_spec(name)))
PY
    )
    _version=${lines[0]-} _prefix=${lines[1]-} _mindspore=${lines[2]-}
    _pin=${lines[3]-} _mindgspo=${lines[4]-} _missing=${lines[5]-}
}

_supported() { [[ $1 == 3.10 || $1 == 3.11 || $1 == 3.12 ]]; }

_is_this_project() { [[ $1 -ef $_project/mindgspo/__init__.py ]]; }

# _stamps_fresh FOLDER: whether base and every wanted extra were installed from the present pyproject.toml.
_stamps_fresh() {
    local extra
    for extra in base "${_extras[@]}"; do
        [[ -f $1/$extra && $(<"$1/$extra") == "$_checksum" ]] || return 1
    done
}

_write_stamps() {
    local extra
    mkdir -p "$1"
    for extra in base "${_extras[@]}"; do
        printf '%s\n' "$_checksum" >"$1/$extra"
    done
}

# Runs started at the same moment must not install at the same time: the second one waits for the first.
_lock() {
    mkdir -p "$1"
    command -v flock >/dev/null || return 0
    exec 9>"$1/.lock"
    flock 9
}

_unlock() { exec 9>&-; }

# _install PYTHON LOG EXTRAS PIP_ARGUMENT...: installs this project, editable; EXTRAS is a,b,c or empty.
_install() {
    local python=$1 log=$2 extras=$3
    shift 3
    # Two of the parts require mindgspo, which pip looks for in the index unless it has seen the folder before.
    # In the project's folder, so that no character of its path can be taken for a part of the requirement.
    if ! (cd "$_project" && "$python" -m pip install --no-input "$@" --editable ".${extras:+[$extras]}" \
        "${_parts[@]/#/--editable=tools/}") \
        >"$log" 2>&1; then
        tail -n 25 "$log" >&2
        _fail "pip could not install mindgspo into $python; above is the end of $log" \
            "No network? Point pip at your mirror (PIP_INDEX_URL) or at wheels (PIP_FIND_LINKS)." \
            "No permission? Put an environment above that Python, activate it, and start again:" \
            "  $python -m venv --system-site-packages my_env"
    fi
}

_joined() {
    local IFS=,
    printf '%s' "$*"
}

_named() {
    (($#)) && printf 'mindgspo[%s]' "$(_joined "$@")" || printf mindgspo
}

# ---- 1. a Python that has MindSpore

_ready_there() {
    [[ -n $_mindgspo && -z $_missing ]] || return 1
    # Without stamps its owner put mindgspo there, and keeps it up to date.
    [[ ! -d $1 ]] || _stamps_fresh "$1"
}

_use_python_with_mindspore() {
    local python=$1 stamps constraints before
    _supported "$_version" ||
        _fail "$python has MindSpore, but it is Python $_version and mindgspo needs 3.10, 3.11 or 3.12" \
            "Activate an environment with one of them, or name one: PYTHON=/path/to/python3.11 $0 ..."
    stamps=$_project/.setup/$(printf '%s' "$python" | cksum | tr ' ' -)
    if ! _ready_there "$stamps"; then
        _lock "$_project/.setup"
        _probe "$python"
        if ! _ready_there "$stamps"; then
            before="${_pin:-MindSpore} in $_mindspore"
            _say "installing $(_named "${_extras[@]}") into $python; ${_pin:-MindSpore} stays"
            constraints=$(mktemp)
            [[ -z $_pin ]] || tr ' ' '\n' <<<"$_pin" >"$constraints"
            _install "$python" "$_project/.setup/pip.log" "$(_joined "${_extras[@]}")" -c "$constraints"
            rm -f "$constraints"
            _probe "$python"
            [[ "${_pin:-MindSpore} in $_mindspore" == "$before" ]] ||
                _fail "pip changed MindSpore in $python: it was $before, it is $_pin in $_mindspore"
            _write_stamps "$stamps"
        fi
        _unlock
    fi
    if ! _is_this_project "$_mindgspo"; then
        _say "using this folder's mindgspo, not the installed one in ${_mindgspo%/__init__.py}"
        export PYTHONPATH="$_project$(printf ':%s' "${_parts[@]/#/$_project/tools/}")${PYTHONPATH:+:$PYTHONPATH}"
    fi
    MINDGSPO_PYTHON=$python
}

# ---- 2. an environment of our own

# Prints the interpreter to make the environment with.
_find_base_python() {
    local candidate version found=() candidates=(python3.11 python3.12 python3.10 python3 python)
    [[ -z ${PYTHON-} ]] || candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
        if ! _supported "$version"; then
            found+=("$candidate is Python $version")
        elif ! "$candidate" -c 'import venv, ensurepip' 2>/dev/null; then
            found+=("$candidate ($version) lacks venv; on Debian or Ubuntu: apt install python$version-venv")
        else
            _executable "$candidate"
            return
        fi
    done
    _fail "mindgspo needs Python 3.10, 3.11 or 3.12 with the module venv" \
        "${found[@]/#/found: }" \
        "Install one (apt install python3.11 python3.11-venv, or conda create -n mindgspo python=3.11)" \
        "or name one: PYTHON=/path/to/python3.11 $0 ..."
}

_ready_here() {
    _stamps_fresh "$1" && [[ -n $_mindspore && -z $_missing ]] && _is_this_project "$_mindgspo"
}

_use_own_environment() {
    local venv=$1 python=$1/bin/python stamps=$1/.mindgspo-setup base report
    _probe "$python"
    if ! _ready_here "$stamps"; then
        _lock "$venv"
        # An interrupted `python -m venv` leaves half an environment; doing it again completes it.
        if [[ ! $_prefix -ef $venv ]] || ! "$python" -m pip --version >/dev/null 2>&1; then
            base=$(_find_base_python)
            _say "making $venv with $("$base" --version 2>&1)"
            report=$("$base" -m venv "$venv" 2>&1) || _fail "$base -m venv failed in $venv" "$report"
        fi
        _probe "$python"
        _supported "$_version" ||
            _fail "$venv has Python $_version; mindgspo needs 3.10, 3.11 or 3.12" \
                "Remove that folder (or set MINDGSPO_VENV to another one) and start again."
        if ! _ready_here "$stamps"; then
            _say "installing $(_named mindspore "${_extras[@]}") into $venv (takes minutes once)"
            _install "$python" "$venv/pip.log" "$(_joined mindspore "${_extras[@]}")" \
                ${MINDGSPO_MINDSPORE:+"mindspore==$MINDGSPO_MINDSPORE.*"}
            _write_stamps "$stamps"
        fi
        _unlock
    fi
    # Worker launchers start the `python` that PATH gives.
    export VIRTUAL_ENV=$venv PATH="$venv/bin:$PATH"
    MINDGSPO_PYTHON=$python
}

set_up_environment() {
    local candidate python candidates=(python3 python) own
    _project=$1
    shift
    _extras=("$@")
    _checksum=$(cat "$_project/pyproject.toml" "$_project"/tools/*/pyproject.toml | cksum)
    own=$(realpath -m "${MINDGSPO_VENV:-$_project/.venv}")
    if [[ -n ${MINDGSPO_MINDSPORE-} ]]; then
        _use_own_environment "$own-mindspore-$MINDGSPO_MINDSPORE"
        return
    fi
    if [[ -n ${PYTHON-} ]]; then
        python=$(_executable "$PYTHON") || _fail "PYTHON=$PYTHON does not run"
        PYTHON=$python candidates=("$python")
        PATH="$(dirname "$PYTHON"):$PATH"
    fi
    for candidate in "${candidates[@]}"; do
        python=$(_executable "$candidate") || continue
        _probe "$python"
        # Our own environment may be the active one; it is kept up to date as our own.
        if [[ -n $_mindspore && ! $_prefix -ef $own ]]; then
            _use_python_with_mindspore "$python"
            return
        fi
    done
    _use_own_environment "$own"
}
