#!/usr/bin/env bash
# Whatever happens to the newest checkpoint, `ferry ckpt verify` refuses it and says where, and
# training falls back to the one before, says so, and ends where an undamaged run ends.
source "$(dirname "$0")/lib.bash"

good=$temp/good
step6=ckpt/step-00000006
step12=ckpt/step-00000012

trained() {
  train_ranks 2 "$good" run.steps=14 run.stop_at_step=12 checkpoint.every=6
  train_ranks 2 "$temp/straight" run.steps=14
}

# NAME: a copy of the run, its newest checkpoint to be damaged.
copied() {
  run=$temp/$1
  cp -r "$good" "$run"
}

# TEXT...: what verify says of the newest checkpoint.
refused() {
  local text
  code 4 "$FERRY" ckpt verify "$run/$step12"
  for text; do says "$text"; done
  code 4 "$FERRY" ckpt hash "$run/$step12"
}

fallen_back() {
  train_ranks 2 "$run" run.steps=14 >"$temp/out" 2>&1
  says "$step12 is not used"
  says "$step6 (verified"
  same "$(hash "$run")" "$(hash "$temp/straight")"
}

# CHECKPOINT SHARD: a byte in the middle of a tensor, its name, and the file of the shard.
in_a_tensor() {
  "$FERRY_PYTHON" - "$1/MANIFEST.json" "$2" <<'PYTHON'
import json, math, sys
manifest = json.load(open(sys.argv[1]))
names = [file["name"] for file in manifest["files"]]
for tensor in manifest["tensors"]:
    for piece in tensor["slices"]:
        if names[piece["file"]] == sys.argv[2]:
            print(piece["address"] + 4 * math.prod(piece["extent"]) // 2, tensor["name"])
            sys.exit()
PYTHON
}

flip() { # FILE BYTE BIT
  "$FERRY_PYTHON" -c '
import sys
with open(sys.argv[1], "r+b") as file:
    file.seek(int(sys.argv[2]))
    byte = file.read(1)[0] ^ 1 << int(sys.argv[3])
    file.seek(int(sys.argv[2]))
    file.write(bytes([byte]))' "$@"
}

flipped_bit() {
  local byte name
  copied flipped
  read -r byte name < <(in_a_tensor "$run/$step12" shard-00001.h5)
  flip "$run/$step12/shard-00001.h5" "$byte" 4
  refused "$run/$step12/shard-00001.h5 is damaged: bytes " "of $name"
  fallen_back
}

# In all files, each bit as likely as any other.
flipped_bits_anywhere() {
  local file byte bit count=0
  copied anywhere
  while read -r file byte bit; do
    flip "$run/$step12/$file" "$byte" "$bit"
    refused "$run/$step12/$file"
    flip "$run/$step12/$file" "$byte" "$bit"
    count=$((count + 1))
  done < <("$FERRY_PYTHON" - "$run/$step12" <<'PYTHON'
import os, random, sys
sizes = [(name, os.path.getsize(os.path.join(sys.argv[1], name))) for name in sorted(os.listdir(sys.argv[1]))]
random.seed(20260715)
for name in random.choices([n for n, _ in sizes], [s for _, s in sizes], k=16) + [n for n, _ in sizes]:
    print(name, random.randrange(dict(sizes)[name]), random.randrange(8))
PYTHON
  )
  same "$count" 20
  "$FERRY" ckpt verify "$run/$step12"
}

missing_shard() {
  local byte name
  copied missing
  read -r byte name < <(in_a_tensor "$run/$step12" shard-00001.h5)
  rm "$run/$step12/shard-00001.h5"
  refused "$run/$step12/shard-00001.h5 is missing" "lost: $name [" ", bytes "
  fallen_back
}

shard_of_another_step() {
  local byte name
  copied other_step
  read -r byte name < <(in_a_tensor "$run/$step12" shard-00000.h5)
  cp "$run/$step6/shard-00000.h5" "$run/$step12/"
  refused "$run/$step12/shard-00000.h5 is damaged: bytes " "(chunk 0 of $name"
  fallen_back
}

half_written() {
  copied half
  rm "$run/$step12/MANIFEST.json" "$run/$step12/global.h5"
  truncate -s 20000 "$run/$step12/shard-00001.h5"
  refused "$run/$step12 has no MANIFEST.json: it is not a complete checkpoint"
  fallen_back
}

half_written_and_never_published() {
  copied never
  mv "$run/$step12" "$run/$step12.a1.tmp"
  rm "$run/$step12.a1.tmp/MANIFEST.json"
  code 4 "$FERRY" ckpt verify "$run/$step12.a1.tmp"
  says "has no MANIFEST.json"
  train_ranks 2 "$run" run.steps=14 >"$temp/out" 2>&1
  says "removed step-00000012.a1.tmp, which an earlier start left unfinished"
  says "$step6 (verified"
  same "$(hash "$run")" "$(hash "$temp/straight")"
}

try saved_by_two_ranks trained
try flipped_bit flipped_bit
try flipped_bits_anywhere flipped_bits_anywhere
try missing_shard missing_shard
try shard_of_another_step shard_of_another_step
try half_written_directory half_written
try half_written_and_never_published half_written_and_never_published
finish
