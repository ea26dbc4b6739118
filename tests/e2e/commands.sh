#!/usr/bin/env bash
# Every command: its help with an example that runs, and what it prints for programs.
source "$(dirname "$0")/lib.bash"

# The example in a command's help, as a command line of the program under test.
example_of() {
  "$FERRY" "$@" --help | tee "$temp/out" | sed -n '/Example:/,$p' | grep -o 'ferry .*' | head -n 1
}

helped() {
  local example
  "$FERRY" "$@" --help >"$temp/out"
  says "Usage:"
  example=$(example_of "$@")
  case $example in "ferry $*"*) ;; *)
    echo "no example of 'ferry $*': $example"
    return 1
    ;;
  esac
}

root_help() {
  code 0 "$FERRY" --help
  for name in train plan config data ckpt export import eval bench version; do says "$name"; done
}

# runs EXAMPLE: in a folder like a fresh checkout
runs() {
  (cd "$temp/checkout" && eval "${1/#ferry/\"\$FERRY\"}") >"$temp/out"
}

examples() {
  local name
  mkdir -p "$temp/checkout"
  cp -r configs "$temp/checkout/"
  mkdir "$temp/checkout/data"
  cp -r data/quickstart "$temp/checkout/data/"
  mapfile -t arguments < <(small "$temp/checkout/runs/quickstart" run.steps=60 run.stop_at_step=60)
  "$FERRY" train "${arguments[@]}"
  for name in "plan" "config" "data build" "data info" "data check" "data dump" "data merge" \
    "ckpt list" "ckpt show" "ckpt verify" "ckpt hash" "eval" "version"; do
    # shellcheck disable=SC2086
    echo "running $(example_of $name)"
    # shellcheck disable=SC2086
    runs "$(example_of $name)"
    [ -s "$temp/out" ]
  done
}

version() {
  "$FERRY" version | tee "$temp/out"
  says "backends   cpu yes"
  "$FERRY" version --json | "$FERRY_PYTHON" -c '
import json, sys
version = json.load(sys.stdin)
assert {"version", "git", "compiler", "backends", "libraries", "cpu", "gpus"} <= set(version)
'
}

plans() {
  local name
  for name in quickstart olmoe_1b_7b qwen3_30b_a3b mixtral_8x7b; do
    "$FERRY" plan "configs/$name.toml" --json >"$temp/$name.json"
  done
  "$FERRY_PYTHON" - "$temp" <<'PYTHON'
import json, sys
for name, parameters, gflop in (("olmoe_1b_7b", 6.919, 7.88), ("qwen3_30b_a3b", 30.53, 23.08),
                                ("mixtral_8x7b", 46.70, 79.7)):
    plan = json.load(open(f"{sys.argv[1]}/{name}.json"))
    assert abs(plan["parameters"]["total"] / 1e9 - parameters) < 0.005, plan["parameters"]
    assert abs(plan["flops_per_token"]["total"] / 1e9 / gflop - 1) < 0.005, plan["flops_per_token"]
    assert all(rank["total"] > 0 for rank in plan["memory_bytes_per_rank"])
PYTHON
}

resolved() {
  "$FERRY" config configs/quickstart.toml run.steps=60 --resolved >"$temp/resolved.toml"
  "$FERRY" config "$temp/resolved.toml" --resolved | sed 's/ *# .*//' >"$temp/again"
  sed 's/ *# .*//' "$temp/resolved.toml" | cmp - "$temp/again"
  grep -q '^steps = 60 .*# command line' "$temp/resolved.toml"
  grep -q '^hidden = 128 .*# configs/quickstart.toml:' "$temp/resolved.toml"
}

documented() { "$FERRY" config --markdown | cmp - docs/config.md; }

missing_arguments() {
  code 2 "$FERRY"
  says "error:"
  code 2 "$FERRY" trian
  says "error: there is no command 'trian'"
  code 2 "$FERRY" data
  says "build"
  code 2 "$FERRY" data biuld
  says "error: there is no command 'data biuld'"
  local name
  for name in train plan eval "data build" "data info" "data check" "data dump" "data merge" \
    "ckpt list" "ckpt show" "ckpt verify" "ckpt hash"; do
    # shellcheck disable=SC2086
    code 2 "$FERRY" $name
    says "error: "
    says "required"
    says "try : ferry $name --help"
  done
  code 2 "$FERRY" config
  code 2 "$FERRY" version --jsno
  says "jsno"
}

bench() {
  local size=(model.layers=2 model.hidden=32 model.head_dim=8 model.ffn=32 model.seq=32
    moe.ffn=16 run.backend=cpu)
  "$FERRY" bench "$1" configs/quickstart.toml "${size[@]}" "${@:2}" --json >"$temp/rows"
  "$FERRY_PYTHON" - "$temp/rows" "$1" <<'PYTHON'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
assert rows, "no rows"
for row in rows:
    assert row["bench"] == sys.argv[2] and row["commit"] and row["date"] and row["machine"], row
    rate = row.get("gb_per_s", row.get("tflops"))
    assert rate > 0 and row.get("of_ceiling", 1) > 0, row
names = {row.get("name") for row in rows}
if sys.argv[2] == "ops":
    assert {"qkv forward", "attention backward"} <= names, names
PYTHON
  "$FERRY" bench "$1" configs/quickstart.toml "${size[@]}" "${@:2}" >"$temp/out"
  [ "$(wc -l <"$temp/out")" -gt 1 ]
}

gemm() { # checked by the program itself; the ratio is to a ceiling in the same row
  local size=(model.hidden=32 model.head_dim=8 moe.ffn=16 model.precision=bf16 run.backend=cpu)
  "$FERRY" bench gemm configs/quickstart.toml "${size[@]}" --rows-per-expert 57,8 --json \
    >"$temp/rows"
  "$FERRY_PYTHON" - "$temp/rows" <<'PYTHON'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
names = {f"{layer} {way}" for layer in ("fc1", "fc2") for way in ("forward", "dgrad", "wgrad")}
names |= {"fc1 swiglu", "fc1 swiglu gathered", "fc1 wgrad gathered"}
kinds = {"even": 1, "uneven": 2, "power law": None, "one expert": 8}
assert len(rows) == 2 * len(names) * len(kinds), len(rows)
assert {(row["name"], row["distribution"], row["rows_per_expert"]) for row in rows} == {
    (name, kind, count) for name in names for kind in kinds for count in (57, 8)}
for row in rows:
    assert row["bench"] == "gemm" and row["commit"] and row["date"] and row["machine"], row
    assert row["regime"] == "burst" and row["dtype"] == "bf16" and row["seed"] >= 0, row
    assert row["command"].endswith(" --rows-per-expert 57,8"), row
    assert kinds[row["distribution"]] in (None, row["max_over_mean"]), row
    experts, product = row["shape"].split(" experts, ")
    r, n, k = map(int, product.split(" x "))
    assert int(experts) == 8 and r == 8 * row["rows_per_expert"], row
    assert abs(row["tflops"] / (2 * r * n * k / row["median_us"] / 1e6) - 1) < 1e-9, row
    assert ("of_contiguous" in row) == row["name"].endswith(" gathered"), row
    assert row.get("of_contiguous", 1) > 0, row
    assert abs(row["of_ceiling"] / (row["tflops"] / row["ceiling_tflops"]) - 1) < 1e-9, row
assert len({row["seed"] for row in rows}) == 1, rows
PYTHON
  "$FERRY" bench gemm configs/quickstart.toml "${size[@]}" --rows-per-expert 57 --edge --seed 7 \
    >"$temp/out"
  says "burst, seed 7"
  same "$(wc -l <"$temp/out")" 47
  same "$(grep -c edge "$temp/out")" 9
  same "$(grep -c '%.*%$' "$temp/out")" 10
}

gemm_refused() {
  code 2 ranks 2 "$FERRY" bench gemm configs/quickstart.toml run.backend=cpu
  says "error: ferry bench gemm runs on one rank, not 2"
  says "try : ferry bench gemm configs/quickstart.toml run.backend=cpu"
  code 2 "$FERRY" bench gemm configs/quickstart.toml run.backend=cpu --rows-per-expert 8 --edge
  says "error: --edge needs 449 rows for 8 experts; there are 64"
  code 2 "$FERRY" bench gemm configs/quickstart.toml run.backend=cpu --dense
  says "error: ferry bench gemm --dense compares algorithms of cuBLAS, and this run is on the CPU"
  code 2 "$FERRY" bench gemm --dense --edge
  says "--edge"
  code 2 "$FERRY" bench gemm --rows-per-expert 0
  says "--rows-per-expert"
}

communication() { # RANKS: six kinds of three sizes, each checked by the program itself
  ranks "$1" "$FERRY" bench comm configs/quickstart.toml run.backend=cpu --max-mib 1 --json \
    >"$temp/rows"
  "$FERRY_PYTHON" - "$temp/rows" "$1" <<'PYTHON'
import json, sys
rows, ranks = [json.loads(line) for line in open(sys.argv[1])], int(sys.argv[2])
others = (ranks - 1) / ranks
factors = {"all-reduce": 2 * others, "all-gather": others, "reduce-scatter": others,
           "all-to-all": others, "point-to-point": 1}
assert len({(row["name"], row["dtype"], row["bytes"]) for row in rows}) == 18, rows
assert {row["name"] for row in rows} == set(factors), rows
for row in rows:
    assert row["bench"] == "comm" and row["commit"] and row["date"] and row["machine"], row
    assert row["ranks"] == ranks and row["transport"] == "mpi", row
    assert 0 < row["fastest_us"] <= row["median_us"], row
    for value, wanted in ((row["gb_per_s"], row["bytes"] / row["median_us"] / 1e3),
                          (row["bus_gb_per_s"], row["gb_per_s"] * factors[row["name"]]),
                          (row["of_ceiling"], row["bus_gb_per_s"] / row["ceiling_gb_per_s"])):
        assert abs(value / wanted - 1) < 1e-9, row
    assert row["ceiling"] == "host copy", row
PYTHON
  ranks "$1" "$FERRY" bench comm configs/quickstart.toml run.backend=cpu --max-mib 1 >"$temp/out"
  says "$1 ranks, mpi; ceiling: host copy"
  same "$(wc -l <"$temp/out")" 20
}

communication_of_one() {
  code 2 "$FERRY" bench comm configs/quickstart.toml run.backend=cpu
  says "needs at least two ranks"
  says "try : mpirun -n 2 ferry bench comm configs/quickstart.toml run.backend=cpu"
  code 2 "$FERRY" bench comm --max-mib 0
  says "--max-mib"
}

adam() { # the rows say what was measured, and how it compares with loops of the same accesses
  "$FERRY" bench adam --elements 100000 --json >"$temp/rows"
  "$FERRY_PYTHON" - "$temp/rows" <<'PYTHON'
import json, os, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
cpus = len(os.sched_getaffinity(0))
host = [row for row in rows if "threads" in row]
for row in rows:
    assert row["bench"] == "adam" and row["commit"] and row["date"] and row["machine"], row
    assert row["command"] == "ferry bench adam --elements 100000", row
    assert row["elements"] == 100000 and 0 < row["fastest_us"] <= row["median_us"], row
    for value, wanted in ((row["gb_per_s"], row["elements"] * row["bytes_per_element"] /
                           row["median_us"] / 1e3),
                          (row["of_ceiling"], row["gb_per_s"] / row["ceiling_gb_per_s"])):
        assert abs(value / wanted - 1) < 1e-9, row
    if row["name"].startswith("adamw"): assert row["bytes_per_element"] == 30, row
assert {1, max(row["threads"] for row in host)} <= {row["threads"] for row in host}, host
assert max(row["threads"] for row in host) <= cpus, host
names = {"read", "copy", "triad", "adamw pattern", "adamw", "sgd pattern", "sgd"}
assert names <= {row["name"] for row in rows}, rows
for row in host: assert row["of_read"] > 0 and row["of_copy"] > 0 and row["of_triad"] > 0, row
assert {row["vectors"] for row in host} >= {"portable"}, host
PYTHON
  FERRY_VECTOR_LEVEL=portable code 0 "$FERRY" bench adam --elements 1000
  says "of ceiling"
  same "$(grep -c avx "$temp/out" || true)" 0
}

adam_refused() {
  code 5 "$FERRY" bench adam --elements 1000000000000
  says "error: --elements 1000000000000 takes 18 bytes of host memory each"
  says "try : at most"
  code 2 ranks 2 "$FERRY" bench adam --elements 1000
  says "error: ferry bench adam runs on one rank, not 2"
  says "try : ferry bench adam --elements 1000"
  code 2 "$FERRY" bench adam --elements 0
  says "--elements"
  FERRY_VECTOR_LEVEL=sse9 code 2 "$FERRY" bench adam --elements 1000
  says "FERRY_VECTOR_LEVEL is 'sse9'"
}

try help root_help
for name in train plan config data ckpt eval version "data build" "data info" "data check" \
  "data dump" "data merge" "ckpt list" "ckpt show" "ckpt verify" "ckpt hash" "ckpt diff" "ckpt reshard" \
  "ckpt prune" export "export hf" import "import hf" "bench ops" "bench copy" "bench step" \
  "bench comm" "bench adam" "bench gemm" "bench checkpoint" bench; do
  # shellcheck disable=SC2086
  try "help_of_${name/ /_}" helped $name
done
try examples_run examples
try version version
try plan_of_published_models plans
try resolved_configuration_reads_back resolved
try configuration_keys_are_documented documented
try missing_arguments_are_named missing_arguments
try bench_copy bench copy
try bench_ops bench ops
try bench_step bench step --warmup 1 --steps 2
try bench_gemm gemm
try bench_gemm_refusals gemm_refused
try bench_adam adam
try bench_adam_refusals adam_refused
try bench_comm_of_two_ranks communication 2
try bench_comm_of_three_ranks communication 3
try bench_comm_of_four_ranks communication 4
try bench_comm_of_one_rank_is_refused communication_of_one
finish
