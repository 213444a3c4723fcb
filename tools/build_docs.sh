#!/usr/bin/env bash
# Builds the documentation as a site, English in site/ and Chinese in site/zh/; open site/index.html. Warnings are errors.
#   tools/build_docs.sh [FOLDER]
set -euo pipefail

project=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
# shellcheck source=tools/setup_env.sh
source "$project/tools/setup_env.sh"
folder=$(realpath -m "${1:-$project/site}")

set_up_environment "$project" docs
export NO_MKDOCS_2_WARNING=1   # --quiet would also hide warnings from --strict
"$MINDGSPO_PYTHON" -m mkdocs build --config-file "$project/tools/site/mkdocs.yml" --site-dir "$folder"
"$MINDGSPO_PYTHON" -m mkdocs build --config-file "$project/tools/site/mkdocs_cn.yml" --site-dir "$folder/zh"
echo "$folder/index.html"
