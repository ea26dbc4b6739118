#!/usr/bin/env bash
# Offload and recompute change no bit of a run, on one rank and in a pipeline; what is moved is in the
# metrics and in the run directory; what cannot be combined is refused.
source "$(dirname "$0")/lib.bash"

base=(run.steps=10 run.deterministic=true checkpoint.save_at_exit=false model.layers=4
  moe.layer_freq='[0,1,1,1]')
all=attn_norm,qkv_linear,core_attn,attn_proj,mlp_norm,expert_fc1,moe_act
offload=(activation_offload.enabled=true activation_offload.min_tensor_elements=1
  "activation_offload.modules=[$all]")
paged=(paged_stash.enabled=true paged_stash.page_tokens=8)
selective=(recompute.granularity=selective "recompute.modules=[layernorm,moe_act]")

# RUN OTHER [moves [frees]]: the same losses, to the last bit; with `moves`, bytes went both ways. The
# peak of what is saved is lower without `moves`, and with `frees`.
same_losses() {
  "$FERRY_PYTHON" - "$@" <<'PYTHON'
import json, sys
one, other = ([json.loads(line) for line in open(path + "/metrics.jsonl")] for path in sys.argv[1:3])
assert len(one) == len(other) == 10, (len(one), len(other))
for a, b in zip(one, other):
    for key in ("loss", "grad_norm", "aux_loss", "z_loss", "expert_tokens"):
        assert a[key] == b[key], (a["step"], key, a[key], b[key])
    assert "d2h_bytes" not in a and a["activation_bytes"], a
    if sys.argv[3:]:
        assert sum(b["d2h_bytes"].values()) == sum(b["h2d_bytes"].values()) > 0, b
        assert all(f"offload.{module}" in b["exposed_s"] for module in b["d2h_bytes"]), b
if sys.argv[3:]:  # step 1 moves everything, the others what is planned
    moved = [sum(step["d2h_bytes"].values()) for step in other]
    assert moved[0] >= moved[1] > 0 and len(set(moved[1:])) == 1, moved
if sys.argv[3:] != ["moves"]:  # without a limit, memory is free when the host sees it
    peaks = [sum(run[-1]["activation_bytes"].values()) for run in (one, other)]
    assert peaks[1] < peaks[0], peaks
PYTHON
}

none() {
  train "$temp/none" "${base[@]}"
  train_ranks 4 "$temp/none4" "${base[@]}" parallel.pipeline=2 parallel.virtual_stages=2
}

policy() { # NAME [moves [frees]] OVERRIDES...
  local name=$1 moves=()
  shift
  while [[ $1 == moves || $1 == frees ]]; do moves+=("$1") && shift; done
  train "$temp/$name" "${base[@]}" "$@" >"$temp/out"
  same_losses "$temp/none" "$temp/$name" "${moves[@]}"
}

pipeline() {
  train_ranks 4 "$temp/pipeline" "${base[@]}" parallel.pipeline=2 parallel.virtual_stages=2 \
    "${offload[@]}" activation_offload.fraction=0.5 >"$temp/out"
  same_losses "$temp/none4" "$temp/pipeline" moves
  grep -q '^Rank 3 ' "$temp/pipeline/offload_summary.txt"
  grep -q '^Total ' "$temp/pipeline/offload_summary.txt"
}

stash_pipeline() {
  train_ranks 4 "$temp/ep2pp2" "${base[@]}" parallel.pipeline=2 parallel.virtual_stages=2 \
    parallel.expert=2 >"$temp/out"
  train_ranks 4 "$temp/stash4" "${base[@]}" parallel.pipeline=2 parallel.virtual_stages=2 \
    parallel.expert=2 "${paged[@]}" moe.rank_capacity_factor=4 paged_stash.device_factor=-1.1 \
    activation_offload.enabled=true activation_offload.min_tensor_elements=1 \
    "activation_offload.modules=[core_attn,attn_proj]"
  same_losses "$temp/ep2pp2" "$temp/stash4" moves
}

summary() {
  train "$temp/summary" "${base[@]}" run.stop_at_step=3 "${offload[@]}" | tee "$temp/out"
  says "Activation Offload Summary (MB)"
  grep -q expert_fc1 "$temp/summary/offload_summary.txt"
}

nothing_large() {
  train "$temp/large" "${base[@]}" run.stop_at_step=2 activation_offload.enabled=true \
    "activation_offload.modules=[core_attn]" activation_offload.min_tensor_elements=100000000 |
    tee "$temp/out"
  says "activation offload moves nothing"
}

budget() {
  train "$temp/budget" "${base[@]}" activation_offload.enabled=true \
    activation_offload.min_tensor_elements=1 activation_offload.auto_budget=1 | tee "$temp/out"
  says "activation offload chose "
  says ", achieved "
  "$FERRY_PYTHON" - "$temp/none/metrics.jsonl" "$temp/budget/metrics.jsonl" <<'PYTHON'
import json, sys
one, other = ([json.loads(line)["loss"] for line in open(path)] for path in sys.argv[1:3])
assert one == other, (one, other)
PYTHON
}

# NAME AGAIN OVERRIDES...: two ranks that share experts, with limits; AGAIN: whether steps run twice.
stash() {
  local name=$1 again=$2 dispatcher=alltoall
  shift 2
  case " $* " in *moe.dispatcher=allgather*) dispatcher=allgather ;; esac  # adds in another order
  local none="$temp/none2_$dispatcher"
  [ -e "$none" ] || train_ranks 2 "$none" "${base[@]}" parallel.expert=2 \
    "moe.dispatcher=$dispatcher" >"$temp/out"
  train_ranks 2 "$temp/$name" "${base[@]}" parallel.expert=2 "$@" | tee "$temp/out"
  "$FERRY_PYTHON" - "$none" "$temp/$name" "$again" <<'PYTHON'
import json, sys
one, other = ([json.loads(line) for line in open(path + "/metrics.jsonl")] for path in sys.argv[1:3])
assert len(one) == len(other) == 10, (len(one), len(other))
for a, b in zip(one, other):
    for key in ("loss", "grad_norm", "aux_loss", "z_loss", "expert_tokens"):
        assert a[key] == b[key], (a["step"], key, a[key], b[key])
events = [json.loads(line)["event"] for line in open(sys.argv[2] + "/events.jsonl")]
assert ("step_again" in events) == (sys.argv[3] == "again"), events
PYTHON
}

spilled() {
  stash spilled once "${paged[@]}" moe.rank_capacity_factor=4 paged_stash.device_factor=0.2 \
    paged_stash.host_factor=1.5
  grep -q stash_spilled "$temp/spilled/events.jsonl"
  grep -q '"d2h_bytes":{"paged_stash":[1-9]' "$temp/spilled/metrics.jsonl"
}

stash_and_offload() {
  code 2 "$FERRY" plan configs/quickstart.toml paged_stash.enabled=true \
    moe.rank_capacity_factor=1.5 "activation_offload.modules=[expert_fc1]" \
    activation_offload.enabled=true
  says "the stash owns the saved tensors of the experts"
}

offload_and_full() {
  code 2 train "$temp/refused" "${offload[@]}" recompute.granularity=full \
    recompute.method=uniform recompute.num_layers=1
  says "a recomputed layer saves only its input"
  [ ! -e "$temp/refused" ]
}

measured() {
  "$FERRY" bench offload configs/quickstart.toml run.backend=cpu model.layers=2 --json --warmup 1 \
    --steps 1 --case "${offload[*]} activation_offload.max_inflight=0" --case "${selective[*]}" >"$temp/rows"
  "$FERRY_PYTHON" - "$temp/rows" <<'PYTHON'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
assert [row["case"] == "" for row in rows] == [True, False, False, True], rows
assert rows[1]["d2h_bytes"] > 0 and rows[1]["saved_peak_over_without"] < 1, rows[1]
assert rows[2]["d2h_bytes"] == 0 and rows[2]["saved_peak_over_without"] < 1, rows[2]
PYTHON
  code 2 "$FERRY" bench offload configs/quickstart.toml run.backend=cpu \
    --case "recompute.granularity=selective recompute.modules=[moe]"
  says "all cases run on one model"
  code 2 "$FERRY" bench offload configs/quickstart.toml --case "cuda_graph.impl=local"
  says "has graphs of other modules than the configuration"
}

try without none
try all_modules policy all moves "${offload[@]}"
try half policy half moves "${offload[@]}" activation_offload.fraction=0.5
try limited policy limited moves frees "${offload[@]}" activation_offload.max_inflight=0
try rebuilt policy rebuilt "${selective[@]}"
try rebuilt_rows policy gathered_again recompute.granularity=selective \
  "recompute.modules=[layernorm,moe_act,moe_permute]"
try rows_in_place policy in_place moe.gather=true "${selective[@]}"
try all_modules_rebuilt policy all_rebuilt moves "${offload[@]}" "${selective[@]}"
try whole_layers policy full recompute.granularity=full recompute.method=uniform \
  recompute.num_layers=2
try modules_again policy again recompute.granularity=selective \
  "recompute.modules=[core_attn,mlp,moe]"
try pipeline pipeline
try summary summary
try nothing_large nothing_large
try budget budget
try layer_offload policy layers moves layer_offload.layers=2
try rank_capacity stash capacity once moe.rank_capacity_factor=4
try ranks_over_capacity stash over again moe.rank_capacity_factor=0.6
try paged_stash stash stash once "${paged[@]}" moe.rank_capacity_factor=4 \
  paged_stash.device_factor=3
try paged_stash_of_all_gathered stash gathered once "${paged[@]}" moe.rank_capacity_factor=4 \
  moe.dispatcher=allgather paged_stash.device_factor=3
try paged_stash_in_a_pipeline stash_pipeline
try stash_with_too_few_pages stash pages again "${paged[@]}" moe.rank_capacity_factor=4 \
  paged_stash.device_factor=-0.3
try stash_that_spills spilled
try stash_and_offload stash_and_offload
try offload_and_full offload_and_full
try measured measured
finish
