#!/usr/bin/env bash
# Collect in .gpu-day (or $CARRIED) what run.sh needs on a machine without a network: cuDNN's
# frontend, a NumPy for a numba that refuses the machine's, and machine code of all kernels.
# $PY is the Python of the project, with its test extra and NVRTC 13.0.
set -eu
cd "$(dirname "$0")/../.."
: "${CARRIED:=$PWD/.gpu-day}" "${PY:=.venv/bin/python}" "${PYTHON_THERE:=3.12}" "${MOST_MIB:=50}"
mkdir -p "$CARRIED/wheels"; WORK=$(mktemp -d); trap 'rm -rf "$WORK"' EXIT
tar xzf "$CARRIED/cache.tgz" -C "$WORK" 2>/dev/null || true # of an earlier call
platforms=$(for n in 2_28 2_27 2_17; do echo "--platform manylinux_${n}_x86_64"; done)
$PY -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: \
  --python-version "$PYTHON_THERE" --implementation cp $platforms --platform manylinux2014_x86_64 \
  -d "$CARRIED/wheels" nvidia-cudnn-frontend==1.32.0 numpy==2.4.6
$PY benchmarks/gpu_day/prewarm.py "$WORK"
tar czf "$CARRIED/cache.tgz" -C "$WORK" .
git rev-parse --short HEAD >"$CARRIED/commit"
size=$(du -sm "$CARRIED" | cut -f1)
echo "$CARRIED: $size MiB"
[ "$size" -lt "$MOST_MIB" ] || { echo "more than $MOST_MIB MiB" >&2; exit 1; }
