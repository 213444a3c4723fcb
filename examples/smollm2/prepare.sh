#!/usr/bin/env bash
# Fetches the model and writes the questions, beside this file. Makes the environment first, as run_gspo.sh does.
set -euo pipefail

here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
# shellcheck source=tools/setup_env.sh
source "$here/../../tools/setup_env.sh"
set_up_environment "$here/../.."

"$MINDGSPO_PYTHON" "$here/get_model.py"
"$MINDGSPO_PYTHON" "$here/make_data.py"
