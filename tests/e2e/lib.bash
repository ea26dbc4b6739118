# What the scripts beside it share; each begins with `source "$(dirname "$0")/lib.bash"`.
#
#   try NAME COMMAND...      a test: runs the command (often a function) with `set -e` and prints
#                            `ok NAME`, or `FAIL NAME` with the end of its output
#   skip NAME REASON
#   finish                   the last line of a script: its exit status
#
# Inside a test:
#   small RUN OVERRIDES...   the arguments of a small run of twelve steps in the folder RUN
#   train RUN OVERRIDES...   trains it on one rank;  train_ranks N RUN OVERRIDES...  on N
#   ranks N COMMAND...       runs under mpirun
#   start RUN N OVERRIDES... trains in the background, as process $pid, past its third step
#   code NUMBER COMMAND...   the command must end with this status; its output is in $temp/out
#   says TEXT                what `code` ran must have printed this
#   course RUN               the metrics that must not depend on where a run was stopped
#   hash RUN                 the digest of the newest checkpoint
#   wait_for_steps RUN N     until N steps are in the metrics
#   wait_for_checkpoint RUN  until one is published

cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
FERRY=${FERRY:-$PWD/build/ferry}
FERRY_PYTHON=${FERRY_PYTHON:-python3}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
export FERRY_COMM_TIMEOUT_S=${FERRY_COMM_TIMEOUT_S:-60}

temp=$(mktemp -d "${TMPDIR:-/tmp}/ferry-e2e-XXXXXX")
trap 'rm -rf "$temp"' EXIT
num_failed=0

try() {
  local name=$1 code=0
  shift
  (
    set -euo pipefail
    "$@"
  ) >"$temp/test.log" 2>&1
  code=$?
  if [ "$code" = 0 ]; then
    echo "ok $name"
  else
    num_failed=$((num_failed + 1))
    tail -n 30 "$temp/test.log" | sed 's/^/    /'
    echo "FAIL $name status $code: $(tail -n 1 "$temp/test.log")"
  fi
}

skip() { echo "skip $1 $2"; }

finish() { [ "$num_failed" = 0 ] || exit 1; }

small() {
  printf '%s\n' configs/quickstart.toml "run.dir='$1'" run.backend=cpu run.steps=12 \
    run.log_every=1 run.eval_every=0 run.eval_batches=2 model.layers=2 model.hidden=64 \
    model.head_dim=16 model.ffn=64 model.seq=64 moe.ffn=32 optimizer.lr=2e-3 \
    optimizer.min_lr=2e-4 optimizer.warmup_steps=4 checkpoint.every=0 "${@:2}"
}

train() {
  local arguments
  mapfile -t arguments < <(small "$@")
  timeout 60 "$FERRY" train "${arguments[@]}"
}

ranks() {
  local count=$1
  shift
  timeout 60 mpirun --oversubscribe -n "$count" "$@"
}

train_ranks() {
  local count=$1 arguments
  shift
  mapfile -t arguments < <(small "$@")
  ranks "$count" "$FERRY" train "${arguments[@]}"
}

start() {
  local run=$1 count=$2 arguments launcher=()
  shift 2
  mapfile -t arguments < <(small "$run" "$@")
  if [ "$count" != 1 ]; then launcher=(mpirun --oversubscribe -n "$count"); fi
  "${launcher[@]}" "$FERRY" train "${arguments[@]}" >"$temp/out" 2>&1 &
  pid=$!
  wait_for_steps "$run" 3
}

code() {
  local wanted=$1 status=0
  shift
  "$@" >"$temp/out" 2>&1 || status=$?
  cat "$temp/out"
  if [ "$status" != "$wanted" ]; then
    echo "status $status, not $wanted: $*"
    return 1
  fi
}

says() {
  grep -qF -- "$1" "$temp/out" || {
    echo "not said: $1"
    return 1
  }
}

course() {
  "$FERRY_PYTHON" - "$1/metrics.jsonl" <<'PYTHON'
import json, sys
for line in open(sys.argv[1]):
    step = json.loads(line)
    print(*[(key, step.get(key)) for key in ("step", "samples", "tokens", "loss", "lr",
            "grad_norm", "aux_loss", "z_loss", "valid_loss", "expert_tokens")])
PYTHON
}

hash() { "$FERRY" ckpt hash "$1"; }

checkpoints() { (cd "$1/ckpt" && ls -d step-????????) | tr '\n' ' '; }

wait_for_steps() {
  local _
  for _ in $(seq 400); do
    if [ -e "$1/metrics.jsonl" ] && [ "$(wc -l <"$1/metrics.jsonl")" -ge "$2" ]; then return; fi
    sleep 0.1
  done
  cat "$temp/out"
  echo "no $2 steps after 40 s"
  return 1
}

# A checkpoint is written beside the steps that follow it: what counts on one must wait for it.
wait_for_checkpoint() {
  local _
  for _ in $(seq 400); do
    if [ -e "$1/LATEST" ]; then return; fi
    sleep 0.1
  done
  cat "$temp/out"
  echo "no checkpoint after 40 s"
  return 1
}

same() {
  [ "$1" = "$2" ] || {
    echo "'$1' is not '$2'"
    return 1
  }
}
