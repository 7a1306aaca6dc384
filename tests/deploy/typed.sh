#!/usr/bin/env bash
# Types a script in a network of its own, in which Redis and a service on the usual ports run already.
#
#   typed.sh PROGRAM DIRECTORY      the directory has `rules/` and the script `typed`
set -euo pipefail

if [ -z "${IN_POD:-}" ]; then
    as=(); [ "$(id -u)" = 0 ] || as=(sudo -n --preserve-env=PATH)
    exec "${as[@]}" env IN_POD=yes unshare --net --mount --pid --mount-proc --fork --kill-child "$0" "$@"
fi

ip link set lo up
cd "$2"
mkdir bin
ln -s "$1" bin/tollgate
ln -s "$1" bin/ratelimit
export PATH=$PWD/bin:$PATH

redis-server --bind 127.0.0.1 --save '' --dir / >/dev/null &
until redis-cli ping >/dev/null 2>&1; do sleep 0.05; done
# On a busy machine 10 ms may be too short.
export REDIS_TIMEOUT=2s
# In the part of the Go service.
REDIS_URL=localhost:6379 RUNTIME_ROOT=$PWD RUNTIME_APPDIRECTORY=rules ratelimit &
until curl --silent --fail --output /dev/null localhost:6070/; do sleep 0.05; done

bash typed
