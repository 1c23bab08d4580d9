#!/usr/bin/env bash
# Builds the wheel of this folder: build_wheel.sh [FOLDER] leaves it in FOLDER, by default dist/ here. Needs Rust and Python with venv.
set -euo pipefail
out=$(realpath -m "${1:-$(dirname "${BASH_SOURCE[0]}")/dist}")
cd "$(dirname "${BASH_SOURCE[0]}")"
venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check maturin==1.16.0
"$venv/bin/maturin" build --profile "${ULPLAB_WHEEL_PROFILE:-release}" --out "$out"
