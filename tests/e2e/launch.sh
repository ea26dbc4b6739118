#!/usr/bin/env bash
# How ranks are started: ranks that differ are refused, and scripts/launch_mpirun.sh and
# scripts/launch_slurm.sh pass on requests and exit statuses.
source "$(dirname "$0")/lib.bash"

long=(run.steps=20000)

refused() { # STATUS TEXT... with one message
  code "$1" "${pair[@]}"
  same "$(grep -c '\berror: ' "$temp/out")" 1
  for text in "${@:2}"; do says "$text"; done
  [ ! -e "$temp/pair" ]
}

# Two ranks, of which the second gets other arguments: sets $pair.
two_commands() { # OVERRIDES...
  local arguments other
  mapfile -t arguments < <(small "$temp/pair")
  mapfile -t other < <(small "$temp/pair" "$@")
  pair=(timeout 60 mpirun --oversubscribe -n 1 "$FERRY" train "${arguments[@]}"
    : -n 1 "$FERRY" train "${other[@]}")
}

other_configuration() {
  two_commands model.layers=4 optimizer.lr=5e-3
  refused 2 "the ranks of this job were not started alike" "--> rank 1 on $(hostname)" \
    "model.layers = 4, where rank 0 has 2" "optimizer.lr = 0.005, where rank 0 has 0.002"
}

# Only one rank has the mistake, so it is the one that speaks.
mistake_of_one_rank() {
  two_commands model.hiden=4
  refused 2 "[rank 1] error: " "model.hiden"
}

fewer_gpus() {
  code 5 train_ranks $(($1 + 1)) "$temp/gpus" run.backend=cuda batch.global=$((4 * ($1 + 1)))
  says "would share a GPU"
  says "parallel.share_gpu=true"
  same "$(grep -c '\berror: ' "$temp/out")" 1
}

launch() { timeout 100 scripts/launch_mpirun.sh "$@"; }

launch_refuses() {
  code 0 launch --help
  says "--hostfile"
  code 2 launch -n 2
  says "a configuration must follow --"
  code 2 launch -n two -- configs/quickstart.toml
  says "not 'two'"
  code 2 launch -n 2 --grace soon -- configs/quickstart.toml
  says "not 'soon'"
  code 2 launch -n 2 --hostfile "$temp/absent" -- configs/quickstart.toml
  says "$temp/absent"
  code 2 env FERRY="$temp/absent" scripts/launch_mpirun.sh -n 2 -- configs/quickstart.toml
  says "there is no program $temp/absent"
}

launch_trains() {
  local arguments
  mapfile -t arguments < <(small "$temp/launched")
  code 0 launch -n 2 --oversubscribe -- "${arguments[@]}"
  says "done at step 12"
  mapfile -t arguments < <(small "$temp/launched-wrong" model.hiden=1)
  code 2 launch -n 2 --oversubscribe -- "${arguments[@]}"
}

launch_in_background() { # RUN OPTIONS...
  local arguments
  mapfile -t arguments < <(small "$1" "${long[@]}")
  scripts/launch_mpirun.sh -n 2 --oversubscribe "${@:2}" -- "${arguments[@]}" >"$temp/out" 2>&1 &
  pid=$!
  wait_for_steps "$1" 3
}

ended_with() {
  local status=0
  wait "$pid" || status=$?
  cat "$temp/out"
  same "$status" "$1"
}

launch_stops() { # SIGNAL
  local run=$temp/launch-$1
  launch_in_background "$run"
  kill "-$1" "$pid"
  ended_with 76
  says "asked the run to save and stop"
  says "stopped at step"
  "$FERRY" ckpt verify "$run"
}

launch_saves() {
  local run=$temp/launch-save
  launch_in_background "$run"
  kill -USR1 "$pid"
  wait_for_checkpoint "$run"
  wait_for_steps "$run" $(($(wc -l <"$run/metrics.jsonl") + 2))
  kill -TERM "$pid"
  ended_with 76
}

# A run that cannot save in time is ended all the same.
launch_loses_patience() {
  local run=$temp/launch-patience before
  launch_in_background "$run" --grace 1
  kill -STOP "$(pgrep -P "$(ranks_of_launch | tail -n 1)")"
  before=$SECONDS
  kill -TERM "$pid"
  ended_with 1
  [ $((SECONDS - before)) -lt 10 ]
}

ranks_of_launch() { pgrep -P "$(pgrep -P "$pid" -x mpirun)"; }

launch_translates() {
  launch_in_background "$temp/launch-lost"
  kill -KILL "$(ranks_of_launch | tail -n 1)"
  ended_with 75
  says "launch: the job was lost"
}

# Stands in for the commands of Slurm: each appends what it was called with to $temp/calls; srun
# runs what it is given, and ends with $SRUN_STATUS if that is set.
fake_slurm() {
  local name
  mkdir -p "$temp/slurm"
  for name in sbatch scontrol scancel; do
    printf '#!/bin/sh\necho %s "$@" >>%s\n' "$name" "$temp/calls" >"$temp/slurm/$name"
  done
  cat >"$temp/slurm/srun" <<SRUN
#!/bin/sh
echo srun "\$@" >>$temp/calls
if [ "\$SRUN_STATUS" = wait ]; then sleep 5; exit 76; fi
exit \$SRUN_STATUS
SRUN
  chmod +x "$temp"/slurm/*
  : >"$temp/calls"
  export PATH=$temp/slurm:$PATH
}

slurm_submits() {
  fake_slurm
  code 0 scripts/launch_slurm.sh --help
  says "SBATCH OPTIONS"
  code 2 scripts/launch_slurm.sh --nodes=2
  says "a configuration must follow --"
  code 0 scripts/launch_slurm.sh --nodes=2 -- configs/quickstart.toml run.steps=5
  same "$(cat "$temp/calls")" \
    "sbatch --nodes=2 scripts/launch_slurm.sh -- configs/quickstart.toml run.steps=5"
}

slurm_job() { # STATUS RESTARTS REQUEUED
  fake_slurm
  code "$4" env SLURM_JOB_ID=17 SLURM_RESTART_COUNT="$2" FERRY_MAX_RESTARTS=3 SRUN_STATUS="$1" \
    scripts/launch_slurm.sh -- configs/quickstart.toml run.steps=5
  grep -q "^srun --mpi=pmix .*/ferry[^ ]* train configs/quickstart.toml run.steps=5$" "$temp/calls"
  same "$(grep -c '^scontrol requeue 17$' "$temp/calls")" "$3"
}

slurm_requeues() {
  slurm_job 75 0 1 75
  slurm_job 76 2 1 76
  slurm_job 137 0 1 75
  slurm_job 76 3 0 76
  says "after 3 restarts: not queued again"
  slurm_job 0 0 0 0
  slurm_job 2 0 0 2
}

slurm_asks_to_stop() {
  local status=0 _
  fake_slurm
  SLURM_JOB_ID=17 SRUN_STATUS=wait scripts/launch_slurm.sh -- configs/quickstart.toml &
  pid=$!
  for _ in $(seq 100); do if grep -q srun "$temp/calls"; then break; else sleep 0.1; fi; done
  kill -USR2 "$pid"
  wait "$pid" || status=$?
  same "$status" 76
  grep -q "^scancel --signal=USR2 17$" "$temp/calls"
  grep -q "^scontrol requeue 17$" "$temp/calls"
}

try other_configuration other_configuration
try mistake_of_one_rank mistake_of_one_rank
num_gpus=$("$FERRY" version --json | "$FERRY_PYTHON" -c 'import json, sys; print(len(json.load(sys.stdin)["gpus"]))')
if [ "$num_gpus" -gt 0 ]; then
  try fewer_gpus_than_ranks fewer_gpus "$num_gpus"
else
  skip fewer_gpus_than_ranks "no GPU"
fi
try launch_mpirun_refuses launch_refuses
try launch_mpirun_trains launch_trains
try launch_mpirun_sigterm launch_stops TERM
try launch_mpirun_sigusr2 launch_stops USR2
try launch_mpirun_sigusr1 launch_saves
try launch_mpirun_grace launch_loses_patience
try launch_mpirun_lost_rank launch_translates
try launch_slurm_submits slurm_submits
try launch_slurm_requeues slurm_requeues
try launch_slurm_sigusr2 slurm_asks_to_stop
finish
