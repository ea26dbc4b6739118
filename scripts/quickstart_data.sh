#!/usr/bin/env bash
# Makes data/quickstart/{train,valid}.{bin,idx} from the shipped text configs/data/*.jsonl, unless
# they are there and newer than the text. Every 20th document is held out for validation.
#
#   scripts/quickstart_data.sh            with build/ferry, or the program that FERRY names
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
ferry=${FERRY:-build/ferry}
target=data/quickstart

if [ -e "$target/valid.idx" ]; then
  newer=$(find configs/data -name '*.jsonl' -newer "$target/valid.idx")
  if [ -z "$newer" ]; then
    echo "$target is present"
    exit 0
  fi
fi

# Built aside and moved, so that an interrupted build is never taken for a complete one.
rm -rf "$target.partial"
mkdir -p "$target.partial"
trap 'rm -rf "$target.partial"' EXIT
awk -v train="$target.partial/train.jsonl" -v valid="$target.partial/valid.jsonl" \
  '{ if (NR % 20 == 0) print > valid; else print > train }' configs/data/*.jsonl
for part in train valid; do
  "$ferry" data build "$target.partial/$part.jsonl" -o "$target.partial/$part" \
    --tokenizer byte --append-eod
done
rm -rf "$target"
mv "$target.partial" "$target"
