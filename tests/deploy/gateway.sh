# shellcheck shell=bash
# Sourced by pod.sh. The environment of Envoy Gateway's rate limit service: a control plane that starts after the
# service, an Envoy that sends requests, and then new certificates for all three.
#
#   . gateway.sh DIRECTORY PYTHON CONTROL_PLANE ENVOY The directory has `envoy.json`; `first` and `second` have
#   certificates and the resources to publish.
dir=$1 python=$2 program=$3 envoy=$4

# begin_control_plane VERSION: it runs until its standard input ends.
begin_control_plane() {
    (
        cd "$dir/$1"
        exec "$python" "$program" 127.0.0.1:18001 plane.crt plane.key ca.crt
    ) < <(cat "$dir/$1/published"; sleep infinity) >"$dir/$1/seen" &
    control_plane=$!
}

# begin_envoy VERSION: its certificates are in its working directory.
begin_envoy() {
    (
        cd "$dir/$1"
        exec "$envoy" --disable-hot-restart --concurrency 1 --log-level error -c ../envoy.json
    ) &
    asking=$!
    until_it curl --fail localhost:9901/ready
}

end() {
    kill "$1"
    wait "$1" || true
}

# is_refused CLIENT: sends a request through Envoy, which allows it if a busy machine answers too late.
is_refused() { [ "$(curl --silent --output /dev/null --write-out '%{http_code}' --header "x-client-id: $1" localhost:10000)" = 429 ]; }

serves_rules() { curl --silent localhost:6070/rlconfig | grep "requests_per_unit=$1,"; }
shows_certificate() { openssl s_client -connect localhost:8081 -CAfile "$dir/$1/ca.crt" -verify_return_error </dev/null; }

curl --silent --data '{"domain": "shop", "descriptors": [{"entries": [{"key": "a"}]}]}' localhost:8080/json
echo

begin_control_plane first
until_it serves_rules 3
begin_envoy first
until_it is_refused alice
curl --silent localhost:19001/metrics | grep '^ratelimit_service_rate_limit_total_hits'

mkdir "$root/certs/..next"
install -m 644 "$dir"/second/{ca.crt,tls.crt,tls.key} "$root/certs/..next"
ln -s ..next "$root/certs/..data.new"
mv -T "$root/certs/..data.new" "$root/certs/..data"
end "$control_plane"
begin_control_plane second
until_it serves_rules 2
until_it shows_certificate second
# On the open connection.
until_it is_refused bob
end "$asking"
begin_envoy second
until_it is_refused carol
# Both control planes received the client certificate and the node id.
for version in first second; do
    grep --quiet '"stream": "sotw".*x509_subject_alternative_name' "$dir/$version/seen"
    grep --quiet '"id": "envoy-ratelimit"' "$dir/$version/seen"
done
