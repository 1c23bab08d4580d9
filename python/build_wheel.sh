#!/usr/bin/env bash
# Builds the wheel of this folder, with the program `ulplab` and what is shipped with it: build_wheel.sh [FOLDER] leaves it in FOLDER, by
# default dist/ here. Needs Rust, Python with venv, and binutils. ULPLAB_WHEEL_PROFILE is the profile of Cargo: `dist` takes 8 minutes on two
# cores with all dependencies and gives 9.9 MB, `release` 7 minutes and 12.5 MB. ULPLAB_WHEEL_PROGRAM is a program that is built already.
set -euo pipefail
out=$(realpath -m "${1:-$(dirname "${BASH_SOURCE[0]}")/dist}")
cd "$(dirname "${BASH_SOURCE[0]}")"
profile=${ULPLAB_WHEEL_PROFILE:-dist}
program=${ULPLAB_WHEEL_PROGRAM:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check maturin==1.16.0 wheel==0.45.1
"$work/venv/bin/maturin" build --profile "$profile" --out "$work/module"
if [ -z "$program" ]; then
    cargo build --locked --profile "$profile" --package ulplab --bin ulplab
    target=$(cargo metadata --format-version 1 --no-deps | python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')
    program=$target/${profile/#dev/debug}/ulplab
fi

# What is below `data/share` lies beside `bin/` of the environment, where the program looks for it.
"$work/venv/bin/wheel" unpack --dest "$work" "$work"/module/*.whl
unpacked=$(echo "$work"/ulplab-*)
data=$unpacked/$(basename "$unpacked").data
mkdir -p "$data/scripts" "$data/data/share/ulplab" "$out"
strip -o "$data/scripts/ulplab" "$program"
strip "$unpacked"/ulplab/_native.abi3.so
chmod +x "$data/scripts/ulplab"
cp -r ../kernels ../experiments ../zoo "$data/data/share/ulplab/"
rm -rf "$data/data/share/ulplab/zoo/"{,*/}__pycache__

# The tag of the wheel promises a glibc, which the program must not need a newer one than.
newest() { objdump -T "$@" | grep -o 'GLIBC_2\.[0-9]*' | sort -t. -k2 -n | tail -1 | cut -d. -f2; }
needed=$(newest "$data/scripts/ulplab")
promised=$(basename "$work"/module/*.whl | sed -n 's/.*manylinux_2_\([0-9]*\)_.*/\1/p')
if [ -n "$promised" ] && [ "$needed" -gt "$promised" ]; then
    echo "the program needs glibc 2.$needed, the wheel promises 2.$promised" >&2
    exit 1
fi
"$work/venv/bin/wheel" pack --dest-dir "$out" "$unpacked"
