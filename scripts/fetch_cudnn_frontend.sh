#!/usr/bin/env bash
# Puts the C++ headers of cudnn-frontend into a directory, out of its Python package, which holds
# them. Nothing of the package is installed or run.
#
#   scripts/fetch_cudnn_frontend.sh DIR
set -euo pipefail

# Compiles with CUDA 13.0 and cuDNN 9.19.
version=1.32.0

target=${1:?usage: scripts/fetch_cudnn_frontend.sh DIR}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "cudnn-frontend $version: $*" >&2
  exit 1
}

if ! python3 -m pip --version >/dev/null 2>&1; then
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    fail "python3 with pip is needed"
  fi
  env DEBIAN_FRONTEND=noninteractive apt-get -y -qq install --no-install-recommends python3-pip \
    >"$work/log" 2>&1 </dev/null || fail "python3-pip cannot be installed: $(tail -n 1 "$work/log")"
fi
# The headers are the same for every Python: one is named, so that the host's does not matter.
python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" \
  --only-binary=:all: --implementation cp --python-version 3.12 \
  --platform "manylinux_2_28_$(uname -m)" --platform "manylinux_2_27_$(uname -m)" \
  "nvidia-cudnn-frontend==$version" >"$work/log" 2>&1 ||
  fail "pip cannot download it: $(tail -n 1 "$work/log")"
python3 -m zipfile -e "$work"/*.whl "$work/package"
[ -e "$work/package/include/cudnn_frontend.h" ] || fail "its package has no cudnn_frontend.h"
mkdir -p "$target"
cp -r "$work/package/include/." "$target/"
echo "cudnn-frontend $version: headers are in $target"
