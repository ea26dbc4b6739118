#!/usr/bin/env bash
# From a fresh checkout to a trained model: installs what is missing, builds, trains the
# Mixture-of-Experts model of configs/quickstart.toml on the shipped text, and shows the result.
# Minutes on two cores, no GPU needed. Run again, it continues an interrupted training, or shows
# a finished one.
#
#   scripts/quickstart.sh                       everything
#   scripts/quickstart.sh --fresh               train again from the start
#   scripts/quickstart.sh [--fresh] table.key=value ...   with other settings, as `ferry train`
set -euo pipefail

fresh=''
overrides=()
for argument; do
  case $argument in
    --fresh) fresh=run.fresh=true ;;
    -h | --help)
      sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
      exit 0
      ;;
    *=*) overrides+=("$argument") ;;
    *)
      echo "quickstart: unknown argument '$argument'; see scripts/quickstart.sh --help" >&2
      exit 2
      ;;
  esac
done

# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" ''
cd "$root"

run_dir=runs/quickstart
metrics=$run_dir/metrics.jsonl
log=build/quickstart.log

say() { printf '\n== %s\n' "$*"; }

fail() {
  printf 'quickstart: error: %s\n' "$@" >&2
  exit 1
}

# quietly COMMAND...: shows the output only if the command fails.
quietly() {
  if ! "$@" >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    fail "failed: $*" "The lines above are the end of $log."
  fi
}

# values KEY: the numbers that the metrics give for a key, one a line.
values() { sed -n "s/.*\"$1\" *: *\\([-+.0-9eE]*\\).*/\\1/p" "$metrics"; }

# The step that the run is at, 0 before the first.
step_reached() { if [ -e "$metrics" ]; then values step | tail -n 1; else echo 0; fi; }

# The steps that the run is made of, as it recorded them.
steps_planned() { sed -n 's/^ *steps *= *\([0-9]*\).*/\1/p' "$run_dir/resolved.toml" | sed -n 1p; }

newest_checkpoint() {
  find "$run_dir/ckpt" -maxdepth 1 -name 'step-[0-9]*' ! -name '*.*' 2>/dev/null | sort | tail -n 1
}

below() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a + 0 < b + 0) }'; }

build() {
  say "building with $jobs jobs"
  mkdir -p build
  quietly cmake --preset release
  sed -n 's/^-- \(Ferry:.*\)/\1/p' "$log"
  quietly cmake --build build -j "$jobs" --target ferry
}

prepare_data() {
  say "data: every 20th document is held out"
  scripts/quickstart_data.sh
  build/ferry data info data/quickstart/valid | tee build/quickstart-info.txt
  entropy=$(sed -n 's/.*[Bb]igram[^0-9]*\([0-9][.0-9]*\).*/\1/p' build/quickstart-info.txt |
    sed -n 1p)
  [ -n "$entropy" ] || fail "'ferry data info' printed no bigram entropy"
}

train() {
  local start=$SECONDS code=0 ranks=1 launcher=()
  train_seconds=0
  if [ -z "$fresh" ] && [ -n "$(newest_checkpoint)" ]; then
    if [ "${#overrides[@]}" = 0 ] && [ "$(step_reached)" = "$(steps_planned)" ]; then
      say "$run_dir is complete; scripts/quickstart.sh --fresh trains again"
      return
    fi
    say "continuing $run_dir from $(newest_checkpoint)"
  fi
  if [ "$cores" -ge 2 ]; then
    ranks=2
    launcher=(mpirun -n 2 --oversubscribe)
  fi
  say "training, ranks: $ranks"
  # Empty where there is none.
  # shellcheck disable=SC2086
  "${launcher[@]}" build/ferry train configs/quickstart.toml $fresh "${overrides[@]}" || code=$?
  train_seconds=$((SECONDS - start))
  case $code in
    0) ;;
    75) fail "a rank was lost (exit code 75): run scripts/quickstart.sh again to continue" ;;
    76) fail "stopped after a save (exit code 76): run scripts/quickstart.sh again to continue" ;;
    *)
      fail "training ended with exit code $code; docs/errors.md says what each means." \
        "scripts/quickstart.sh --fresh discards $run_dir and trains from the start."
      ;;
  esac
}

show_result() {
  local first last valid checkpoint
  checkpoint=$(newest_checkpoint)
  [ -n "$checkpoint" ] || fail "no checkpoint in $run_dir/ckpt"
  say "result"
  first=$(values loss | sed -n 1p)
  last=$(values loss | tail -n 1)
  valid=$(values valid_loss | tail -n 1)
  [ -n "$valid" ] || fail "$metrics has no valid_loss"
  echo "training loss     $first at the first step, $last at step $(step_reached)"
  echo "validation loss   $valid"
  echo "bigram entropy    $entropy (what a table of letter pairs could reach)"
  below "$valid" "$entropy" ||
    fail "the validation loss $valid is not below the bigram entropy $entropy"
  say "checkpoint $checkpoint"
  build/ferry ckpt verify "$checkpoint"
  h5ls -r "$checkpoint/global.h5" | sed -n '1,12p'
}

build
prepare_data
train
show_result
say "quickstart: done: built, trained to step $(step_reached) and verified $run_dir in $SECONDS s" \
  "($train_seconds s of it training)"
