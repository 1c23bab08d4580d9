#!/usr/bin/env bash
# Builds the wheel of this folder, with the program `ulplab` and what is shipped with it: build_wheel.sh [FOLDER] leaves it in FOLDER, by
# default dist/ here. Needs Rust, Python with venv, and binutils. ULPLAB_WHEEL_PROFILE is the profile of Cargo, by default `dist`;
# ULPLAB_WHEEL_PROGRAM is a program that is built already.
set -euo pipefail
out=$(realpath -m "${1:-$(dirname "${BASH_SOURCE[0]}")/dist}")
cd "$(dirname "${BASH_SOURCE[0]}")"
profile=${ULPLAB_WHEEL_PROFILE:-dist}
program=${ULPLAB_WHEEL_PROGRAM:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check maturin==1.16.0 wheel==0.45.1

# One command builds both: built apart, they need other features of the same dependencies, and nearly all is built twice. So maturin,
# which builds a module alone, only says what the wheel is.
packages=(--package ulplab-python)
[ -n "$program" ] || packages+=(--package ulplab)
cargo build --locked --profile "$profile" "${packages[@]}"
target=$(cargo metadata --format-version 1 --no-deps | python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')
built=$target/${profile/#dev/debug}
"$work/venv/bin/maturin" pep517 write-dist-info --quiet --metadata-directory "$work/wheel"

# What is below `data/share` lies beside `bin/` of the environment, where the program looks for it.
about=$(echo "$work"/wheel/ulplab-*.dist-info)
data=${about%.dist-info}.data
mkdir -p "$data/scripts" "$data/data/share/ulplab" "$work/wheel/ulplab" "$out"
cp ulplab/*.py ulplab/*.pyi ulplab/py.typed "$work/wheel/ulplab/"
strip -o "$work/wheel/ulplab/_native.abi3.so" "$built/lib_native.so"
strip -o "$data/scripts/ulplab" "${program:-$built/ulplab}"
chmod +x "$data/scripts/ulplab"
cp -r ../kernels ../experiments ../zoo "$data/data/share/ulplab/"
rm -rf "$data/data/share/ulplab/zoo/"{,*/}__pycache__

# What is built needs a glibc, which the tag of the wheel promises, and no other library than that tag allows (PEP 600).
binaries=("$work/wheel/ulplab/_native.abi3.so" "$data/scripts/ulplab")
foreign=$(objdump -p "${binaries[@]}" | awk '$1 == "NEEDED" { print $2 }' | grep -Ev '^(lib(c|m|dl|rt|pthread|gcc_s)\.so\.[0-9]|ld-linux.*)$' || true)
if [ -n "$foreign" ]; then
    echo "what is built needs $(echo $foreign), which a wheel for any Linux must not" >&2
    exit 1
fi
glibc=$(objdump -T "${binaries[@]}" | grep -o 'GLIBC_2\.[0-9]*' | sort -t. -k2 -n | tail -1 | cut -d. -f2 || true)
[ -z "$glibc" ] || sed -i "s/-linux_/-manylinux_2_${glibc}_/" "$about/WHEEL"
"$work/venv/bin/wheel" pack --dest-dir "$out" "$work/wheel"
