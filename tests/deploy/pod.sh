#!/usr/bin/env bash
# A pod on this machine: a network of its own with Redis on its usual port, and a container in it whose root is
# read-only and whose user is not root. Does with it what its input says, ends it as the kubelet does, and prints what
# it saw.
#
#   pod.sh ROOT USER:GROUP 'PORT/PATH…' 'ASKS…' 'COMMAND…' NAME=VALUE…
#
# ASKS is bash; `$root` is what the container has as its root, to be written to as the kubelet writes to volumes.
set -euo pipefail

if [ -z "${IN_POD:-}" ]; then
    # Everything in it ends with its first process.
    as=(); [ "$(id -u)" = 0 ] || as=(sudo -n --preserve-env=PATH)
    exec "${as[@]}" env IN_POD=yes unshare --net --mount --pid --mount-proc --fork --kill-child "$0" "$@"
fi

root=$1 user=$2 probes=$3 asks=$4 command=$5
shift 5
chroot=$(command -v chroot)

ip link set lo up
redis-server --bind 127.0.0.1 --save '' --dir / >/dev/null &
until redis-cli ping >/dev/null 2>&1; do sleep 0.05; done

mkdir "$root.mounted"
mount --bind "$root" "$root.mounted"
mount -o remount,bind,ro "$root.mounted"
mount -t proc proc "$root.mounted/proc"
# shellcheck disable=SC2086
env -i "$@" "$chroot" --userspec="$user" "$root.mounted" $command &
service=$!

# A probe that does not answer within a second has failed; the kubelet tries again.
for probe in $probes; do
    for attempt in {1..100}; do
        curl --silent --fail --max-time 1 --output /dev/null "http://localhost:$probe" && continue 2
        sleep 0.1
    done
    echo "no answer from $probe"
    exit 1
done
grep -qE "^Uid:[[:space:]]+${user%:*}[[:space:]]" "/proc/$service/status"

# ask_until_refused DOMAIN DESCRIPTOR: limits are small. An answer that comes late on a busy machine is an error,
# and is requested again.
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

# until_it COMMAND…: tries again until it succeeds.
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
