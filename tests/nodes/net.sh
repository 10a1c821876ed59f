#!/bin/bash
# net.sh up|down SET [NODE…]  -- network namespaces of our own, one per node (head and worker, if none is named), joined by a
# bridge in one more; nothing of the machine's own network is touched, and nothing outside can be reached from them.
#   SETctl 10.78.0.9 (bridge)   SEThead 10.78.0.1   SETworker 10.78.0.2   … and so on
# cut:  ip -n SETctl link set vworker down      mend:  ip -n SETctl link set vworker up
set -euo pipefail
S=$2; NODES=("${@:3}"); [ $# -gt 2 ] || NODES=(head worker)
up() {
  ip netns add "${S}ctl"; ip -n "${S}ctl" link set lo up
  ip -n "${S}ctl" link add br78 type bridge; ip -n "${S}ctl" addr add 10.78.0.9/24 dev br78; ip -n "${S}ctl" link set br78 up
  local i=1 n
  for n in "${NODES[@]}"; do
    ip netns add "$S$n"; ip -n "$S$n" link set lo up
    ip -n "${S}ctl" link add "v$n" type veth peer name eth0 netns "$S$n"
    ip -n "${S}ctl" link set "v$n" master br78 up
    ip -n "$S$n" addr add "10.78.0.$i/24" dev eth0; ip -n "$S$n" link set eth0 up; i=$((i+1))
  done
}
down() { local n; for n in "${NODES[@]}" ctl; do ip netns del "$S$n" 2>/dev/null || true; done; }
"$1"
