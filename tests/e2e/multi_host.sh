#!/usr/bin/env bash
# Ranks on three hosts, started through a hostfile. A host is a network namespace with a name of
# its own, joined to the others by a bridge; a script stands in for ssh.
source "$(dirname "$0")/lib.bash"

hosts=(ferry-a ferry-b ferry-c)
bridge=ferry-br
net=10.213.77

enter() { # HOST COMMAND...
  local process
  process=$(cat "$temp/$1.pid")
  shift
  nsenter --net --uts -t "$process" "$@"
}

make_hosts() {
  local i host
  ip link add "$bridge" type bridge
  ip link set "$bridge" up
  for i in "${!hosts[@]}"; do
    host=${hosts[i]}
    ip netns add "$host"
    ip link add "$host" type veth peer name eth0 netns "$host"
    ip link set "$host" master "$bridge" up
    ip -n "$host" addr add "$net.$((i + 1))/24" dev eth0
    ip -n "$host" link set eth0 up
    ip -n "$host" link set lo up
    # A process that keeps the name of the host.
    # shellcheck disable=SC2016
    ip netns exec "$host" unshare --uts sh -c 'hostname "$1" && exec sleep 1000' sh "$host" &
    echo $! >"$temp/$host.pid"
  done
  for host in "${hosts[@]}"; do
    for _ in $(seq 100); do
      if [ "$(enter "$host" hostname)" = "$host" ]; then break; else sleep 0.05; fi
    done
    same "$(enter "$host" hostname)" "$host"
  done
}

remove_hosts() {
  local host
  for host in "${hosts[@]}"; do
    if [ -e "$temp/$host.pid" ]; then kill "$(cat "$temp/$host.pid")"; fi
    ip netns del "$host"
    ip link del "$host"
  done
  ip link del "$bridge"
} 2>/dev/null

# What mpirun calls with a host and a command, as it would call ssh.
agent() {
  cat <<AGENT
#!/bin/sh
host=\$1
shift
exec nsenter --net --uts -t "\$(cat '$temp'/"\$host".pid)" sh -c "\$*"
AGENT
}

# on_hosts N RUN OVERRIDES...: trains N ranks, the first two on one host.
on_hosts() {
  local count=$1 arguments
  shift
  mapfile -t arguments < <(small "$@")
  enter "${hosts[0]}" env FERRY="$FERRY" timeout 120 scripts/launch_mpirun.sh -n "$count" \
    --hostfile "$temp/hosts" --mca plm_rsh_agent "$temp/agent" -- "${arguments[@]}"
}

received() { cat "/sys/class/net/${hosts[2]}/statistics/tx_bytes"; }

compare() { # RUN OTHER
  "$FERRY_PYTHON" - "$1/metrics.jsonl" "$2/metrics.jsonl" <<'PYTHON'
import json, sys
one, other = ([json.loads(line) for line in open(path)] for path in sys.argv[1:])
assert len(one) == len(other) == 12, (len(one), len(other))
for a, b in zip(one, other):
    for key in ("loss", "grad_norm", "aux_loss", "z_loss"):
        difference = abs(a[key] - b[key]) / abs(a[key])
        assert difference <= 1e-10, (a["step"], key, a[key], b[key])
    assert a["expert_tokens"] == b["expert_tokens"], a["step"]
PYTHON
}

fp64=(model.precision=fp64)

layout() { # NAME OVERRIDES...
  local run=$temp/$1 before
  before=$(received)
  on_hosts 4 "$run" "${fp64[@]}" "${@:2}" >"$temp/out" 2>&1 || { cat "$temp/out" && return 1; }
  compare "$temp/one" "$run"
  # The ranks believed in their hosts, and their messages went over the network.
  for rank in "0 on ferry-a" "1 on ferry-a" "2 on ferry-b" "3 on ferry-c"; do
    grep -q "rank $rank: " "$run/grid.txt"
  done
  [ $(($(received) - before)) -gt 300000 ]
}

# In the background: sets $pid, and $rank to the process of the rank on the last host.
start_on_hosts() {
  on_hosts 4 "$1" run.steps=20000 >"$temp/out" 2>&1 &
  pid=$!
  wait_for_steps "$1" 3
  rank=$(for process in $(ip netns pids "${hosts[2]}"); do
    case $(ps -o comm= -p "$process") in ferry-watch) pgrep -P "$process" ;; esac
  done)
  [ -n "$rank" ]
}

ferry_processes() {
  local host process
  for host in "${hosts[@]}"; do
    for process in $(ip netns pids "$host"); do
      case $(ps -o comm= -p "$process") in ferry*) echo "$process" ;; esac
    done
  done
}

gone_within() { # SECONDS STATUS, with one message
  local limit=$((SECONDS + $1)) status=0
  while [ -n "$(ferry_processes)" ] && [ "$SECONDS" -lt "$limit" ]; do sleep 0.1; done
  same "$(ferry_processes)" ""
  wait "$pid" || status=$?
  cat "$temp/out"
  same "$status" "$2"
  same "$(grep -c '\berror: ' "$temp/out")" 1
}

killed() {
  start_on_hosts "$temp/killed"
  kill -KILL "$rank"
  gone_within 5 75
  says "[rank 3] error: rank 3 of 4 on ferry-c was killed by signal 9"
  grep -q "^  --> step [0-9]*, " "$temp/out"
}

# The ranks on both sides end by their limit, and mpirun does not wait for the lost host.
cut_off() {
  FERRY_COMM_TIMEOUT_S=3 start_on_hosts "$temp/cut"
  ip link set "${hosts[2]}" down
  gone_within 12 75
  says "communication hangs: "
  says "rank: 0 of 4 on ferry-a, step "
  ip link set "${hosts[2]}" up
}

tests=(data_parallel tensor_and_experts pipeline rank_killed host_cut_off)
skip_all() {
  for name in "${tests[@]}"; do skip "$name" "$1"; done
  finish
  exit 0
}
for command in ip nsenter unshare; do
  command -v "$command" >/dev/null || skip_all "no $command"
done
[ "$(id -u)" = 0 ] || skip_all "needs root"
trap 'remove_hosts; rm -rf "$temp"' EXIT
(set -e && make_hosts) >"$temp/hosts.log" 2>&1 ||
  skip_all "no network namespaces here: $(tail -n 1 "$temp/hosts.log")"
agent >"$temp/agent"
chmod +x "$temp/agent"
printf '%s slots=%d\n' ferry-a 2 ferry-b 1 ferry-c 1 >"$temp/hosts"

train "$temp/one" "${fp64[@]}" >/dev/null
try data_parallel layout dp
try tensor_and_experts layout tp-ep parallel.tensor=2 parallel.sequence=true parallel.expert=4
try pipeline layout pp parallel.pipeline=2
try rank_killed killed
try host_cut_off cut_off
finish
