#!/usr/bin/env bash
# Creates certificates like those of Envoy Gateway's own job: a CA and the certificates that it signs, with RSA keys and
# without extended key usage.
#
#   certificates.sh DIRECTORY      ca.crt; plane for the control plane, tls for the service, envoy for Envoy
set -euo pipefail
cd "$1"

# key NAME: in the format of that job.
key() { openssl genrsa -traditional -out "$1.key" 2048 2>/dev/null; }

# certificate NAME ARGUMENT…: with only the extensions of the arguments.
certificate() {
    local name=$1
    shift
    key "$name"
    openssl req -x509 -new -key "$name.key" -out "$name.crt" -days 365 \
        -config <(printf '[req]\ndistinguished_name = none\n[none]\n') "$@"
}

usage=digitalSignature,nonRepudiation,keyEncipherment,dataEncipherment
signed=(-CA ca.crt -CAkey ca.key -addext "keyUsage=critical,$usage")

certificate ca -subj "/CN=envoy-gateway/serialNumber=$RANDOM" -addext basicConstraints=critical,CA:true \
    -addext keyUsage=critical,digitalSignature,keyEncipherment,keyCertSign
certificate plane "${signed[@]}" -subj /CN=envoy-gateway \
    -addext 'subjectAltName=DNS:envoy-gateway,DNS:envoy-gateway.envoy-gateway-system'
for name in tls envoy; do
    certificate "$name" "${signed[@]}" -subj '/CN=*' -addext 'subjectAltName=DNS:*.envoy-gateway-system'
done
