#!/usr/bin/env bash
# Compiles the kernels that use wgmma and fails if ptxas serialised their products, or if they keep
# registers in memory: both cost speed without a word in an ordinary build.
#
#   scripts/check_wgmma.sh NVCC
set -euo pipefail
nvcc=${1?usage: scripts/check_wgmma.sh NVCC}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
most_spilled=32 # bytes, of one kernel

object=$(mktemp)
trap 'rm -f "$object"' EXIT
log=$("$nvcc" -std=c++20 --generate-code=arch=compute_90a,code=sm_90a --expt-relaxed-constexpr \
  --extended-lambda -I. -Xptxas -v -c core/ops/grouped_gemm_wgmma_cuda.cu -o "$object" 2>&1)

kernels=$(grep -c 'Compiling entry function' <<<"$log" || true)
[ "$kernels" -ge 5 ] || { echo "check_wgmma: $kernels kernels in this output:" "$log" && exit 1; } >&2
if grep -iE 'C75[0-9]{2}|serializ' <<<"$log"; then
  echo "check_wgmma: ptxas does not let products run on while others are issued" >&2
  exit 1
fi
spilled=$(sed -n 's/.* \([0-9]*\) bytes spill stores.*/\1/p' <<<"$log" | sort -n | tail -n 1)
if [ "$spilled" -gt "$most_spilled" ]; then
  echo "check_wgmma: a kernel spills $spilled bytes, more than $most_spilled" >&2
  exit 1
fi
echo "check_wgmma: $kernels kernels, at most $spilled bytes spilled, no product serialised"
