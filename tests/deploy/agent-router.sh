# shellcheck shell=bash
# Sourced by pod.sh. The environment of Agent Router's second rate limit service: its controller's xDS, and an Envoy with
# its filter, whose metadata a script sets as its processor does.
#
#   . agent-router.sh DIRECTORY PYTHON CONTROL_PLANE ENVOY The directory has `envoy.json`, and the resources to publish in
#   `first` and `second`.
dir=$1 python=$2 program=$3 envoy=$4

# Starts without a policy, of which the controller sends nothing.
curl --silent --data '{"domain": "ai-gateway-quota", "descriptors": [{"entries": [{"key": "a"}]}]}' localhost:8080/json
echo

mkfifo "$dir/commands"
"$python" "$program" 127.0.0.1:18002 <"$dir/commands" >"$dir/seen" &
exec 7>"$dir/commands"
cat "$dir/first" >&7
(
    cd "$dir"
    exec "$envoy" --disable-hot-restart --concurrency 1 --log-level error -c envoy.json
) &
until_it curl --fail localhost:9901/ready

rules() { curl --silent localhost:6070/rlconfig | grep -- "$1"; }
until_it rules 'model_name_override_small: unit=DAY requests_per_unit=10,'
grep --quiet '"id": "envoy-ai-gateway-ratelimit"' "$dir/seen"

# answers STATUS MODEL COST HEADER: sends a request, whose response costs this.
answers() {
    [ "$(curl --silent --output /dev/null --write-out '%{http_code}' --header "x-ai-eg-model: $2" \
        --header "x-cost: $3" --header "$4" localhost:10000/ready)" = "$1" ]
}
# counts NUMBER PATTERN: the counter whose key is like this.
counts() { [ "$(redis-cli get "$(redis-cli --scan --pattern "ai-gateway-quota_backend_name_default/openai_model_name_override_$2")")" = "$1" ]; }

# Each request counts one hit, and its tokens when its stream is done.
answers 200 small 20 'x: y'
until_it counts 21 'small_*'
answers 429 small 5 'x: y'
until_it counts 22 'small_*'

# A caller passes while one of its buckets has tokens left.
answers 200 large 15 'x: y'
until_it counts 16 'large_rule-1-match--1_*'
answers 429 large 1 'x: y'
answers 200 large 3 'x-tenant-id: gold'
until_it counts 4 'large_rule-0-x-tenant-id|gold-match-0_*'
answers 200 large 30 'x-tenant-id: gold'
until_it counts 35 'large_rule-0-x-tenant-id|gold-match-0_*'
answers 429 large 1 'x-tenant-id: gold'

# A bucket in shadow mode refuses nothing, as a quota that is not used up.
for cost in 30 30 30; do answers 200 watched "$cost" 'x-tenant-id: gold'; done

# A changed policy, with a window of a month.
cat "$dir/second" >&7
until_it rules 'model_name_override_small: unit=MONTH requests_per_unit=100,'
answers 200 small 200 'x: y'
until_it answers 429 small 1 'x: y'
curl --silent localhost:9090/metrics | grep '^ratelimit_service_rate_limit_total_hits'
