{{- define "tollgate.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tollgate.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tollgate.labels" -}}
{{ include "tollgate.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "tollgate.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "tollgate.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "tollgate.rulesConfigMap" -}}
{{- default (printf "%s-rules" (include "tollgate.fullname" .)) .Values.rules.existingConfigMap -}}
{{- end -}}

{{- define "tollgate.image" -}}
{{- $missing := "image.repository is required: there is no public image. Build one with `docker build -f deploy/Dockerfile -t REGISTRY/tollgate:VERSION .`, push it, and set image.repository=REGISTRY/tollgate" -}}
{{- $repository := required $missing .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* One environment variable, or nothing if the value is empty. Arguments: name, value. Helm reads numbers of values
files as floats, which print as 1e+06. */}}
{{- define "tollgate.env" -}}
{{- $value := index . 1 -}}
{{- if ne (toString $value) "" }}
- name: {{ index . 0 }}
{{- if and (kindIs "float64" $value) (eq (floor $value) $value) }}
  value: {{ printf "%.0f" $value | quote }}
{{- else }}
  value: {{ toString $value | quote }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* Credentials from a Secret, or nothing without one. Arguments: name, {existingSecret, key}. */}}
{{- define "tollgate.secretEnv" -}}
{{- with index . 1 -}}
{{- if .existingSecret }}
- name: {{ index $ 0 }}
  valueFrom: {secretKeyRef: {name: {{ .existingSecret }}, key: {{ .key }}}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Variables of the counter store. */}}
{{- define "tollgate.store" -}}
{{- $store := .Values.store -}}
{{- include "tollgate.env" (list "BACKEND_TYPE" (get (dict "memory" "memory" "redis" "redis" "memcached" "memcache") $store.type)) }}
{{- include "tollgate.env" (list "STORE_FAILURE_POLICY" $store.failurePolicy) }}
{{- include "tollgate.env" (list "MEMORY_MAX_KEYS" $store.memory.maxKeys) }}
{{- if eq $store.type "redis" }}
{{- with $store.redis }}
{{- include "tollgate.env" (list "REDIS_TYPE" .type) }}
{{- include "tollgate.env" (list "REDIS_URL" (required "store.redis.url is required for store.type: redis" .url)) }}
{{- include "tollgate.env" (list "REDIS_TIMEOUT" .timeout) }}
{{- include "tollgate.secretEnv" (list "REDIS_AUTH" .auth) }}
{{- include "tollgate.secretEnv" (list "REDIS_SENTINEL_AUTH" .sentinelAuth) }}
{{- if .tls.enabled }}
{{- include "tollgate.env" (list "REDIS_TLS" "true") }}
{{- if .tls.existingSecret }}
{{- include "tollgate.env" (list "REDIS_TLS_CACERT" "/tls/store/ca.crt") }}
{{- end }}
{{- if .tls.clientCertificate }}
{{- include "tollgate.env" (list "REDIS_TLS_CLIENT_CERT" "/tls/store/tls.crt") }}
{{- include "tollgate.env" (list "REDIS_TLS_CLIENT_KEY" "/tls/store/tls.key") }}
{{- end }}
{{- end }}
{{- if .perSecond.enabled }}
{{- include "tollgate.env" (list "REDIS_PERSECOND" "true") }}
{{- include "tollgate.env" (list "REDIS_PERSECOND_TYPE" .perSecond.type) }}
{{- include "tollgate.env" (list "REDIS_PERSECOND_URL" (required "store.redis.perSecond.url is required with perSecond.enabled" .perSecond.url)) }}
{{- include "tollgate.env" (list "REDIS_PERSECOND_TIMEOUT" .timeout) }}
{{- include "tollgate.secretEnv" (list "REDIS_PERSECOND_AUTH" .perSecond.auth) }}
{{- if .tls.enabled }}
{{- include "tollgate.env" (list "REDIS_PERSECOND_TLS" "true") }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if eq $store.type "memcached" }}
{{- with $store.memcached }}
{{- if .srv }}
{{- include "tollgate.env" (list "MEMCACHE_SRV" .srv) }}
{{- include "tollgate.env" (list "MEMCACHE_SRV_REFRESH" .srvRefresh) }}
{{- else }}
{{- include "tollgate.env" (list "MEMCACHE_HOST_PORT" (required "store.memcached.hosts or srv is required for store.type: memcached" (join "," .hosts))) }}
{{- end }}
{{- include "tollgate.env" (list "MEMCACHE_TIMEOUT" .timeout) }}
{{- if .tls.enabled }}
{{- include "tollgate.env" (list "MEMCACHE_TLS" "true") }}
{{- if .tls.existingSecret }}
{{- include "tollgate.env" (list "MEMCACHE_TLS_CACERT" "/tls/store/ca.crt") }}
{{- end }}
{{- if .tls.clientCertificate }}
{{- include "tollgate.env" (list "MEMCACHE_TLS_CLIENT_CERT" "/tls/store/tls.crt") }}
{{- include "tollgate.env" (list "MEMCACHE_TLS_CLIENT_KEY" "/tls/store/tls.key") }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Variables of the rules source. */}}
{{- define "tollgate.rules" -}}
{{- if eq .Values.rules.source "xds" }}
{{- with .Values.rules.xds }}
{{- include "tollgate.env" (list "CONFIG_TYPE" "GRPC_XDS_SOTW") }}
{{- include "tollgate.env" (list "CONFIG_GRPC_XDS_SERVER_URL" (required "rules.xds.serverUrl is required for rules.source: xds" .serverUrl)) }}
{{- include "tollgate.env" (list "CONFIG_GRPC_XDS_NODE_ID" .nodeId) }}
{{- include "tollgate.env" (list "FORCE_START_WITHOUT_INITIAL_CONFIG" "true") }}
{{- if .tls.enabled }}
{{- include "tollgate.env" (list "CONFIG_GRPC_XDS_SERVER_USE_TLS" "true") }}
{{- if .tls.existingSecret }}
{{- include "tollgate.env" (list "CONFIG_GRPC_XDS_SERVER_TLS_CACERT" "/tls/xds/ca.crt") }}
{{- end }}
{{- if .tls.clientCertificate }}
{{- include "tollgate.env" (list "CONFIG_GRPC_XDS_CLIENT_TLS_CERT" "/tls/xds/tls.crt") }}
{{- include "tollgate.env" (list "CONFIG_GRPC_XDS_CLIENT_TLS_KEY" "/tls/xds/tls.key") }}
{{- end }}
{{- end }}
{{- end }}
{{- else }}
{{- include "tollgate.env" (list "RUNTIME_ROOT" "/data") }}
{{- include "tollgate.env" (list "RUNTIME_SUBDIRECTORY" "ratelimit") }}
{{- end }}
{{- end -}}

{{/* Refuses values that contradict each other and would otherwise be ignored, or fail in the cluster. */}}
{{- define "tollgate.check" -}}
{{- $tls := dict "store.redis.tls" .Values.store.redis.tls "store.memcached.tls" .Values.store.memcached.tls "rules.xds.tls" .Values.rules.xds.tls -}}
{{- range $path, $values := $tls -}}
{{- if and $values.enabled $values.clientCertificate (not $values.existingSecret) -}}
{{- fail (printf "%s.existingSecret is required with %s.clientCertificate" $path $path) -}}
{{- end -}}
{{- end -}}
{{- with .Values.tls -}}
{{- if and .requireClientCertificate (not .enabled) -}}
{{- fail "tls.enabled is required with tls.requireClientCertificate" -}}
{{- end -}}
{{- if and .clientSubjectAltName (not .requireClientCertificate) -}}
{{- fail "tls.requireClientCertificate is required with tls.clientSubjectAltName" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.rules.files .Values.rules.existingConfigMap -}}
{{- fail "rules.files and rules.existingConfigMap exclude each other: set rules.files=null, or leave existingConfigMap empty" -}}
{{- end -}}
{{- with .Values.admin -}}
{{- if and .enabled (not .existingSecret) -}}
{{- fail "admin.existingSecret is required with admin.enabled: a Secret with the key `tokens`" -}}
{{- end -}}
{{- if and .tls (not $.Values.tls.enabled) -}}
{{- fail "tls.enabled is required with admin.tls" -}}
{{- end -}}
{{- end -}}
{{- if eq (include "tollgate.backend" .) "memory" -}}
{{- if .Values.autoscaling.enabled -}}
{{- fail "autoscaling.enabled: each replica that counts in memory admits every limit once more. Set store.type to redis or memcached" -}}
{{- end -}}
{{- if gt (int .Values.replicaCount) 1 -}}
{{- fail (printf "replicaCount: %d replicas that count in memory admit every limit %d times. Set store.type to redis or memcached, or replicaCount to 1" (int .Values.replicaCount) (int .Values.replicaCount)) -}}
{{- end -}}
{{- end -}}
{{- with .Values.autoscaling -}}
{{- if and .enabled (gt (int .minReplicas) (int .maxReplicas)) -}}
{{- fail (printf "autoscaling.minReplicas: expected at most maxReplicas (%d), got %d" (int .maxReplicas) (int .minReplicas)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Variables that other values than `settings` and `extraEnv` set. */}}
{{- define "tollgate.ownVariables" -}}
{{- include "tollgate.store" . }}
{{- include "tollgate.rules" . }}
{{/* A replica without rules gets no traffic, so a rollout with bad rules stops at the first replica. */}}
{{- include "tollgate.env" (list "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED" true) }}
{{- include "tollgate.env" (list "GRPC_WORKERS" .Values.workers) }}
{{- include "tollgate.env" (list "SHUTDOWN_DELAY" (printf "%ds" (int .Values.shutdown.delaySeconds))) }}
{{- include "tollgate.env" (list "SHUTDOWN_TIMEOUT" (printf "%ds" (int .Values.shutdown.timeoutSeconds))) }}
{{- include "tollgate.env" (list "LOG_LEVEL" .Values.log.level) }}
{{- with .Values.admin }}
{{- if .enabled }}
{{- include "tollgate.env" (list "ADMIN_ADDR" ":6071") }}
{{- include "tollgate.env" (list "ADMIN_TOKEN_FILE" "/tls/admin/tokens") }}
{{- if .tls }}
{{- include "tollgate.env" (list "ADMIN_USE_TLS" true) }}
{{- end }}
{{- end }}
{{- if .readOnly }}
{{- include "tollgate.env" (list "ADMIN_READ_ONLY" true) }}
{{- end }}
{{- end }}
{{- include "tollgate.env" (list "LOG_FORMAT" .Values.log.format) }}
{{- with .Values.tls }}
{{- if .enabled }}
{{- include "tollgate.env" (list "GRPC_SERVER_USE_TLS" true) }}
{{- include "tollgate.env" (list "GRPC_SERVER_TLS_CERT" "/tls/grpc/tls.crt") }}
{{- include "tollgate.env" (list "GRPC_SERVER_TLS_KEY" "/tls/grpc/tls.key") }}
{{- if .requireClientCertificate }}
{{- include "tollgate.env" (list "GRPC_CLIENT_TLS_CACERT" "/tls/grpc/ca.crt") }}
{{- include "tollgate.env" (list "GRPC_CLIENT_TLS_SAN" .clientSubjectAltName) }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* All variables, each once: `extraEnv` before `settings` before those of other values. */}}
{{- define "tollgate.variables" -}}
{{- $seen := dict -}}
{{- $all := list -}}
{{- $settings := "" -}}
{{- range $name, $value := .Values.settings -}}
{{- $settings = print $settings (include "tollgate.env" (list $name $value)) -}}
{{- end -}}
{{- range concat .Values.extraEnv (fromYamlArray $settings) (fromYamlArray (include "tollgate.ownVariables" .)) -}}
{{- if not (hasKey $seen .name) -}}
{{- $_ := set $seen .name true -}}
{{- $all = append $all . -}}
{{- end -}}
{{- end -}}
{{- toYaml $all -}}
{{- end -}}

{{/* The effective BACKEND_TYPE, which `settings` and `extraEnv` may set too. */}}
{{- define "tollgate.backend" -}}
{{- range include "tollgate.variables" . | fromYamlArray -}}
{{- if eq .name "BACKEND_TYPE" -}}{{- .value -}}{{- end -}}
{{- end -}}
{{- end -}}

{{/* The resources, with half a core for each worker unless they request CPU themselves. */}}
{{- define "tollgate.resources" -}}
{{- $cpu := dict "requests" (dict "cpu" (printf "%dm" (mul 500 .Values.workers))) -}}
{{- toYaml (merge (deepCopy (default dict .Values.resources)) $cpu) -}}
{{- end -}}

{{/* The Secrets that are mounted, as a list of {name, secret}. */}}
{{- define "tollgate.secrets" -}}
{{- $store := get (dict "redis" .Values.store.redis.tls "memcached" .Values.store.memcached.tls) .Values.store.type -}}
{{- $mounted := list -}}
{{- if and $store $store.enabled $store.existingSecret -}}
{{- $mounted = append $mounted (dict "name" "store" "secret" $store.existingSecret) -}}
{{- end -}}
{{- with .Values.rules -}}
{{- if and (eq .source "xds") .xds.tls.enabled .xds.tls.existingSecret -}}
{{- $mounted = append $mounted (dict "name" "xds" "secret" .xds.tls.existingSecret) -}}
{{- end -}}
{{- end -}}
{{- if .Values.tls.enabled -}}
{{- $mounted = append $mounted (dict "name" "grpc" "secret" (required "tls.existingSecret is required with tls.enabled" .Values.tls.existingSecret)) -}}
{{- end -}}
{{- if .Values.admin.enabled -}}
{{- $mounted = append $mounted (dict "name" "admin" "secret" .Values.admin.existingSecret) -}}
{{- end -}}
{{- toJson $mounted -}}
{{- end -}}
