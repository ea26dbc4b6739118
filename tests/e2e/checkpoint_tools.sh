#!/usr/bin/env bash
# A checkpoint is open to stock HDF5 tools and to ferry's own.
source "$(dirname "$0")/lib.bash"

run=$temp/run
newest=$run/ckpt/step-00000012

trained() {
  train_ranks 2 "$run" checkpoint.every=6 run.eval_every=6
  same "$(ls "$newest" | tr '\n' ' ')" "MANIFEST.json global.h5 shard-00000.h5 shard-00001.h5 "
}

with_h5ls() {
  h5ls -r "$newest/global.h5" | tee "$temp/out"
  for name in model/embedding/weight model/layers/1/attention/qkv/weight \
    model/layers/1/moe/router/weight optimizer/exp_avg/layers/0/moe/experts/fc2/weight; do
    grep -q "^/$name  *Dataset {" "$temp/out" || {
      echo "no $name"
      return 1
    }
  done
  grep -q '^/model/layers/0/moe/experts/fc1/weight  *Dataset {8, 64, 64}' "$temp/out"
  grep -q '^/model/embedding/weight  *Dataset {264, 64}' "$temp/out"
}

with_h5dump() {
  h5dump -A "$newest/global.h5" >"$temp/out"
  says "ATTRIBUTE"
  says "running mean of squared gradients"
  h5dump -d /model/final_norm/weight "$newest/global.h5" >"$temp/out"
  says "H5T_IEEE_F32LE"
}

with_h5py() {
  "$FERRY_PYTHON" - "$newest/global.h5" <<'PYTHON'
import sys
import h5py, numpy
with h5py.File(sys.argv[1], "r") as file:
    shapes = {}
    file["model"].visititems(lambda name, item: shapes.update({name: item.shape})
                             if isinstance(item, h5py.Dataset) else None)
    assert shapes["layers/0/moe/experts/fc1/weight"] == (8, 64, 64), shapes
    for group in ("model", "optimizer/exp_avg", "optimizer/exp_avg_sq"):
        for name, shape in shapes.items():
            data = file[group][name]
            assert data.dtype == numpy.float32 and data.shape == shape, (group, name, data)
            values = data[...]
            assert numpy.isfinite(values).all(), (group, name)
            # A virtual dataset whose source is missing reads as zeros.
            assert numpy.count_nonzero(values) > 0, (group, name)
    assert (file["optimizer/exp_avg_sq/embedding/weight"][...] >= 0).all()
    assert int(file["state/step"][()]) == 12
    assert int(file["state/samples"][()]) == 12 * 16
PYTHON
}

listed() {
  "$FERRY" ckpt list "$run" | tee "$temp/out"
  same "$(grep -c 'ckpt/step-' "$temp/out")" 2
  says "step-00000006"
}

shown() {
  "$FERRY" ckpt show "$newest" | tee "$temp/out"
  says "step        12"
  says "model/embedding/weight"
  says "[264, 64]"
  "$FERRY" ckpt show "$run" --json | "$FERRY_PYTHON" -c '
import json, sys
shown = json.load(sys.stdin)
assert shown["step"] == 12 and shown["state"]["samples"] == 192, shown["state"]
assert shown["layout"] == "world 2 = tp 1 cp 1 dp 2 pp 1 vpp 1 | etp 1 ep 1 edp 2", shown["layout"]
assert shown["writer"].startswith("ferry "), shown["writer"]
assert shown["parent"]["step"] == 6, shown["parent"]
'
}

verified() {
  "$FERRY" ckpt verify "$run" | tee "$temp/out"
  says "is intact: step 12"
}

hashed() {
  same "$(hash "$run")" "$(hash "$newest")"
  [ "$(hash "$run")" != "$(hash "$run/ckpt/step-00000006")" ]
  hash "$run" | grep -Eq '^[0-9a-f]{32,}$'
}

different() {
  code 0 "$FERRY" ckpt diff "$newest" "$run"
  says "the same bits: "
  code 4 "$FERRY" ckpt diff "$run/ckpt/step-00000006" "$newest"
  grep -Eq '^model/embedding/weight: [0-9]+ of 16896 elements differ, by at most .*; first \[' \
    "$temp/out"
  says "samples: 96 and 192"
  "$FERRY" ckpt diff "$run/ckpt/step-00000006" "$newest" --json 2>/dev/null >"$temp/diff.json" ||
    same "$?" 4
  "$FERRY_PYTHON" - "$temp/diff.json" <<'PYTHON'
import json, sys
diff = json.load(open(sys.argv[1]))
assert not diff["equal"] and diff["num_tensors"] == len(diff["tensors"]) > 30, diff
assert all(0 < t["largest_absolute"] and t["different"] <= t["elements"] for t in diff["tensors"])
PYTHON
}

# By another number of writers; the run goes on from it.
resharded() {
  local writers out
  for writers in 1 5; do
    out=$temp/resharded-$writers
    "$FERRY" ckpt reshard "$run/ckpt/step-00000006" "$out" --writers "$writers"
    same "$(hash "$out")" "$(hash "$run/ckpt/step-00000006")"
    same "$(ls "$out/ckpt/step-00000006" | grep -c shard-)" "$writers"
    train_ranks 2 "$out" | tee "$temp/out"
    says "ckpt/step-00000006 (verified"
    same "$(hash "$out")" "$(hash "$run")"
  done
  code 2 "$FERRY" ckpt reshard "$run" "$out" --writers 2
  says "error: $out exists"
}

pruned_by_hand() {
  local run=$temp/by-hand
  train "$run" checkpoint.every=3 checkpoint.keep=10
  same "$(checkpoints "$run")" "step-00000003 step-00000006 step-00000009 step-00000012 "
  code 2 "$FERRY" ckpt prune "$run" --keep 1
  says "error: --keep 1"
  "$FERRY" ckpt prune "$run" --keep 2 --dry-run | tee "$temp/out"
  says "2 of 4 checkpoints would be removed"
  same "$(checkpoints "$run")" "step-00000003 step-00000006 step-00000009 step-00000012 "
  truncate -s -1 "$run/ckpt/step-00000009/global.h5"
  "$FERRY" ckpt prune "$run" --keep 2 | tee "$temp/out"
  says "leave   $run/ckpt/step-00000009"
  same "$(checkpoints "$run")" "step-00000006 step-00000009 step-00000012 "
}

evaluated() {
  "$FERRY" eval "$newest" --json >"$temp/newest.json"
  "$FERRY" eval "$run/ckpt/step-00000006" --json >"$temp/older.json"
  "$FERRY_PYTHON" - "$run/metrics.jsonl" "$temp/older.json" "$temp/newest.json" <<'PYTHON'
import json, sys
steps = [json.loads(line) for line in open(sys.argv[1])]
logged = {step["step"]: step["valid_loss"] for step in steps if "valid_loss" in step}
for path in sys.argv[2:]:
    result = json.load(open(path))
    wanted = logged[result["step"]]
    assert abs(result["valid_loss"] - wanted) < 1e-6 * wanted, (result, wanted)
PYTHON
}

pruned() {
  train "$temp/pruned" checkpoint.every=2 checkpoint.keep=2
  same "$(checkpoints "$temp/pruned")" "step-00000010 step-00000012 "
}

try saved_by_two_ranks trained
for tool in h5ls h5dump; do
  if command -v "$tool" >/dev/null; then
    try "$tool" "with_$tool"
  else
    skip "$tool" "not installed"
  fi
done
if "$FERRY_PYTHON" -c 'import h5py' 2>/dev/null; then
  try h5py with_h5py
else
  skip h5py "not installed"
fi
try ckpt_list listed
try ckpt_show shown
try ckpt_verify verified
try ckpt_hash hashed
try ckpt_diff different
try ckpt_reshard resharded
try ckpt_prune pruned_by_hand
try eval_gives_the_logged_loss evaluated
try keep_newest pruned
finish
