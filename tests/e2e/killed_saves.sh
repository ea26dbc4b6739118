#!/usr/bin/env bash
# Four ranks that save after every step are killed with SIGKILL at random times, all of them, one of
# them, or their launcher: nothing acknowledged is lost, nothing is corrupt, and the same command goes
# on. A few kills; two hundred, half of them of asynchronous saves, with FERRY_LONG_FAULTS=1.
source "$(dirname "$0")/lib.bash"
source tests/e2e/kill.bash

num_kills=3
if [ -n "${FERRY_LONG_FAULTS:-}" ]; then num_kills=100; fi

# The process that computes for some rank: what mpirun started watches it.
some_rank() {
  local processes
  mapfile -t processes < <(for watcher in $(pgrep -P "$pid"); do pgrep -P "$watcher"; done)
  [ "${#processes[@]}" -gt 0 ] || return 1
  echo "${processes[RANDOM % ${#processes[@]}]}"
}

# Until the run has acknowledged something since it was launched, or has ended.
wait_for_save() {
  local before=$1 _
  for _ in $(seq 600); do
    if [ "$(acknowledged "$run")" != "$before" ] || [ ! -e "/proc/$pid" ]; then return; fi
    sleep 0.05
  done
  cat "$temp/out"
  echo "no save after 30 s"
  return 1
}

kill_some() {
  local victim all
  mapfile -t all < <(family "$pid")
  case $((RANDOM % 4)) in
    0) kill -KILL "$pid" || true ;; # the launcher
    1 | 2)
      if victim=$(some_rank); then kill -KILL "$victim" || true; else kill -KILL "${all[@]}" || true; fi
      ;;
    3) kill -KILL "${all[@]}" || true ;;
  esac
  wait "$pid" || true
  all_gone "${all[@]}"
}

killed() {
  local run=$temp/$1 kills=0 before arguments resumed=0
  mapfile -t arguments < <(killing "$run" run.steps=1000000 checkpoint.every=1 parallel.expert=2 "${@:2}")
  while [ "$kills" -lt "$num_kills" ]; do
    before=$(acknowledged "$run")
    launch mpirun --oversubscribe -n 4 "$FERRY" train "${arguments[@]}"
    # One in four while it starts; the others while it trains, which is mostly saving.
    if [ -n "$before" ] && [ $((RANDOM % 4)) = 0 ]; then random 100 2000; else
      wait_for_save "$before"
      random 0 400
    fi
    if [ ! -e "/proc/$pid" ]; then
      cat "$temp/out"
      echo "the run ended by itself"
      return 1
    fi
    kill_some
    kills=$((kills + 1))
    if grep -q "^resume .*ckpt/step-" "$temp/out"; then resumed=$((resumed + 1)); fi
    examine "$run"
  done
  before=$(acknowledged "$run")
  mapfile -t arguments < <(killing "$run" run.steps=1000000 checkpoint.every=1 parallel.expert=2 "${@:2}" \
    run.stop_at_step=$((before + 5)))
  ranks 4 "$FERRY" train "${arguments[@]}" | tee "$temp/out"
  grep -q "^resume .*ckpt/step-" "$temp/out"
  "$FERRY" ckpt verify "$run"
  same "$(acknowledged "$run")" $((before + 5))
  echo "$1: $kills kills, $resumed of the starts went on from a checkpoint, $before steps" |
    tee -a "$temp/counts"
}

try blocking_saves killed blocking checkpoint.async=false
try asynchronous_saves killed asynchronous checkpoint.async=true
cat "$temp/counts" 2>/dev/null
finish
