#!/usr/bin/env bash
# Weights go to Hugging Face directories and back. With torch and transformers in the Python that
# FERRY_TRANSFORMERS_PYTHON names (default: the one of the other tests), logits are compared.
source "$(dirname "$0")/lib.bash"

transformers=${FERRY_TRANSFORMERS_PYTHON:-$FERRY_PYTHON}
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
kinds="mixtral qwen3_moe olmoe"

# Four samples of 32 tokens and the label of the last.
samples() {
  "$FERRY_PYTHON" - "$temp" <<'PYTHON'
import array, random, sys
random.seed(5)
for i in range(4):
    tokens = array.array("H", (random.randrange(256) for _ in range(33)))
    with open(f"{sys.argv[1]}/tokens-{i}", "wb") as file:
        tokens.tofile(file)
PYTHON
}

options_of() {
  case "$1" in
    mixtral) echo moe.layer_freq=1 ;;
    qwen3_moe) echo moe.layer_freq="[0,1]" model.qk_norm=head model.tie_embeddings=false ;;
    olmoe) echo model.qk_norm=full moe.router.pre_softmax=true model.tie_embeddings=false ;;
  esac
}

trained() {
  local kind options
  samples
  for kind in $kinds; do
    read -ra options <<<"$(options_of "$kind")"
    train "$temp/$kind" model.init_std=0.1 "${options[@]}"
  done
}

# The loss of each sample, by ferry eval, and its logits in logits-0.npy and so on.
evaluated() {
  local i
  rm -f "$temp"/logits-?.npy
  for i in 0 1 2 3; do
    "$FERRY" eval "$1" model.precision=fp32 model.seq=32 batch.micro=1 batch.global=1 data.kind=raw \
      data.tokenizer="''" run.backend=cpu --data "$temp/tokens-$i" --batches 1 --json \
      --logits "$temp/logits-$i.npy" |
      "$FERRY_PYTHON" -c 'import json, sys; print(json.load(sys.stdin)["valid_loss"])'
  done
}

weights() {
  "$FERRY" ckpt show "$1" --json | "$FERRY_PYTHON" -c '
import json, sys
for tensor in json.load(sys.stdin)["tensors"]:
    if tensor["name"].startswith("model/"):
        print(tensor["name"], tensor["shape"], tensor["digest"])'
}

round_trip() {
  local kind=$1
  "$FERRY" export hf "$temp/$kind" "$temp/$kind-hf" --dtype fp32 --shard-gb 1e-4
  [ -e "$temp/$kind-hf/model.safetensors.index.json" ]
  "$FERRY" import hf "$temp/$kind-hf" "$temp/$kind-back"
  "$FERRY" ckpt verify "$temp/$kind-back"
  weights "$temp/$kind" >"$temp/before"
  weights "$temp/$kind-back" >"$temp/after"
  grep -q experts/fc1 "$temp/before"
  diff "$temp/before" "$temp/after"
  same "$(evaluated "$temp/$kind")" "$(evaluated "$temp/$kind-back")"
}

trains_on() {
  code 0 "$FERRY" train "$temp/olmoe-back/resolved.toml" run.dir="'$temp/more'" run.backend=cpu \
    run.steps=2 batch.global=2 data.train=data/quickstart/train model.seq=64 \
    checkpoint.resume="'$temp/olmoe-back/ckpt/step-00000000'" checkpoint.weights_only=true
  says "weights of $temp/olmoe-back/ckpt/step-00000000"
  "$FERRY" ckpt verify "$temp/more"
}

refused() {
  code 2 "$FERRY" export hf "$temp/olmoe" "$temp/olmoe-hf"
  says "is there already"
  cp -r "$temp/olmoe-hf" "$temp/bad-hf"
  sed -i 's/"clip_qkv": null/"clip_qkv": 8.0/' "$temp/bad-hf/config.json"
  code 2 "$FERRY" import hf "$temp/bad-hf" "$temp/bad"
  says "'clip_qkv'"
  cp "$temp/olmoe-hf/config.json" "$temp/bad-hf/"
  truncate -s -4 "$temp"/bad-hf/model-00001-of-*.safetensors
  code 4 "$FERRY" import hf "$temp/bad-hf" "$temp/bad"
  says "model-00001-of-"
  code 4 "$FERRY" import hf "$temp" "$temp/bad"
  says "has no config.json"
  [ ! -e "$temp/bad" ] && [ ! -e "$temp/bad.partial" ]
  train "$temp/shared" moe.layer_freq=1 moe.shared_ffn=32
  code 2 "$FERRY" export hf "$temp/shared" "$temp/shared-hf"
  says "moe.shared_ffn"
  [ ! -e "$temp/shared-hf" ]
}

# The logits of the checkpoint $1 are those of the directory $2 to 1e-4.
close() {
  local i pairs=()
  evaluated "$1"
  for i in 0 1 2 3; do pairs+=("$temp/tokens-$i" "$temp/logits-$i.npy"); done
  "$transformers" tests/e2e/huggingface_logits.py compare "$2" "${pairs[@]}"
}

exported() { close "$temp/$1" "$temp/$1-hf"; }

imported() {
  local kind=$1
  "$transformers" tests/e2e/huggingface_logits.py make "$temp/$kind-theirs" "$kind"
  "$FERRY" import hf "$temp/$kind-theirs" "$temp/$kind-ours"
  close "$temp/$kind-ours" "$temp/$kind-theirs"
}

try trained trained
for kind in $kinds; do try "round_trip_$kind" round_trip "$kind"; done
try trains_on_what_was_imported trains_on
try refused refused
for kind in $kinds; do
  for way in exported imported; do
    if "$transformers" -c 'import torch, transformers' 2>/dev/null; then
      try "${way}_${kind}_in_transformers" "$way" "$kind"
    else
      skip "${way}_${kind}_in_transformers" "$transformers has no torch and transformers"
    fi
  done
done
finish
