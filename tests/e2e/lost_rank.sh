#!/usr/bin/env bash
# A rank that is killed, crashes, stops or throws: all ranks are gone within five seconds, one
# message names rank, host, step and operation, and the exit status says what to do.
source "$(dirname "$0")/lib.bash"

long=(run.steps=20000)
host=$(hostname)

# The process that computes for a rank of the job $pid: the child of the one that mpirun started.
rank_process() {
  local watcher process
  for watcher in $(pgrep -P "$pid"); do
    process=$(pgrep -P "$watcher")
    if grep -qz "^OMPI_COMM_WORLD_RANK=$1\$" "/proc/$process/environ"; then echo "$process"; fi
  done
}

processes() {
  local watcher
  for watcher in $(pgrep -P "$pid"); do echo "$watcher" && pgrep -P "$watcher"; done
}

alive() { # PIDS: those that are neither gone nor waiting to be reaped
  local process
  for process; do
    case $(sed 's/.*) //' "/proc/$process/stat" 2>/dev/null) in '' | Z*) ;; *) echo "$process" ;; esac
  done
}

# gone WITHIN STATUS: since now, all that $all names must be gone, and the job end with the status.
gone() {
  local limit=$(($(date +%s%N) + $1 * 1000000000)) status=0
  while [ -n "$(alive "${all[@]}")" ] && [ "$(date +%s%N)" -lt "$limit" ]; do sleep 0.05; done
  same "$(alive "${all[@]}")" ""
  wait "$pid" || status=$?
  cat "$temp/out"
  same "$status" "$2"
}

one_message() { same "$(grep -c '\berror: ' "$temp/out")" 1; }

started() { # RUN [OVERRIDES...]
  start "$1" 4 "${long[@]}" checkpoint.every=2 "${@:2}"
  wait_for_checkpoint "$1"
  mapfile -t all < <(processes)
  same "${#all[@]}" 8
}

named() { # RANK: where it was is said by one message
  one_message
  grep -q "^\[rank $1\] error: rank $1 of 4 on $host " "$temp/out"
  grep -q "^  --> step [0-9]*, [a-z]" "$temp/out"
}

killed() { # SIGNAL RANK
  local run=$temp/killed-$1-$2 steps
  started "$run"
  kill "-$1" "$(rank_process "$2")"
  gone 5 75
  named "$2"
  says "rank $2 of 4 on $host was killed by signal $(kill -l "$1")"
  # The same command goes on.
  "$FERRY" ckpt verify "$run"
  steps=$(wc -l <"$run/metrics.jsonl")
  train_ranks 4 "$run" "${long[@]}" run.stop_at_step=$((steps + 2)) >"$temp/resumed"
  grep -q "^resume .*ckpt/step-" "$temp/resumed"
  same "$(wc -l <"$run/metrics.jsonl")" $((steps + 2))
}

stopped() { # RANK
  FERRY_COMM_TIMEOUT_S=3 started "$temp/stopped-$1"
  kill -STOP "$(rank_process "$1")"
  gone 10 75
  named "$1"
  says "was stopped (SIGSTOP) for longer than 3 s"
}

# Nobody stops a rank for ever by hand: one that hangs is found by those that wait for it.
hangs() {
  FERRY_SUPERVISE=0 FERRY_COMM_TIMEOUT_S=3 start "$temp/hangs" 4 "${long[@]}"
  mapfile -t all < <(pgrep -P "$pid")
  kill -STOP "${all[1]}"
  gone 12 75
  one_message
  says "communication hangs: "
  says "the limit is 3 s (FERRY_COMM_TIMEOUT_S)"
  grep -q "^  behind: rank [0-9] on $host (step [0-9]*, .*, for [0-9.]* s)$" "$temp/out"
  grep -q "^  rank: 0 of 4 on $host, step [0-9]*, " "$temp/out"
}

throws() { # RANK
  local before=$SECONDS
  code 1 train_ranks 4 "$temp/throws-$1" debug.throw_at.rank="$1" debug.throw_at.step=3
  [ $((SECONDS - before)) -lt 15 ]
  one_message
  says "[rank $1] error: debug.throw_at: rank $1 at step 3"
  grep -q "^  rank: $1 of 4 on $host, step 3, " "$temp/out"
}

watcher_killed() {
  started "$temp/watcher"
  kill -KILL "$(pgrep -P "$pid" | sed -n 3p)"
  gone 5 137 # mpirun's own number; scripts/launch_mpirun.sh makes it 75
  one_message
  grep -q "^\[rank [0-9]\] error: rank [0-9] of 4 on $host lost the process that watches it" "$temp/out"
  grep -q "^  --> step [0-9]*, [a-z]" "$temp/out"
}

launcher_killed() {
  started "$temp/launcher"
  kill -KILL "$pid"
  gone 5 137
}

try rank_0_killed killed KILL 0
try rank_2_killed killed KILL 2
try rank_3_crashes killed SEGV 3
try rank_stopped stopped 1
try rank_hangs hangs
try rank_0_throws throws 0
try rank_3_throws throws 3
try watcher_killed watcher_killed
try launcher_killed launcher_killed
finish
