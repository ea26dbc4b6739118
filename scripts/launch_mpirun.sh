#!/usr/bin/env bash
# Trains under mpirun, on this host or on those of a hostfile.
#
#   scripts/launch_mpirun.sh -n RANKS [--hostfile FILE] [--grace SECONDS] [MPIRUN OPTIONS] -- CONFIG [table.key=value ...]
#
#   -n RANKS          ranks in all; one for each GPU
#   --hostfile FILE   lines `HOST slots=RANKS`; ferry, the configuration, the data and the run
#                     directory must be at the same path on every host
#   --grace SECONDS   how long a run that was asked to stop may take to save (default 300); the run
#                     warns after its first save if that may be too short
#   MPIRUN OPTIONS    go to mpirun as they are, for example --oversubscribe
#
# Example: scripts/launch_mpirun.sh -n 16 --hostfile hosts -- configs/quickstart.toml run.steps=100
#
# What it adds to a plain mpirun:
#   - SIGTERM, SIGINT and SIGUSR2 ask the run to save and stop (exit 76), where mpirun would kill it
#     within a second; the same again ends it at once. SIGUSR1 asks it to save and go on.
#   - ranks are not bound to single cores; ferry binds those with a GPU to the CPUs near it
#   - one BLAS thread for each rank, unless OPENBLAS_NUM_THREADS is set
#   - variables FERRY_*, NCCL_*, UCX_* and OPENBLAS_NUM_THREADS reach the ranks of every host
#   - the exit codes of docs/errors.md: a job that lost a rank or a host ends with 75, also where
#     mpirun would wait for a host that does not answer any more
# FERRY names another program than build/ferry.
set -uo pipefail

usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; }

refuse() {
  printf 'error: %s\n  try : %s --help\n' "$1" "$0" >&2
  exit 2
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
ferry=${FERRY:-$root/build/ferry}
ranks='' grace=300 options=()
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    -n | -np) ranks=${2-} && shift ;;
    --grace) grace=${2-} && shift ;;
    --hostfile)
      [ -r "${2-}" ] || refuse "--hostfile '${2-}' cannot be read"
      options+=(--hostfile "$2") && shift
      ;;
    --) break ;;
    *) options+=("$1") ;;
  esac
  shift
done
[[ $ranks =~ ^[1-9][0-9]*$ ]] || refuse "-n must be a number of ranks, not '$ranks'"
[[ $grace =~ ^[0-9]+$ ]] || refuse "--grace must be seconds, not '$grace'"
if [ "${1-}" != -- ] || [ $# -lt 2 ]; then refuse "a configuration must follow --"; fi
shift
[ -x "$ferry" ] || refuse "there is no program $ferry: build it first (cmake --preset release)"
command -v mpirun >/dev/null || refuse "there is no mpirun: install Open MPI"

export OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-1}
export FERRY_GRACE_S=$grace
# mpirun refuses root, which is what one is in most containers.
if [ "$(id -u)" = 0 ]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
for variable in $(compgen -e | grep -E '^(FERRY_|NCCL_|UCX_|OPENBLAS_NUM_THREADS$)'); do
  options+=(-x "$variable")
done

# shellcheck disable=SC2317 # called by traps
tell() {
  interrupted=1
  kill "-$1" "$job" 2>/dev/null
}

# Ends the run if it is still there after the grace.
# shellcheck disable=SC2317
patience() {
  sleep "$grace" &
  local nap=$!
  trap 'kill "$nap"; exit' TERM
  wait "$nap"
  kill -TERM "$job" 2>/dev/null
}

# Ends mpirun when the ranks of this host are gone: it waits for the daemon of a host that is cut
# off, for as long as TCP repeats a packet. The others end by their own limit (FERRY_COMM_TIMEOUT_S).
# shellcheck disable=SC2317
patrol() {
  local seen='' absent=0
  while sleep 1; do
    if pgrep -P "$job" -x ferry-watch >/dev/null; then
      seen=1 absent=0
    elif [ -n "$seen" ]; then
      absent=$((absent + 1))
      if [ "$absent" -ge 10 ]; then kill -KILL "$job"; fi
    fi
  done
}

timer=''
# shellcheck disable=SC2317
ask_to_stop() {
  if [ -n "$timer" ]; then
    tell TERM
    return
  fi
  echo "launch: asked the run to save and stop; it has $grace s" >&2
  tell USR2
  patience >/dev/null 2>&1 &
  timer=$!
}

# A process group of its own, so that Ctrl-C of a terminal reaches it through the traps only.
set -m
mpirun -n "$ranks" --bind-to none "${options[@]}" "$ferry" train "$@" </dev/null &
job=$!
set +m
patrol >/dev/null 2>&1 &
patrol=$!
trap ask_to_stop TERM INT USR2
trap 'tell USR1' USR1
status=0
while :; do
  interrupted=''
  wait "$job"
  code=$?
  if [ "$code" != 127 ]; then status=$code; fi  # 127: its status was already taken
  if [ -z "$interrupted" ]; then break; fi      # else a trap ended the wait, not the job
done
kill "$patrol" ${timer:+"$timer"} 2>/dev/null

# Above 128: a rank, its supervisor or mpirun was killed by a signal.
if [ "$status" -gt 128 ]; then
  echo "launch: the job was lost (mpirun ended with $status): run the same command again" >&2
  status=75
fi
exit "$status"
