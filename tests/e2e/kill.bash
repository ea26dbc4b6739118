# What the scripts that kill runs share; they source it after lib.bash.
#
#   killing RUN OVERRIDES... the arguments of a tiny run in the folder RUN that saves often
#   launch COMMAND...        in the background, as process $pid, its output in $temp/out; ended with
#                            the test
#   random LOW HIGH          sleeps a random number of milliseconds
#   family PID               the process and all that descend from it
#   all_gone PID...          waits until none of them runs
#   acknowledged RUN         the step of the last checkpoint that the run has reported, or nothing
#   examine RUN              every published checkpoint is whole, and none that was acknowledged lost
#
# FERRY_FAULT_SEED makes the same random numbers again; it is printed.

RANDOM=${FERRY_FAULT_SEED:=$(($(date +%s) % 32768))}
echo "FERRY_FAULT_SEED=$FERRY_FAULT_SEED"

killing() {
  small "$1" model.layers=1 model.hidden=32 model.ffn=32 model.seq=32 run.eval_batches=1 "${@:2}"
}

# shellcheck disable=SC2154 # lib.bash sets temp
launch() {
  setsid "$@" >"$temp/out" 2>&1 </dev/null &
  pid=$!
  trap end_launched EXIT
}

end_launched() {
  local all
  mapfile -t all < <(family "$pid")
  if [ -e "/proc/$pid" ]; then kill -KILL "${all[@]}" || true; fi
}

random() {
  local milliseconds=$(($1 + (RANDOM * 32768 + RANDOM) % ($2 - $1 + 1)))
  sleep "$(printf '%d.%03d' $((milliseconds / 1000)) $((milliseconds % 1000)))"
}

family() {
  local child
  echo "$1"
  for child in $(pgrep -P "$1"); do family "$child"; done
}

all_gone() {
  local process state _
  for process; do
    for _ in $(seq 300); do
      state=$(sed 's/.*) //' "/proc/$process/stat" 2>/dev/null) || break
      case $state in '' | Z*) break ;; esac
      sleep 0.05
    done
    case $state in '' | Z*) ;; *) echo "process $process is still there" && return 1 ;; esac
  done
}

acknowledged() {
  grep -o '"event":"saved","step":[0-9]*' "$1/events.jsonl" 2>/dev/null | tail -n 1 | grep -o '[0-9]*$' || true
}

examine() {
  local run=$1 said directory newest=''
  said=$(acknowledged "$run")
  for directory in "$run"/ckpt/step-????????; do
    [ -d "$directory" ] || continue
    "$FERRY" ckpt verify "$directory" >"$temp/verify" || { cat "$temp/verify" && return 1; }
    newest=$((10#${directory##*step-}))
  done
  if [ -n "$said" ] && [ "${newest:--1}" -lt "$said" ]; then
    echo "step $said was acknowledged, but the newest checkpoint is ${newest:-none}"
    return 1
  fi
}
