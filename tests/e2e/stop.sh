#!/usr/bin/env bash
# Requests to stop or save: files, signals and the time limit. A run that was stopped ends with 76
# and resumes where it was.
source "$(dirname "$0")/lib.bash"

long=(run.steps=20000)

# ended RUN: the job must end with 76 and a checkpoint of its last step, and go on from there.
ended() {
  local run=$1 status=0 steps
  for _ in $(seq 300); do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  if kill -0 "$pid" 2>/dev/null; then
    kill -KILL "$pid"
    echo "still running after 30 s"
    return 1
  fi
  wait "$pid" || status=$?
  cat "$temp/out"
  same "$status" 76
  says "stopped at step"
  steps=$(wc -l <"$run/metrics.jsonl")
  [ -e "$run/ckpt/step-$(printf %08d "$steps")/MANIFEST.json" ]
  "$FERRY" ckpt verify "$run"
  train "$run" "${long[@]}" run.stop_at_step=$((steps + 2))
  same "$(wc -l <"$run/metrics.jsonl")" $((steps + 2))
}

stop_file() {
  start "$temp/stop-file" 1 "${long[@]}"
  touch "$temp/stop-file/STOP"
  ended "$temp/stop-file"
  [ ! -e "$temp/stop-file/STOP" ]
}

signalled() { # SIGNAL RANKS: sent to the program, or to mpirun
  start "$temp/$1-$2" "$2" "${long[@]}"
  kill "-$1" "$pid"
  ended "$temp/$1-$2"
}

saved() { # HOW RANKS: saves and goes on
  local run=$temp/save-$1-$2 steps
  start "$run" "$2" "${long[@]}"
  case $1 in file) touch "$run/SAVE" ;; *) kill "-$1" "$pid" ;; esac
  wait_for_checkpoint "$run"
  steps=$(wc -l <"$run/metrics.jsonl")
  wait_for_steps "$run" $((steps + 2))
  touch "$run/STOP"
  ended "$run"
}

time_limit() {
  local run=$temp/limit
  code 76 train "$run" "${long[@]}" run.time_limit_minutes=0.02
  says "stopped at step"
  "$FERRY" ckpt verify "$run"
}

try stop_file stop_file
try sigusr2 signalled USR2 1
try sigterm signalled TERM 1
try sigusr2_of_mpirun signalled USR2 2
try save_file saved file 1
try sigusr1 saved USR1 1
try sigusr1_of_mpirun saved USR1 2
try time_limit time_limit
finish
