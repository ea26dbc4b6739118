#!/usr/bin/env bash
# Every way to share a model among four ranks gives the numbers of one rank, a checkpoint of any of
# them continues in any other, and a layout that is not possible is refused. In float64.
source "$(dirname "$0")/lib.bash"

base=(model.precision=fp64 model.layers=4 moe.layer_freq='[0,1,1,1]' run.steps=5
  optimizer.warmup_steps=2 model.vocab=265)

# RUN OTHER: losses, norms and tokens of experts of every step.
compare() {
  "$FERRY_PYTHON" - "$1/metrics.jsonl" "$2/metrics.jsonl" <<'PYTHON'
import json, sys
one, other = ([json.loads(line) for line in open(path)] for path in sys.argv[1:])
assert [a["step"] for a in one] == [b["step"] for b in other] == [1, 2, 3, 4, 5], other
worst = 0
for a, b in zip(one, other):
    for key in ("samples", "lr", "expert_tokens"):
        assert a[key] == b[key], (a["step"], key, a[key], b[key])
    for key in ("loss", "grad_norm", "aux_loss", "z_loss"):
        difference = abs(a[key] - b[key]) / abs(a[key])
        worst = max(worst, difference)
        assert difference <= 1e-10, (a["step"], key, a[key], b[key])
print("largest relative difference:", worst)
PYTHON
}

one() { train "$temp/one" "${base[@]}"; }

same_numbers() { # NAME OVERRIDES...
  local run=$temp/$1
  shift
  train_ranks 4 "$run" "${base[@]}" checkpoint.save_at_exit=false "$@"
  compare "$temp/one" "$run"
}

# "RANKS OVERRIDES..." of the first three steps, and of the others.
moved() {
  local from to run=$temp/moved-$RANDOM
  read -ra from <<<"$1"
  read -ra to <<<"$2"
  train_ranks "${from[0]}" "$run" "${base[@]}" run.stop_at_step=3 "${from[@]:1}"
  train_ranks "${to[0]}" "$run" "${base[@]}" "${to[@]:1}" | tee "$temp/out"
  says "ckpt/step-00000003 (verified"
  compare "$temp/one" "$run"
}

# The same layout goes on with the same bits.
resumed() { # NAME OVERRIDES...
  local straight=$temp/$1-straight run=$temp/$1-resumed
  shift
  train_ranks 4 "$straight" "${base[@]}" "$@"
  train_ranks 4 "$run" "${base[@]}" run.stop_at_step=3 "$@"
  train_ranks 4 "$run" "${base[@]}" "$@"
  course "$run" | cmp - <(course "$straight")
  same "$(hash "$run")" "$(hash "$straight")"
}

evaluation() {
  "$FERRY" eval "$temp/one" --json >"$temp/eval-one.json"
  local layout
  for layout in "parallel.tensor=2" "parallel.pipeline=2" "parallel.expert=2"; do
    ranks 2 "$FERRY" eval "$temp/one" "$layout" --json >"$temp/eval-two.json"
    "$FERRY_PYTHON" - "$temp/eval-one.json" "$temp/eval-two.json" "$layout" <<'PYTHON'
import json, sys
one, two = (json.load(open(path)) for path in sys.argv[1:3])
assert one["tokens"] == two["tokens"], (one, two)
assert abs(one["valid_loss"] - two["valid_loss"]) < 1e-12 * one["valid_loss"], (one, two, sys.argv)
PYTHON
  done
}

big_plan() {
  "$FERRY" plan configs/mixtral_8x7b.toml --ranks 64 parallel.tensor=2 parallel.expert=8 \
    parallel.pipeline=4 parallel.virtual_stages=2 >"$temp/out"
  says "64 ranks = tensor 2 context 1 data 8 pipeline 4"
  says "64 ranks = expert_tensor 1 expert 8 expert_data 2 pipeline 4"
  says "Et*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4L"
  says "interleaved 1F1B, ranks: 4, micro-batches: 128 in groups of 4, chunks per rank: 2"
}

refused_once() { # TEXT FIX RANKS OVERRIDES...
  local text=$1 fix=$2 count=$3
  shift 3
  code 2 train_ranks "$count" "$temp/refused" "$@"
  same "$(grep -cF "error: $text" "$temp/out")" 1
  says "try : $fix"
  [ ! -e "$temp/refused" ]
}

try one_rank one
try tensor same_numbers tensor parallel.tensor=2
try tensor_with_sequence same_numbers sequence parallel.tensor=2 parallel.sequence=true
try expert same_numbers expert parallel.expert=2
try expert_tensor same_numbers expert_tensor parallel.expert=2 parallel.expert_tensor=2
try pipeline same_numbers pipeline parallel.pipeline=2
try virtual_stages same_numbers virtual parallel.pipeline=2 parallel.virtual_stages=2
try distributed_optimizer same_numbers distributed optimizer.distributed=true \
  optimizer.overlap_param_gather=true
try optimizer_not_distributed same_numbers not_distributed optimizer.distributed=false
try all_gather_dispatcher same_numbers all_gather parallel.expert=4 moe.dispatcher=allgather
try rows_in_place same_numbers in_place moe.gather=true parallel.tensor=2 parallel.pipeline=2
try uneven_layout same_numbers uneven parallel.pipeline=4 "parallel.layout='E|tt||ttL'"
try all_axes same_numbers all parallel.tensor=2 parallel.sequence=true parallel.expert=2 \
  parallel.pipeline=2

try tensor_to_expert moved "4 parallel.tensor=2" "4 parallel.expert=4"
try virtual_stages_to_data moved "4 parallel.pipeline=2 parallel.virtual_stages=2" \
  "4 optimizer.distributed=false"
try expert_tensor_to_pipeline moved "4 parallel.expert=2 parallel.expert_tensor=2" \
  "2 parallel.pipeline=2"
try four_ranks_to_one moved "4 parallel.tensor=2 parallel.sequence=true parallel.pipeline=2" "1"
try one_rank_to_four moved "1" "4 parallel.tensor=2 parallel.expert=2 parallel.pipeline=2"

try resumed_with_tensor resumed tensor parallel.tensor=2 parallel.sequence=true
try resumed_with_all_axes resumed all parallel.tensor=2 parallel.expert=2 parallel.pipeline=2 \
  optimizer.overlap_param_gather=true

try evaluation_on_two_ranks evaluation
try plan_of_64_ranks big_plan
try experts_that_do_not_divide refused_once "parallel.expert does not divide moe.experts" \
  "parallel.expert = 2 or 4" 3 parallel.expert=3 batch.global=18
try ranks_that_do_not_divide refused_once "the dense grid does not divide the ranks" "2 or 4" \
  3 parallel.tensor=2
finish
