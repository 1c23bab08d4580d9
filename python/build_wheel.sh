#!/usr/bin/env bash
# Builds the wheel of this folder, with the program `ulplab` in its module and what is shipped with it: build_wheel.sh [FOLDER] leaves it in
# FOLDER, by default dist/ here. Needs Rust, Python with venv, and binutils. ULPLAB_WHEEL_PROFILE is the profile of Cargo, by default `dist`;
# ULPLAB_WHEEL_MODULE is a lib_native.so that is built already.
set -euo pipefail
out=$(realpath -m "${1:-$(dirname "${BASH_SOURCE[0]}")/dist}")
module=${ULPLAB_WHEEL_MODULE:+$(realpath "$ULPLAB_WHEEL_MODULE")}
cd "$(dirname "${BASH_SOURCE[0]}")"
profile=${ULPLAB_WHEEL_PROFILE:-dist}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check maturin==1.16.0 wheel==0.45.1

if [ -z "$module" ]; then
    cargo build --locked --profile "$profile" --package ulplab-python
    target=$(cargo metadata --format-version 1 --no-deps | python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')
    module=$target/${profile/#dev/debug}/lib_native.so
fi
# It says what the wheel is; what it would build itself can be neither given to it nor lie outside of this folder.
"$work/venv/bin/maturin" pep517 write-dist-info --quiet --metadata-directory "$work/wheel"

# What is below `data/share` lies below the folder of the environment, as the module does, and the program finds it from there.
about=$(echo "$work"/wheel/ulplab-*.dist-info)
data=${about%.dist-info}.data
native=$work/wheel/ulplab/_native.abi3.so
mkdir -p "$data/data/share/ulplab" "$work/wheel/ulplab" "$out"
cp ulplab/*.py ulplab/*.pyi ulplab/py.typed "$work/wheel/ulplab/"
strip -o "$native" "$module"
cp -r ../kernels ../experiments ../zoo "$data/data/share/ulplab/"
rm -rf "$data/data/share/ulplab/zoo/"{,*/}__pycache__

# The module needs a glibc, which the tag of the wheel promises, and no other library than that tag allows (PEP 600).
foreign=$(objdump -p "$native" | awk '$1 == "NEEDED" { print $2 }' | grep -Ev '^(lib(c|m|dl|rt|pthread|gcc_s)\.so\.[0-9]|ld-linux.*)$' || true)
if [ -n "$foreign" ]; then
    echo "the module needs $(echo $foreign), which a wheel for any Linux must not" >&2
    exit 1
fi
glibc=$(objdump -T "$native" | grep -o 'GLIBC_2\.[0-9]*' | sort -t. -k2 -n | tail -1 | cut -d. -f2 || true)
[ -z "$glibc" ] || sed -i "s/-linux_/-manylinux_2_${glibc}_/" "$about/WHEEL"
"$work/venv/bin/wheel" pack --dest-dir "$out" "$work/wheel"
