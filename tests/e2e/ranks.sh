#!/usr/bin/env bash
# Data-parallel ranks under mpirun equal one rank, to FP32 rounding. layouts.sh has the other axes.
source "$(dirname "$0")/lib.bash"

compare() { # RUN OTHER: losses and norms of every step
  "$FERRY_PYTHON" - "$1/metrics.jsonl" "$2/metrics.jsonl" <<'PYTHON'
import json, sys
one, other = ([json.loads(line) for line in open(path)] for path in sys.argv[1:])
assert len(one) == len(other) == 12, (len(one), len(other))
worst = 0
for a, b in zip(one, other):
    assert a["samples"] == b["samples"] and a["lr"] == b["lr"], (a, b)
    assert sum(map(sum, a["expert_tokens"])) == sum(map(sum, b["expert_tokens"])), a["step"]
    for key, limit in (("loss", 1e-5), ("aux_loss", 1e-3), ("grad_norm", 1e-3)):
        difference = abs(a[key] - b[key]) / abs(a[key])
        worst = max(worst, difference / limit)
        assert difference <= limit, (a["step"], key, a[key], b[key])
print("largest difference of its limit:", worst)
PYTHON
}

# Relative distance of each stored tensor after the first step.
compare_weights() {
  "$FERRY_PYTHON" - "$1" "$2" <<'PYTHON'
import sys
import h5py, numpy
one, other = (h5py.File(path + "/ckpt/step-00000001/global.h5", "r") for path in sys.argv[1:])
names = []
one["model"].visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset)
                        else None)
assert len(names) > 10, names
for name in names:
    a, b = (file["model"][name][...].astype(numpy.float64) for file in (one, other))
    distance = numpy.linalg.norm(a - b) / max(numpy.linalg.norm(a), 1e-30)
    assert distance <= 1e-5, (name, distance)
PYTHON
}

one() { train "$temp/one"; }

many() {
  train_ranks "$1" "$temp/ranks-$1" >"$temp/out"
  says "$1 rank(s)"
  says "DP$1"
  compare "$temp/one" "$temp/ranks-$1"
  same "$(wc -l <"$temp/ranks-$1/grid.txt")" "$(($(wc -l <"$temp/one/grid.txt") + 2 * ($1 - 1)))"
}

weights() {
  train "$temp/first" run.stop_at_step=1
  train_ranks "$1" "$temp/first-$1" run.stop_at_step=1
  compare_weights "$temp/first" "$temp/first-$1"
}

other_number() { # FROM TO: a checkpoint of one number of ranks continues on another
  local run=$temp/from-$1-to-$2
  train_ranks "$1" "$run" run.stop_at_step=6
  train_ranks "$2" "$run"
  compare "$temp/one" "$run"
}

evaluation() {
  "$FERRY" eval "$temp/one" --json >"$temp/one.json"
  ranks 2 "$FERRY" eval "$temp/one" --json >"$temp/two.json"
  "$FERRY_PYTHON" - "$temp/one.json" "$temp/two.json" <<'PYTHON'
import json, sys
one, two = (json.load(open(path)) for path in sys.argv[1:])
assert one["tokens"] == two["tokens"], (one, two)
assert abs(one["valid_loss"] - two["valid_loss"]) < 1e-6 * one["valid_loss"], (one, two)
PYTHON
}

indivisible() {
  code 2 train_ranks 3 "$temp/three"
  says "batch.global"
  same "$(grep -c 'is not a multiple' "$temp/out")" 1
}

try one_rank one
try two_ranks many 2
try four_ranks many 4
if "$FERRY_PYTHON" -c 'import h5py' 2>/dev/null; then
  try weights_of_two_ranks weights 2
  try weights_of_four_ranks weights 4
else
  skip weights_of_two_ranks "no h5py"
  skip weights_of_four_ranks "no h5py"
fi
try from_two_ranks_to_one other_number 2 1
try from_one_rank_to_four other_number 1 4
try evaluation_on_two_ranks evaluation
try ranks_that_do_not_divide_are_refused_once indivisible
finish
