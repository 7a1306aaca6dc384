#!/usr/bin/env bash
# Runs a pod on this machine: a network namespace with Redis on its usual port, and a container with a read-only root
# and an unprivileged user. Runs the given actions, stops the container as the kubelet does, and prints the results.
#
#   pod.sh ROOT USER:GROUP PROBES 'ACTIONS…' 'COMMAND…' NAME=VALUE…
#
# PROBES are lines: `get PORT/PATH`, or `exec COMMAND…`, which runs in the container.
# ACTIONS is bash. `$root` is the container's root, where actions write to volumes as the kubelet does.
set -euo pipefail

if [ -z "${IN_POD:-}" ]; then
    # All processes of the namespace end with its first one.
    as=(); [ "$(id -u)" = 0 ] || as=(sudo -n --preserve-env=PATH)
    exec "${as[@]}" env IN_POD=yes unshare --net --mount --pid --mount-proc --fork --kill-child "$0" "$@"
fi

root=$1 user=$2 probes=$3 asks=$4 command=$5
shift 5
variables=("$@")
chroot=$(command -v chroot)

ip link set lo up
# The address of the Pod, at which the kubelet reaches no port of a loopback address.
pod_address=192.0.2.1
ip address add "$pod_address/32" dev lo
redis-server --bind 127.0.0.1 --save '' --dir / >/dev/null &
until redis-cli ping >/dev/null 2>&1; do sleep 0.05; done

mkdir "$root.mounted"
mount --bind "$root" "$root.mounted"
mount -o remount,bind,ro "$root.mounted"
mount -t proc proc "$root.mounted/proc"
# shellcheck disable=SC2086
env -i "${variables[@]}" "$chroot" --userspec="$user" "$root.mounted" $command &
service=$!

in_container() { env -i "${variables[@]}" "$chroot" --userspec="$user" "$root.mounted" "$@"; }

# probe KIND WORD…: fails without an answer within a second.
probe() {
    case $1 in
        get) curl --silent --fail --max-time 1 --output /dev/null "http://$pod_address:$2" ;;
        exec) in_container "${@:2}" </dev/null >/dev/null 2>&1 ;;
    esac
}

# The kubelet retries.
while read -r -a probe; do
    for attempt in {1..100}; do
        probe "${probe[@]}" && continue 2
        sleep 0.1
    done
    echo "not within 10 seconds: ${probe[*]}"
    exit 1
done <<<"$probes"
grep -qE "^Uid:[[:space:]]+${user%:*}[[:space:]]" "/proc/$service/status"

# ask_until_refused DOMAIN DESCRIPTOR: sends requests until one is rejected. A late answer on a busy machine is an
# error, and is retried.
ask_until_refused() {
    local code
    for attempt in {1..50}; do
        code=0
        "$chroot" "$root.mounted" /bin/tollgate request "$1" "$2" || code=$?
        [ "$code" = 1 ] && return
        sleep 0.1
    done
    echo 'nothing was refused'
    exit 1
}

# until_it COMMAND…: retries until it succeeds.
until_it() {
    for attempt in {1..200}; do
        "$@" >/dev/null 2>&1 && return
        sleep 0.1
    done
    echo "not within 20 seconds: $*"
    exit 1
}

eval "$asks"
redis-cli keys '*'

kill -TERM "$service"
wait "$service"
