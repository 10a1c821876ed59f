#!/bin/bash
# engine.sh start|stop FOLDER  -- a container engine (dockerd) of its own for tests: as root, without systemd and
# registry, in a network namespace of its own, so that neither the host's engine nor its firewall rules are touched.
#
#   FOLDER             short (a Unix socket's path ends at 108 bytes); data lie there, on a tmpfs made by `start`
#   NETNS=NAME         its network namespace (ip netns), made if missing and removed by `stop`; default: FOLDER's name
#   EXTRA="…"          more options of dockerd, such as --live-restore
#   FAKE_GPU=1         a stub runtime hook, so that dockerd accepts GPU requests where there is no GPU
#
# start prints DOCKER_HOST; what runs with --network host is reached by: nsenter --net=/run/netns/NAME COMMAND
# Started again over the same folder it finds its images and containers, as after a crash.
set -euo pipefail
command=${1:?start or stop} folder=${2:?folder}
name=${NETNS:-$(basename "$folder")}

# Where PID 1 reaps late a killed dockerd stays a zombie for seconds, and `kill -0` still succeeds on it.
alive() { [ -n "${1:-}" ] && [ -r "/proc/$1/stat" ] && ! grep -q '^[0-9]* (.*) Z' "/proc/$1/stat" 2>/dev/null; }
ended() { for _ in $(seq "${2:-100}"); do alive "$1" || return 0; sleep .1; done; return 1; }

start() {
  mkdir -p "$folder"
  # Not on a disk that is mounted with discard: deleting an image there takes seconds.
  mountpoint -q "$folder" || mount -t tmpfs -o size=4g,mode=755 startup-tests "$folder"
  [ -e "/run/netns/$name" ] || { ip netns add "$name"; ip -n "$name" link set lo up; }
  local old path=$PATH
  old=$(cat "$folder/docker.pid" 2>/dev/null || true)
  if alive "$old"; then echo "unix://$folder/docker.sock"; return 0; fi
  # A killed engine's own containerd goes a moment later; two of them on one folder are the end of the new engine.
  for old in /proc/[0-9]*/cmdline; do
    old=${old#/proc/}; old=${old%/cmdline}
    { tr '\0' ' ' < "/proc/$old/cmdline"; } 2>/dev/null | grep -q "^containerd --config $folder/exec/" || continue
    kill -9 "$old" 2>/dev/null || true
    ended "$old" 100 || true
  done
  rm -f "$folder/docker.pid" "$folder/docker.sock" "$folder/exec/containerd/containerd.pid"
  if [ -n "${FAKE_GPU:-}" ]; then
    # dockerd knows its GPU driver only if this program is on its path when it starts; runc runs it as a hook.
    mkdir -p "$folder/stub"
    printf '#!/bin/sh\nexit 0\n' > "$folder/stub/nvidia-container-runtime-hook"
    chmod +x "$folder/stub/nvidia-container-runtime-hook"
    path=$folder/stub:$PATH
  fi
  # deprecated-key-path: else all engines of one machine have one identity.
  printf '{"deprecated-key-path": "%s/key.json"}\n' "$folder" > "$folder/daemon.json"
  # nsenter, not `ip netns exec`, which hides the control groups. A dead proxy makes every pull fail at once.
  # setsid: a signal to the caller's process group does not reach the engine.
  # shellcheck disable=SC2086
  env PATH="$path" HTTP_PROXY=http://127.0.0.1:9 HTTPS_PROXY=http://127.0.0.1:9 NO_PROXY=localhost,127.0.0.0/8 \
    setsid nsenter --net="/run/netns/$name" -- dockerd \
      --data-root "$folder/data" --exec-root "$folder/exec" --pidfile "$folder/docker.pid" \
      -H "unix://$folder/docker.sock" --storage-driver overlay2 --exec-opt native.cgroupdriver=cgroupfs \
      --config-file "$folder/daemon.json" ${EXTRA:-} >>"$folder/dockerd.log" 2>&1 </dev/null &
  local pid=$!      # env and nsenter exec, so this is dockerd itself
  for _ in $(seq 600); do
    if curl -fsS --unix-socket "$folder/docker.sock" http://d/_ping >/dev/null 2>&1; then
      echo "unix://$folder/docker.sock"; return 0
    fi
    alive $pid || { tail -5 "$folder/dockerd.log" >&2; return 1; }
    sleep .05
  done
  tail -20 "$folder/dockerd.log" >&2; return 1
}

stop() {
  local pid shim child mounted
  pid=$(cat "$folder/docker.pid" 2>/dev/null || true)
  if alive "$pid"; then
    kill "$pid" 2>/dev/null || true
    ended "$pid" 100 || kill -9 "$pid" 2>/dev/null || true
  fi
  # An engine that was killed leaves its containers running under their shims: only those of this folder, by pid.
  for shim in /proc/[0-9]*/cmdline; do
    shim=${shim#/proc/}; shim=${shim%/cmdline}
    { tr '\0' ' ' < "/proc/$shim/cmdline"; } 2>/dev/null \
      | grep -q -e "containerd-shim-runc-v2 .*-address $folder/exec/containerd/" -e "^containerd --config $folder/exec/" \
      || continue
    for child in $(cat /proc/"$shim"/task/*/children 2>/dev/null); do kill -9 "$child" 2>/dev/null || true; done
    kill -9 "$shim" 2>/dev/null || true
  done
  while read -r mounted; do umount -l "$mounted" || true; done \
    < <(awk -v d="$folder/" 'index($2, d) == 1 {print $2}' /proc/mounts | sort -r)
  ip netns del "$name" 2>/dev/null || true
  umount -l "$folder" 2>/dev/null || true
  rmdir "$folder" 2>/dev/null || true
}

"$command"
