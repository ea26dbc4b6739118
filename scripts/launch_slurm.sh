#!/usr/bin/env bash
#SBATCH --job-name=ferry
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR2@300
#
# Trains as a job of Slurm, one task for each GPU.
#
#   scripts/launch_slurm.sh [SBATCH OPTIONS] -- CONFIG [table.key=value ...]
#
# Example: scripts/launch_slurm.sh --nodes=4 --time=24:00:00 -- configs/quickstart.toml
#
# Submits itself with sbatch. SBATCH OPTIONS override the #SBATCH lines above: sizes, partition,
# account, time. Needs a Slurm whose srun knows --mpi=pmix. Run it from the checkout: ferry, the
# configuration, the data and the run directory must be on a file system that every node has.
#
#   - 300 s before the time limit, and at `scancel --batch --signal=USR2 JOB`, the run saves and
#     stops.
#   - A run that was stopped (76) or that lost a rank (75, or a signal) is queued again and
#     resumes, at most FERRY_MAX_RESTARTS times (default 100). Other failures end the job.
# FERRY names another program than build/ferry.
set -uo pipefail

usage() { sed -n '/^# Trains/,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; }

if [ -z "${SLURM_JOB_ID-}" ]; then
  options=()
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case $1 in -h | --help) usage && exit 0 ;; esac
    options+=("$1")
    shift
  done
  if [ $# -lt 2 ]; then
    printf 'error: a configuration must follow --\n  try : %s --help\n' "$0" >&2
    exit 2
  fi
  command -v sbatch >/dev/null || {
    printf 'error: there is no sbatch here\n  try : scripts/launch_mpirun.sh --help\n' >&2
    exit 2
  }
  exec sbatch "${options[@]}" "$0" "$@"
fi

# In the job; sbatch has copied this file elsewhere, but starts it where it was submitted.
if [ "${1-}" = -- ]; then shift; fi
ferry=${FERRY:-$PWD/build/ferry}
[ -x "$ferry" ] || {
  printf 'error: there is no program %s\n  try : submit from the checkout, or set FERRY\n' "$ferry" >&2
  exit 2
}
export OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-1}
export FERRY_GRACE_S=${FERRY_GRACE_S:-300}  # as --signal above

# To the tasks of all steps, and not to this script.
# shellcheck disable=SC2317 # called by traps
tell() {
  interrupted=1
  scancel --signal="$1" "$SLURM_JOB_ID"
}
trap 'tell USR2' USR2 TERM
trap 'tell USR1' USR1

# A task that fails ends the others.
srun --mpi=pmix --cpu-bind=none --kill-on-bad-exit=1 "$ferry" train "$@" &
job=$!
status=0
while :; do
  interrupted=''
  wait "$job"
  code=$?
  if [ "$code" != 127 ]; then status=$code; fi  # 127: its status was already taken
  if [ -z "$interrupted" ]; then break; fi      # else a trap ended the wait, not the job
done
if [ "$status" -gt 128 ]; then status=75; fi

case $status in
  75 | 76)
    restarts=${SLURM_RESTART_COUNT:-0} limit=${FERRY_MAX_RESTARTS:-100}
    if [ "$restarts" -lt "$limit" ]; then
      echo "launch: ended with $status: queued again (restart $((restarts + 1)) of $limit)"
      scontrol requeue "$SLURM_JOB_ID"
    else
      echo "launch: ended with $status after $restarts restarts: not queued again" >&2
    fi
    ;;
esac
exit "$status"
