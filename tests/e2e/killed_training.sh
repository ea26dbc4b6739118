#!/usr/bin/env bash
# A run that is killed with SIGKILL at random times and started again until it is done gives the
# losses and the weights of a run that was left alone, bit for bit. A few kills; a hundred, half of them
# of runs that save asynchronously, with FERRY_LONG_FAULTS=1.
source "$(dirname "$0")/lib.bash"
source tests/e2e/kill.bash

steps=60
num_kills=3
if [ -n "${FERRY_LONG_FAULTS:-}" ]; then num_kills=50; fi

left_alone() {
  local arguments
  mapfile -t arguments < <(killing "$temp/straight" run.steps="$steps" "$@")
  timeout 60 "$FERRY" train "${arguments[@]}"
  course "$temp/straight" >"$temp/straight.course"
  same "$(wc -l <"$temp/straight.course")" "$steps"
}

compare() {
  course "$1" | cmp - "$temp/straight.course"
  same "$(hash "$1")" "$(hash "$temp/straight")"
}

# KIND OVERRIDES...: starts until there were enough kills; each run that gets to its end is compared.
killed() {
  local kind=$1 run arguments status kills=0 runs=0 refused=0
  shift
  while [ "$kills" -lt "$num_kills" ]; do
    run=$temp/$kind-$runs
    mapfile -t arguments < <(killing "$run" run.steps="$steps" checkpoint.every=3 "$@")
    while true; do
      launch "$FERRY" train "${arguments[@]}"
      random 20 900
      if [ "$kills" -lt "$num_kills" ]; then kill -KILL -- "-$pid" || true; fi
      status=0
      wait "$pid" || status=$?
      examine "$run"
      case $status in
        0) break ;;
        137) kills=$((kills + 1)) ;;
        2) # Killed before its first checkpoint: it says so, and is begun anew on request.
          says "holds an earlier run" || { cat "$temp/out" && return 1; }
          same "$(acknowledged "$run")" ""
          rm -r "$run"
          refused=$((refused + 1))
          ;;
        *)
          cat "$temp/out"
          return 1
          ;;
      esac
    done
    compare "$run"
    rm -r "$run"
    runs=$((runs + 1))
  done
  echo "$kind: $kills kills, $runs runs to their end, $refused begun anew" | tee -a "$temp/counts"
  [ "$runs" -gt 0 ]
}

try left_alone left_alone
try killed_saving_blockingly killed blocking checkpoint.async=false
try killed_saving_asynchronously killed asynchronous checkpoint.async=true
cat "$temp/counts" 2>/dev/null
finish
