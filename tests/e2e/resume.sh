#!/usr/bin/env bash
# A run that is stopped and resumed equals one that goes straight on, bit for bit.
source "$(dirname "$0")/lib.bash"

straight() {
  train "$temp/straight" run.eval_every=4
  course "$temp/straight" >"$temp/straight.course"
  same "$(wc -l <"$temp/straight.course")" 12
  train "$temp/again" run.eval_every=4
  course "$temp/again" | cmp - "$temp/straight.course"
  same "$(hash "$temp/again")" "$(hash "$temp/straight")"
}

# In the warm-up, at its end and in the decay.
resumed_at() {
  local run=$temp/resumed-$1
  train "$run" run.eval_every=4 run.stop_at_step="$1"
  same "$(checkpoints "$run")" "step-$(printf %08d "$1") "
  train "$run" run.eval_every=4 | tee "$temp/out"
  says "ckpt/step-$(printf %08d "$1") (verified"
  # stop_at_step evaluates at its end, which a straight run need not do.
  course "$run" | sed "/'step', $1)/s/('valid_loss', [0-9.]*)/('valid_loss', None)/" >"$run.course"
  sed "/'step', $1)/s/('valid_loss', [0-9.]*)/('valid_loss', None)/" "$temp/straight.course" |
    cmp - "$run.course"
  same "$(hash "$run")" "$(hash "$temp/straight")"
}

many_stops() {
  local step run=$temp/many
  for step in 2 5 6 11; do train "$run" run.stop_at_step="$step"; done
  train "$run"
  same "$(hash "$run")" "$(hash "$temp/straight")"
  same "$(wc -l <"$run/metrics.jsonl")" 12
}

killed() {
  local run=$temp/killed last
  local long=(run.steps=2000 checkpoint.every=3)
  start "$run" 1 "${long[@]}"
  wait_for_steps "$run" 8
  wait_for_checkpoint "$run"
  kill -KILL "$pid"
  wait "$pid" || true
  last=$(($(wc -l <"$run/metrics.jsonl") + 3))
  train "$run" "${long[@]}" run.stop_at_step="$last" | tee "$temp/out"
  says "(verified"
  train "$temp/unkilled" "${long[@]}" run.stop_at_step="$last"
  course "$run" | cmp - <(course "$temp/unkilled")
  same "$(hash "$run")" "$(hash "$temp/unkilled")"
}

two_ranks() {
  train_ranks 2 "$temp/two"
  train_ranks 2 "$temp/two-resumed" run.stop_at_step=5
  train_ranks 2 "$temp/two-resumed"
  course "$temp/two-resumed" | cmp - <(course "$temp/two")
  same "$(hash "$temp/two-resumed")" "$(hash "$temp/two")"
}

schedule() {
  local kind=$1
  shift
  train "$temp/$kind" optimizer.schedule="$kind" "$@"
  train "$temp/$kind-resumed" optimizer.schedule="$kind" "$@" run.stop_at_step=9
  train "$temp/$kind-resumed" optimizer.schedule="$kind" "$@"
  course "$temp/$kind-resumed" | cmp - <(course "$temp/$kind")
}

# Other settings are shown in a table, and refused before anything is written unless allowed.
changed() {
  local run=$temp/changed
  train "$run" run.stop_at_step=4
  code 2 train "$run" optimizer.lr=1e-3 parallel.tensor=1 run.seed=7
  says "step-00000004 was trained with other settings"
  says "  --> key           checkpoint  now"
  says "  --> optimizer.lr  0.002       0.001"
  says "checkpoint.allow_changes=[run.seed,optimizer.lr]"
  same "$(wc -l <"$run/metrics.jsonl")" 4
  code 2 train "$run" optimizer.lr=1e-3 checkpoint.allow_changes=[optimiser.lr]
  says "checkpoint.allow_changes names optimiser.lr"
  code 0 train "$run" optimizer.lr=1e-3 checkpoint.allow_changes=[optimizer.lr]
  says "!   optimizer.lr  0.002       0.001  (allowed)"
  code 0 train "$run" optimizer.lr=1e-3
  says "nothing to do"
}

# All ranks get the same refusal, once.
changed_on_two_ranks() {
  local run=$temp/changed-two
  train_ranks 2 "$run" run.stop_at_step=2
  code 2 train_ranks 2 "$run" batch.global=8
  says "  --> batch.global  16          8"
  same "$(grep -c "was trained with other settings" "$temp/out")" 1
  code 0 train_ranks 2 "$run" batch.global=8 checkpoint.allow_changes=batch run.stop_at_step=3
  says "(allowed)"
}

try straight_runs_repeat straight
for step in 1 4 7; do try "resumed_at_step_$step" resumed_at "$step"; done
try resumed_four_times many_stops
try killed_and_resumed killed
try resumed_on_two_ranks two_ranks
try resumed_with_other_settings changed
try resumed_with_another_batch_on_two_ranks changed_on_two_ranks
try resumed_schedule_linear schedule linear
try resumed_schedule_constant schedule constant
try resumed_schedule_wsd schedule wsd optimizer.wsd_decay=4
finish
