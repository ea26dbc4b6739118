#!/usr/bin/env bash
# Where the optimizer's state lives changes no bit of a run, and any place goes on from any other; what
# is moved is in the metrics; places are dumped; what cannot be is refused.
source "$(dirname "$0")/lib.bash"

base=(run.steps=20 run.deterministic=true checkpoint.save_at_exit=false)
offload=(optimizer.offload.enabled=true)
overlap=(optimizer.offload.overlap_d2h_h2d=true)
two_sides=("${offload[@]}" optimizer.offload.fraction=0.5)

# RUN OTHER STEPS [moves]: the same numbers, to the last bit; with `moves`, the optimizer's bytes went
# both ways.
same_losses() {
  "$FERRY_PYTHON" - "$@" <<'PYTHON'
import json, sys
one, other = ([json.loads(line) for line in open(path + "/metrics.jsonl")] for path in sys.argv[1:3])
assert len(one) == len(other) == int(sys.argv[3]), (len(one), len(other))
for a, b in zip(one, other):
    for key in ("loss", "grad_norm", "aux_loss", "z_loss", "lr", "expert_tokens"):
        assert a[key] == b[key], (a["step"], key, a[key], b[key])
    assert "d2h_bytes" not in a, a
moved = [b for b in other if "optimizer" in b.get("d2h_bytes", {})]
if sys.argv[4:]:  # with overlap a step tells of the update before
    assert len(moved) >= len(other) - 1, other
    assert all(b["h2d_bytes"]["optimizer"] > 0 for b in moved), other
    assert all("offload.optimizer" in b["exposed_s"] for b in moved), other
else:
    assert not moved, other
PYTHON
}

learns() {
  "$FERRY_PYTHON" - "$1/metrics.jsonl" <<'PYTHON'
import json, sys
losses = [json.loads(line)["loss"] for line in open(sys.argv[1])]
assert losses[-1] < losses[0] - 0.1, losses
PYTHON
}

none() {
  train "$temp/none" "${base[@]}"
  train "$temp/bf16" "${base[@]}" model.precision=bf16
  train "$temp/sgd" "${base[@]}" optimizer.name=sgd optimizer.lr=0.1 optimizer.min_lr=0.1
  learns "$temp/none"
  learns "$temp/sgd"
}

place() { # OTHER NAME [moves] OVERRIDES...
  local other=$1 name=$2 moves=()
  shift 2
  while [[ $1 == moves ]]; do moves+=("$1") && shift; done
  train "$temp/$name" "${base[@]}" "${offload[@]}" "$@" >"$temp/out"
  same_losses "$temp/$other" "$temp/$name" 20 "${moves[@]}"
}

# The quick-start model as it is.
quickstart() {
  local arguments=(configs/quickstart.toml run.backend=cpu run.steps=20 run.deterministic=true
    run.log_every=1 checkpoint.save_at_exit=false)
  "$FERRY" train "${arguments[@]}" run.dir="'$temp/quickstart'"
  "$FERRY" train "${arguments[@]}" run.dir="'$temp/quickstart-host'" "${offload[@]}" "${overlap[@]}" |
    tee "$temp/out"
  same_losses "$temp/quickstart" "$temp/quickstart-host" 20 moves
  says "on the host"
}

# Four ranks that share optimizer and experts.
ranks_share() {
  local shared=(parallel.expert=2 optimizer.distributed=true batch.micro=1 run.steps=8
    run.deterministic=true checkpoint.save_at_exit=false)
  train_ranks 4 "$temp/none4" "${shared[@]}"
  train_ranks 4 "$temp/host4" "${shared[@]}" "${offload[@]}" "${overlap[@]}" \
    optimizer.overlap_param_gather=true optimizer.offload.dump_param_groups="$temp/groups4.json"
  same_losses "$temp/none4" "$temp/host4" 8 moves
  "$FERRY_PYTHON" - "$temp/groups4.json" <<'PYTHON'
import json, sys
dump = json.load(open(sys.argv[1]))
assert dump["fraction"] == 1, dump["fraction"]
assert {group["kind"] for group in dump["groups"]} == {"dense", "expert"}, dump["groups"]
for group in dump["groups"]:
    assert group["elements"] == group["host_elements"] > 0, group
assert all(one["place"] == "host" for one in dump["parameters"].values()), dump["parameters"]
PYTHON
}

# Saved with all on the host; gone on with elsewhere. The same digests, before and after.
places_of_a_checkpoint() {
  local run=(run.steps=10 run.deterministic=true model.precision=bf16 checkpoint.save_at_exit=true)
  train "$temp/plain" "${run[@]}" run.stop_at_step=6
  train "$temp/host" "${run[@]}" run.stop_at_step=6 "${offload[@]}" "${overlap[@]}"
  same "$(hash "$temp/host")" "$(hash "$temp/plain")"
  train "$temp/plain" "${run[@]}"
  local fraction
  for fraction in 0 0.5; do
    cp -r "$temp/host" "$temp/host$fraction"
    train "$temp/host$fraction" "${run[@]}" "${offload[@]}" optimizer.offload.fraction=$fraction
    same "$(hash "$temp/host$fraction")" "$(hash "$temp/plain")"
    course "$temp/host$fraction" >"$temp/one" && course "$temp/plain" >"$temp/other"
    cmp "$temp/one" "$temp/other"
  done
}

groups() {
  train "$temp/groups" run.stop_at_step=1 run.steps=20 checkpoint.save_at_exit=false \
    "${two_sides[@]}" optimizer.offload.dump_param_groups="$temp/groups.json" | tee "$temp/out"
  says "optimizer: "
  "$FERRY_PYTHON" - "$temp/groups.json" <<'PYTHON'
import json, sys
dump = json.load(open(sys.argv[1]))
assert dump["fraction"] == 0.5, dump["fraction"]
for kind in ("dense", "expert"):
    own = [group for group in dump["groups"] if group["kind"] == kind]
    all = sum(group["elements"] for group in own)
    assert all / 2 <= sum(group["host_elements"] for group in own) < all, own
ids = {group["id"] for group in dump["groups"]}
assert {one["group"] for one in dump["parameters"].values()} == ids
assert {one["place"] for one in dump["parameters"].values()} == {"host", "device"}
PYTHON
}

refuses() {
  code 2 train "$temp/refused" "${offload[@]}" optimizer.offload.fraction=1.5
  says "optimizer.offload.fraction"
  code 2 train "$temp/refused" optimizer.exp_avg_dtype=bf16
  says "optimizer.exp_avg_dtype"
  says "optimizer.precision_aware"
  code 2 train "$temp/refused" optimizer.precision_aware=true optimizer.name=sgd
  says "optimizer.precision_aware"
  [ ! -e "$temp/refused" ]
  code 4 train "$temp/unwritten" run.stop_at_step=1 checkpoint.save_at_exit=false "${offload[@]}" \
    optimizer.offload.dump_param_groups="$temp/no/such/folder.json"
  says "$temp/no/such/folder.json"
}

try none none
for fraction in 0 0.5 1; do
  for both in false true; do
    moves=()
    [ "$fraction" = 0 ] || moves=(moves)
    try "fraction_$fraction.overlap_$both" place none "$fraction-$both" "${moves[@]}" \
      optimizer.offload.fraction="$fraction" optimizer.offload.overlap_d2h_h2d="$both"
  done
done
try bf16 place bf16 bf16-host moves "${overlap[@]}" model.precision=bf16
try pageable place none pageable moves "${overlap[@]}" optimizer.offload.pin_grads=false \
  optimizer.offload.pin_params=false optimizer.offload.threads=1
try last place none last moves "${overlap[@]}" optimizer.offload.fraction=0.5 \
  optimizer.offload.take=last
try sgd place sgd sgd-host moves "${overlap[@]}" optimizer.name=sgd optimizer.lr=0.1 \
  optimizer.min_lr=0.1
try quickstart quickstart
try ranks_share ranks_share
try places_of_a_checkpoint places_of_a_checkpoint
try groups groups
try refuses refuses
finish
