#!/usr/bin/env bash
# Whatever goes wrong: one clear error, the right exit status, and nothing lost.
source "$(dirname "$0")/lib.bash"

# An error is one text that says how to go on.
clear() {
  same "$(grep -c '^\(\[rank [0-9]*\] \)\?error' "$temp/out")" 1
  for text; do says "$text"; done
}

unknown_key() {
  code 2 train "$temp/run" model.hiden=64
  clear "model.hiden" "model.hidden"
}

wrong_type() {
  code 2 train "$temp/run" run.steps=many
  clear "run.steps" "many"
}

many_errors() {
  code 2 train "$temp/run" model.hiden=64 run.steps=-1 model.heads=3
  says "model.hiden"
  says "run.steps"
  code 2 train_ranks 2 "$temp/run" model.hiden=64
  same "$(grep -c 'model.hiden' "$temp/out")" "$(code 2 train "$temp/run" model.hiden=64 |
    grep -c 'model.hiden')"
}

impossible_sizes() {
  code 2 train "$temp/run" model.heads=4 model.kv_heads=3
  clear "model.kv_heads" "try :"
  code 2 train "$temp/run" moe.top_k=9
  clear "moe.top_k" "try :"
  code 2 train "$temp/run" batch.global=15
  clear "batch.global" "try :"
  [ ! -e "$temp/run" ]
}

missing_feature() {
  code 2 train "$temp/run" data.document_mask=true
  clear "the document mask is not in this version"
}

missing_config() {
  code 2 "$FERRY" train "$temp/absent.toml"
  clear "there is no such file"
  printf 'run = [1\n' >"$temp/bad.toml"
  code 2 "$FERRY" train "$temp/bad.toml"
  clear "bad.toml:"
}

copy_data() { cp data/quickstart/train.{bin,idx} "$temp/"; }

missing_data() {
  code 3 train "$temp/run" "data.train=['$temp/absent']"
  clear "$temp/absent" "ferry data build"
  code 3 train_ranks 2 "$temp/run" "data.train=['$temp/absent']"
  clear "$temp/absent"
}

truncated_data() {
  copy_data
  truncate -s -1000 "$temp/train.bin"
  code 3 train "$temp/run" "data.train=['$temp/train']"
  clear "$temp/train.bin" "truncated"
  copy_data
  truncate -s 100 "$temp/train.idx"
  code 3 train "$temp/run" "data.train=['$temp/train']"
  clear "$temp/train.idx"
}

damaged_index() {
  copy_data
  printf 'XX' | dd of="$temp/train.idx" bs=1 conv=notrunc
  code 3 train "$temp/run" "data.train=['$temp/train']"
  clear "$temp/train.idx"
}

id_out_of_range() {
  copy_data
  printf '\377\377' | dd of="$temp/train.bin" bs=1 seek=2000 conv=notrunc
  code 3 train "$temp/run" "data.train=['$temp/train']"
  clear "$temp/train.bin" "document 0" "token 1000" "65535"
  code 3 "$FERRY" data check "$temp/train" --vocab 264
  says "token 1000"
}

small_vocabulary() {
  code 2 train "$temp/run" model.vocab=200
  clear "model.vocab = 200 is too small" "try : model.vocab=257"
}

file_in_the_way() {
  echo text >"$temp/file"
  code 4 train "$temp/file"
  clear "cannot prepare the run directory $temp/file"
  code 4 train "$temp/file/below"
  same "$(cat "$temp/file")" text
}

damaged_checkpoint() {
  local run=$temp/damaged
  train "$run" run.stop_at_step=4
  printf xxxxxxxx | dd of="$run/ckpt/step-00000004/shard-00000.h5" bs=1 seek=20000 conv=notrunc
  code 4 "$FERRY" ckpt verify "$run/ckpt/step-00000004"
  says "shard-00000.h5"
  code 4 "$FERRY" ckpt hash "$run"
  code 4 "$FERRY" eval "$run"
  code 4 train "$run"
  says "no checkpoint in $run can be used"
  code 4 train "$temp/other" "checkpoint.resume='$run/ckpt/step-00000004'"
  says "shard-00000.h5"
}

half_a_checkpoint() {
  local run=$temp/half
  train "$run" run.stop_at_step=4
  rm "$run/ckpt/step-00000004/shard-00000.h5"
  code 4 "$FERRY" ckpt verify "$run/ckpt/step-00000004"
  says "shard-00000.h5"
  code 4 train "$run"
  says "step-00000004 is not used"
}

no_checkpoint() {
  code 4 "$FERRY" ckpt verify "$temp/absent"
  clear "does not exist"
  code 4 train "$temp/run" "checkpoint.resume='$temp/absent'"
  clear "$temp/absent"
}

# A small disk of its own for a test, with a checkpoint of step 2 on it.
small_disk() {
  disk=$temp/disk
  mkdir -p "$disk"
  mount -t tmpfs -o size=3m tmpfs "$disk"
  # shellcheck disable=SC2064
  trap "umount '$disk'" EXIT
  train "$disk/run" run.steps=20000 run.stop_at_step=2
}

# There is no room for another checkpoint: said before the first step.
no_room() {
  small_disk
  code 4 train "$disk/run" run.steps=20000 run.stop_at_step=4
  clear "are free"
  same "$(wc -l <"$disk/run/metrics.jsonl")" 2
  "$FERRY" ckpt verify "$disk/run"
  mount -o remount,size=9m "$disk"
  train "$disk/run" run.steps=20000 run.stop_at_step=4
  "$FERRY" ckpt verify "$disk/run/ckpt/step-00000004"
}

# The disk becomes full while a run goes on.
full_disk() {
  local status=0
  small_disk
  mount -o remount,size=9m "$disk"
  start "$disk/run" 1 run.steps=20000
  head -c 100m /dev/zero >"$disk/filler" 2>/dev/null || true
  touch "$disk/run/SAVE" || true
  wait "$pid" || status=$?
  cat "$temp/out"
  same "$status" 4
  clear
  grep -q 'disk is full\|not enough space' "$temp/out"
  same "$(checkpoints "$disk/run")" "step-00000002 "
  "$FERRY" ckpt verify "$disk/run"
  rm "$disk/filler"
  train "$disk/run" run.steps=20000 run.stop_at_step=4
  "$FERRY" ckpt verify "$disk/run/ckpt/step-00000004"
}

no_gpu() {
  code 5 train "$temp/run" run.backend=cuda
  clear 'run.backend = "cuda", but no GPU can be used' "try : run.backend=cpu"
}

nonfinite() {
  local run=$temp/nonfinite
  code 6 train "$run" debug.nonfinite_at_step=5 checkpoint.every=4
  clear "non-finite numbers at step 5" "the checkpoint of step 4 is good"
  "$FERRY" ckpt verify "$run"
  train "$run"
  same "$(wc -l <"$run/metrics.jsonl")" 12
  code 6 train_ranks 2 "$temp/nonfinite-2" debug.nonfinite_at_step=5
  clear "non-finite numbers at step 5"
}

graphs_without_a_gpu() {
  code 2 train "$temp/graphs" run.backend=auto model.precision=fp64 cuda_graph.impl=local
  says "error: cuda_graph.impl = local on the CPU"
}

one_rank_throws() { # RANK: the job ends at once, and rank by rank nothing waits
  local before=$SECONDS
  code 1 train_ranks 2 "$temp/throws-$1" debug.throw_at.rank="$1" debug.throw_at.step=3
  clear "[rank $1] error: debug.throw_at: rank $1 at step 3"
  [ $((SECONDS - before)) -lt 30 ]
  [ "$(wc -l <"$temp/throws-$1/metrics.jsonl")" = 2 ]
}

one_rank_killed() {
  local run=$temp/lost status=0 victim
  start "$run" 2 run.steps=20000 checkpoint.every=2
  wait_for_checkpoint "$run"
  victim=$(pgrep -P "$pid" | tail -n 1)  # one that mpirun started
  kill -KILL "$victim"
  for _ in $(seq 300); do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  wait "$pid" || status=$?
  [ "$status" != 0 ]
  "$FERRY" ckpt verify "$run"
}

try unknown_key unknown_key
try wrong_type wrong_type
try many_errors_at_once many_errors
try impossible_sizes impossible_sizes
try missing_feature missing_feature
try missing_configuration missing_config
try missing_data missing_data
try truncated_data truncated_data
try damaged_index damaged_index
try id_out_of_range id_out_of_range
try small_vocabulary small_vocabulary
try file_in_the_way file_in_the_way
try damaged_checkpoint damaged_checkpoint
try half_a_checkpoint half_a_checkpoint
try no_checkpoint no_checkpoint
mkdir "$temp/probe"
if mount -t tmpfs -o size=1m tmpfs "$temp/probe" 2>/dev/null; then
  umount "$temp/probe"
  try no_room_for_a_checkpoint no_room
  try full_disk full_disk
else
  skip no_room_for_a_checkpoint "tmpfs cannot be mounted"
  skip full_disk "tmpfs cannot be mounted"
fi
if "$FERRY" version --json | "$FERRY_PYTHON" -c 'import json, sys; sys.exit(bool(json.load(sys.stdin)["gpus"]))'; then
  try cuda_without_a_gpu no_gpu
else
  skip cuda_without_a_gpu "there is a GPU"
fi
try graphs_without_a_gpu graphs_without_a_gpu
try nonfinite_numbers nonfinite
try rank_0_throws one_rank_throws 0
try rank_1_throws one_rank_throws 1
try rank_is_killed one_rank_killed
finish
