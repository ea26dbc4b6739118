#!/usr/bin/env bash
# The quick start's first steps against recorded ones. scripts/make_golden.py records them.
source "$(dirname "$0")/lib.bash"

quickstart() {
  "$FERRY_PYTHON" scripts/make_golden.py --check --ferry "$FERRY"
}

try quickstart_losses quickstart
finish
