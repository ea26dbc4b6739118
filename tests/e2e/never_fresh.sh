#!/usr/bin/env bash
# A run is never started anew where an earlier one would be lost.
source "$(dirname "$0")/lib.bash"

without_checkpoint() {
  local run=$temp/bare
  train "$run" run.stop_at_step=3 checkpoint.save_at_exit=false
  cp "$run/metrics.jsonl" "$temp/before"
  code 2 train "$run"
  says "$run holds an earlier run"
  says "run.fresh=true"
  cmp "$run/metrics.jsonl" "$temp/before"
  code 2 train_ranks 2 "$run"
  same "$(grep -c 'holds an earlier run' "$temp/out")" 1
  train "$run" run.fresh=true
  cmp "$run.before-1/metrics.jsonl" "$temp/before"
}

after_an_unfinished_save() {
  local run=$temp/unfinished
  mkdir -p "$run/ckpt/step-00000003.a1.tmp"
  code 2 train "$run"
  says "holds an earlier run"
}

only_damaged() {
  local run=$temp/damaged
  train "$run" run.stop_at_step=4 checkpoint.every=2
  rm "$run/ckpt/step-00000002/MANIFEST.json"
  truncate -s -1 "$run/ckpt/step-00000004/shard-00000.h5"
  code 4 train "$run"
  says "no checkpoint in $run can be used"
  says "step-00000002 is not used"
  says "step-00000004 is not used"
  same "$(wc -l <"$run/metrics.jsonl")" 4
}

newest_damaged() {
  local run=$temp/newest
  train "$run" run.stop_at_step=4 checkpoint.every=2
  printf xxxxxxxx | dd of="$run/ckpt/step-00000004/shard-00000.h5" bs=1 seek=20000 conv=notrunc
  train "$run" | tee "$temp/out"
  says "step-00000004 is not used"
  says "step-00000002 (verified"
  train "$temp/straight"
  same "$(hash "$run")" "$(hash "$temp/straight")"
}

not_resumed() {
  local run=$temp/none
  train "$run" run.stop_at_step=4
  code 2 train "$run" checkpoint.resume=none
  says "holds an earlier run"
}

earlier_branch() {
  local run=$temp/branch
  train "$run" checkpoint.every=4
  code 2 train "$run" "checkpoint.resume='$run/ckpt/step-00000004'"
  says "has a checkpoint of step 12"
}

leftovers_of_a_start() {
  local run=$temp/started
  mkdir -p "$run/log"
  touch "$run/resolved.toml" "$run/log/run.log"
  train "$run" run.stop_at_step=1
}

unfinished_beside_good() {
  local run=$temp/beside
  train "$run" run.stop_at_step=4
  cp -r "$run/ckpt/step-00000004" "$run/ckpt/step-00000008.a1.tmp"
  train "$run" run.stop_at_step=6 | tee "$temp/out"
  says "removed"
  says "step-00000008.a1.tmp"
  [ ! -e "$run/ckpt/step-00000008.a1.tmp" ]
}

try run_without_a_checkpoint without_checkpoint
try unfinished_save after_an_unfinished_save
try only_damaged_checkpoints only_damaged
try newest_checkpoint_damaged newest_damaged
try resume_none not_resumed
try branch_among_later_checkpoints earlier_branch
try start_that_made_no_step leftovers_of_a_start
try unfinished_save_beside_a_checkpoint unfinished_beside_good
finish
