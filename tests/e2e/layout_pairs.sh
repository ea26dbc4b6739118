#!/usr/bin/env bash
# What one layout of ranks saved, another loads and saves again with the same digest: each layout
# after each other with FERRY_LONG_PAIRS=1, else each after two others.
source "$(dirname "$0")/lib.bash"

layouts=(
  "1"
  "2 parallel.tensor=2 optimizer.distributed=false"
  "2 parallel.expert=2"
  "2 parallel.pipeline=2 optimizer.offload.enabled=true optimizer.offload.fraction=0.5"
  "2 parallel.pipeline=2 parallel.virtual_stages=2"
  "4 parallel.tensor=2 parallel.expert=2"
  "2 optimizer.distributed=true"
)
names=(one_rank tensor expert pipeline virtual_stages tensor_expert distributed)
base=(model.layers=4 batch.global=16 run.stop_at_step=2)

# in_layout INDEX RUN OVERRIDES...
in_layout() {
  local layout run=$2
  read -ra layout <<<"${layouts[$1]}"
  train_ranks "${layout[0]}" "$run" "${base[@]}" "${layout[@]:1}" "${@:3}"
}

saved() { in_layout "$1" "$temp/${names[$1]}"; }

# A run of its own that begins at the end, so that all it does is to load and to save.
saved_again() {
  local from=$temp/${names[$1]} run=$temp/pair
  rm -rf "$run"
  in_layout "$2" "$run" checkpoint.resume="'$from/ckpt/step-00000002'" >"$temp/out"
  says "nothing to do: step 2 of 2 is done"
  same "$(hash "$run")" "$(hash "$from")"
  "$FERRY" ckpt diff "$from" "$run" >"$temp/out"
  "$FERRY" ckpt show "$run" >"$temp/out"
  says " of run $(cat "$from/RUN_ID")"
  same "$(sed -n 's/^run  *//p' "$temp/out")" "$(cat "$run/RUN_ID")"
}

num=${#layouts[@]}
for ((i = 0; i < num; i++)); do try "save_${names[i]}" saved "$i"; done
for ((i = 0; i < num; i++)); do
  distances=(1 3)
  if [ -n "${FERRY_LONG_PAIRS:-}" ]; then mapfile -t distances < <(seq 0 $((num - 1))); fi
  for distance in "${distances[@]}"; do
    j=$(((i + distance) % num))
    try "${names[i]}_to_${names[j]}" saved_again "$i" "$j"
  done
done
finish
