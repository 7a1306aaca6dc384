#!/usr/bin/env bash
# Runs a script in a network namespace where Redis and a service already run on the usual ports.
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
# 10 ms may be too short on a busy machine.
export REDIS_TIMEOUT=2s
# This service takes the role of the Go service.
REDIS_URL=localhost:6379 RUNTIME_ROOT=$PWD RUNTIME_APPDIRECTORY=rules ratelimit &
until curl --silent --fail --output /dev/null localhost:6070/; do sleep 0.05; done

bash typed
