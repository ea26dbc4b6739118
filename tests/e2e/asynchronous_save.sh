#!/usr/bin/env bash
# Saves beside training: they change no number, hold the state of their step, and a disk that is
# full ends a run only where it promises a save.
source "$(dirname "$0")/lib.bash"

slow=(debug.slow_writer_mb_s=2 checkpoint.every=4 checkpoint.keep=0)

# without RANKS LAYOUT...: a run without saves, one whose saves stop it, and one with saves beside
# training, which are in flight over steps.
same_numbers() {
  local count=$1 kind step run=$temp/same
  shift
  train_ranks "$count" "$run-none" "$@"
  train_ranks "$count" "$run-blocking" "$@" checkpoint.every=4 checkpoint.keep=0 checkpoint.async=false
  train_ranks "$count" "$run-async" "$@" "${slow[@]}"
  for kind in blocking async; do course "$run-$kind" | cmp - <(course "$run-none"); done
  for step in 04 08 12; do
    same "$(hash "$run-async/ckpt/step-000000$step")" "$(hash "$run-blocking/ckpt/step-000000$step")"
  done
  grep -c '"beside_training":true' "$run-async/events.jsonl"
  rm -rf "$run"-*
}

resumes() {
  train "$temp/resumed" "${slow[@]}" run.stop_at_step=8
  train "$temp/resumed" "${slow[@]}"
  train "$temp/straight"
  same "$(hash "$temp/resumed")" "$(hash "$temp/straight")"
}

# What a limit of file sizes refuses stands for a full disk; shards are the largest files.
limited() {
  (
    trap '' XFSZ
    ulimit -f 300
    "$@"
  )
}

full_disk() {
  code 4 limited train "$temp/full" checkpoint.every=4
  says "! CHECKPOINT OF STEP 4 FAILED: "
  says "training goes on"
  says "error: "
  same "$(grep -c '"save_failed"' "$temp/full/events.jsonl")" 3
  same "$(wc -l <"$temp/full/metrics.jsonl")" 12
  code 0 limited train "$temp/survives" checkpoint.every=4 checkpoint.save_at_exit=false
  # And there is room again.
  code 0 train "$temp/full" run.steps=12 run.fresh=true
}

grace() {
  FERRY_GRACE_S=0 code 0 train "$temp/grace" checkpoint.every=4
  says "is ended after 0.0 s (FERRY_GRACE_S)"
  FERRY_GRACE_S=600 code 0 train "$temp/enough" checkpoint.every=4
  ! grep FERRY_GRACE_S "$temp/out"
  FERRY_GRACE_S=soon code 2 train "$temp/soon"
  says "FERRY_GRACE_S = 'soon'"
}

host=(optimizer.offload.enabled=true optimizer.offload.threads=1)
try one_rank same_numbers 1
try expert_parallel same_numbers 2 parallel.expert=2
try distributed_optimizer same_numbers 2 optimizer.distributed=true
try all_on_the_host same_numbers 1 "${host[@]}" optimizer.offload.fraction=1
try half_on_the_host same_numbers 2 "${host[@]}" optimizer.offload.fraction=0.5 \
  optimizer.offload.overlap_d2h_h2d=true
try few_copies same_numbers 1 "${host[@]}" optimizer.offload.fraction=1 checkpoint.copy_gib=0.0005
try resumed resumes
try full_disk full_disk
try grace grace
finish
