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

{{/* The credentials of Redis that come from Secrets, by the variable that names their file: {existingSecret, key}. */}}
{{- define "tollgate.redisAuth" -}}
{{- $given := dict -}}
{{- if eq .Values.store.type "redis" -}}
{{- with .Values.store.redis -}}
{{- $all := dict "REDIS_AUTH_FILE" .auth "REDIS_SENTINEL_AUTH_FILE" .sentinelAuth -}}
{{- if .perSecond.enabled -}}{{- $_ := set $all "REDIS_PERSECOND_AUTH_FILE" .perSecond.auth -}}{{- end -}}
{{- range $variable, $auth := $all -}}
{{- if $auth.existingSecret -}}{{- $_ := set $given $variable $auth -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $given -}}
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
{{- if .tls.enabled }}
{{- include "tollgate.env" (list "REDIS_PERSECOND_TLS" "true") }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- range $variable, $_ := include "tollgate.redisAuth" . | fromJson }}
{{- include "tollgate.env" (list $variable (printf "/secrets/redis/%s" $variable)) }}
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

{{/* Refuses values that contradict each other, would be ignored, or fail in the cluster. */}}
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
{{- include "tollgate.checkSettings" . -}}
{{- include "tollgate.checkRules" . -}}
{{- include "tollgate.checkPorts" . -}}
{{- end -}}

{{/* Refuses names that are no setting, and passwords that anyone who reads the Deployment would see. */}}
{{- define "tollgate.checkSettings" -}}
{{- $settings := default dict .Values.settings -}}
{{- $known := .Files.Get "files/settings.txt" | trim | splitList "\n" -}}
{{- range $name, $_ := $settings -}}
{{- if not (has $name $known) -}}
{{- fail (printf "settings.%s: there is no such setting; docs/reference/settings.md lists all. Variables of other programs go into extraEnv" $name) -}}
{{- end -}}
{{- end -}}
{{- range $name := list "SHUTDOWN_DELAY" "SHUTDOWN_TIMEOUT" -}}
{{- if hasKey $settings $name -}}
{{- fail (printf "settings.%s: set shutdown.%s, from which terminationGracePeriodSeconds follows" $name (ternary "delaySeconds" "timeoutSeconds" (eq $name "SHUTDOWN_DELAY"))) -}}
{{- end -}}
{{- end -}}
{{- $secrets := dict "REDIS_URL" "store.redis.auth.existingSecret" "REDIS_PERSECOND_URL" "store.redis.perSecond.auth.existingSecret" "REDIS_AUTH" "store.redis.auth.existingSecret" "REDIS_SENTINEL_AUTH" "store.redis.sentinelAuth.existingSecret" "REDIS_PERSECOND_AUTH" "store.redis.perSecond.auth.existingSecret" "REDIS_PERSECOND_SENTINEL_AUTH" "extraEnv" -}}
{{- range include "tollgate.variables" . | fromYamlArray -}}
{{- if and .value (hasKey $secrets .name) (or (not (hasSuffix "_URL" .name)) (contains "@" .value)) -}}
{{- $own := dict "REDIS_URL" "store.redis.url" "REDIS_PERSECOND_URL" "store.redis.perSecond.url" -}}
{{- $path := hasKey $settings .name | ternary (printf "settings.%s" .name) (get $own .name) | default .name -}}
{{- fail (printf "%s: a password here is shown to everyone who may read the Deployment. Put it into a Secret, and name that in %s" $path (get $secrets .name)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuses rules files that no replica would load. The hook of rules.check finds the other errors. */}}
{{- define "tollgate.checkRules" -}}
{{- $merges := include "tollgate.isOn" (list . "MERGE_DOMAIN_CONFIG") -}}
{{- $domains := dict -}}
{{- range $file, $text := .Values.rules.files -}}
{{- $rules := fromYaml $text -}}
{{- with $rules.Error -}}
{{- fail (printf "rules.files[%s]: expected rules, got invalid YAML: %s" $file .) -}}
{{- end -}}
{{- if not $rules.domain -}}
{{- fail (printf "rules.files[%s]: no `domain`. Begin the file with `domain: NAME`, the domain of Envoy's rate limit filter" $file) -}}
{{- end -}}
{{- if not $rules.descriptors -}}
{{- fail (printf "rules.files[%s]: no `descriptors`, so the domain %v has no limit" $file $rules.domain) -}}
{{- end -}}
{{- $name := toString $rules.domain -}}
{{- if and (hasKey $domains $name) (not $merges) -}}
{{- fail (printf "rules.files[%s]: rules.files[%s] has the domain %s, too. Put its descriptors into one file, or set settings.MERGE_DOMAIN_CONFIG to true" $file (get $domains $name) $name) -}}
{{- end -}}
{{- $_ := set $domains $name $file -}}
{{- end -}}
{{- end -}}

{{/* The ports of the container, as {name: {number, variable, value, closed}}. Other Pods and the kubelet cannot reach `closed`
ones. */}}
{{- define "tollgate.ports" -}}
{{- $values := include "tollgate.values" . | fromJson -}}
{{- $ports := dict -}}
{{- range list (list "grpc" "GRPC_HOST" "GRPC_PORT" 8081) (list "http" "HOST" "PORT" 8080) (list "debug" "DEBUG_HOST" "DEBUG_PORT" 6070) (list "metrics" "PROMETHEUS_ADDR" "PROMETHEUS_ADDR" 9090) (list "admin" "ADMIN_ADDR" "ADMIN_ADDR" 6071) -}}
{{- $host := get $values (index . 1) | toString -}}
{{- $number := get $values (index . 2) | toString | regexFind "[0-9]+$" | default (toString (index . 3)) -}}
{{- if eq $number "0" -}}
{{- fail (printf "%s: expected a fixed port, which the Service and probes can name, got 0" (index . 2)) -}}
{{- end -}}
{{- $isClosed := regexMatch "^(127\\.|localhost|\\[?::1)" $host -}}
{{- $_ := set $ports (index . 0) (dict "number" $number "variable" (index . 1) "value" $host "closed" $isClosed) -}}
{{- end -}}
{{- toJson $ports -}}
{{- end -}}

{{/* Refuses addresses and probes with which the Pods would run and not be reached. */}}
{{- define "tollgate.checkPorts" -}}
{{- $values := include "tollgate.values" . | fromJson -}}
{{- $ports := include "tollgate.ports" . | fromJson -}}
{{- $needed := dict -}}
{{- if not $values.GRPC_UDS -}}{{- $_ := set $needed "grpc" "Envoys of other Pods" -}}{{- end -}}
{{- if .Values.serviceMonitor.enabled -}}{{- $_ := set $needed "metrics" "Prometheus (serviceMonitor.enabled)" -}}{{- end -}}
{{- if .Values.admin.enabled -}}{{- $_ := set $needed "admin" "its users (admin.enabled)" -}}{{- end -}}
{{- range $name, $who := $needed -}}
{{- $port := get $ports $name -}}
{{- if $port.closed -}}
{{- fail (printf "%s=%s: %s cannot reach a loopback address of the Pod. Leave it unset" $port.variable $port.value $who) -}}
{{- end -}}
{{- end -}}
{{- range $name, $probe := .Values.probes -}}
{{- range $kind, $target := omit (default dict $probe) "exec" -}}
{{- if kindIs "map" $target -}}
{{- if $probe.exec -}}
{{- fail (printf "probes.%s: Kubernetes allows one of exec and %s. Set probes.%s.exec to null" $name $kind $name) -}}
{{- end -}}
{{- $use := printf "Use exec: {command: [/bin/tollgate, health%s]}, which works with every setting" (ternary "" ", --live" (eq $name "readiness")) -}}
{{- range $known, $port := $ports -}}
{{- if and $port.closed (or (eq (toString $target.port) $known) (eq (toString $target.port) $port.number)) -}}
{{- fail (printf "probes.%s.%s: the kubelet cannot reach the port %s with %s=%s. %s" $name $kind $known $port.variable $port.value $use) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $kind "grpc") (or (include "tollgate.isOn" (list $ "GRPC_SERVER_USE_TLS")) $values.GRPC_UDS) -}}
{{- fail (printf "probes.%s.grpc: the kubelet's gRPC probes know neither TLS nor sockets. %s" $name $use) -}}
{{- end -}}
{{- end -}}
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
{{- include "tollgate.env" (list "USE_STATSD" false) }}
{{- if .Values.autoscaling.enabled }}
{{/* Envoys connect to replicas that were added. */}}
{{- include "tollgate.env" (list "GRPC_MAX_CONNECTION_AGE" "30m") }}
{{- end }}
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
{{- range concat (default list .Values.extraEnv) (fromYamlArray $settings) (fromYamlArray (include "tollgate.ownVariables" .)) -}}
{{- if not (hasKey $seen .name) -}}
{{- $_ := set $seen .name true -}}
{{- $all = append $all . -}}
{{- end -}}
{{- end -}}
{{- toYaml $all -}}
{{- end -}}

{{/* The effective values by variable; those that `extraEnv` takes from elsewhere are missing. */}}
{{- define "tollgate.values" -}}
{{- $values := dict -}}
{{- range include "tollgate.variables" . | fromYamlArray -}}
{{- if hasKey . "value" -}}{{- $_ := set $values .name .value -}}{{- end -}}
{{- end -}}
{{- toJson $values -}}
{{- end -}}

{{/* Not empty if a variable is on, as Go reads booleans. Arguments: the root, the variable. */}}
{{- define "tollgate.isOn" -}}
{{- $value := get (include "tollgate.values" (index . 0) | fromJson) (index . 1) -}}
{{- if has (lower $value) (list "1" "t" "true") -}}on{{- end -}}
{{- end -}}

{{/* The effective BACKEND_TYPE, which `settings` and `extraEnv` may set too. */}}
{{- define "tollgate.backend" -}}
{{- get (include "tollgate.values" . | fromJson) "BACKEND_TYPE" -}}
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

{{/* The container of the Deployment and of the hook: image, variables, and mounts. */}}
{{- define "tollgate.container" -}}
image: {{ include "tollgate.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
env: {{- include "tollgate.variables" . | nindent 2 }}
securityContext: {{- toYaml .Values.securityContext | nindent 2 }}
{{- $mounts := list -}}
{{- if eq .Values.rules.source "files" -}}
{{- $mounts = append $mounts (dict "name" "rules" "mountPath" "/data/ratelimit/config" "readOnly" true) -}}
{{- end -}}
{{- if include "tollgate.redisAuth" . | fromJson -}}
{{- $mounts = append $mounts (dict "name" "redis-auth" "mountPath" "/secrets/redis" "readOnly" true) -}}
{{- end -}}
{{- range include "tollgate.secrets" . | fromJsonArray -}}
{{- $mounts = append $mounts (dict "name" (printf "tls-%s" .name) "mountPath" (printf "/tls/%s" .name) "readOnly" true) -}}
{{- end -}}
{{- with concat $mounts (default list .Values.extraVolumeMounts) }}
volumeMounts: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The fields of a Pod that the Deployment and the hook share. Arguments: the root, the name of the ConfigMap with the rules. */}}
{{- define "tollgate.pod" -}}
{{- $rules := index . 1 -}}
{{- with index . 0 -}}
automountServiceAccountToken: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- $volumes := list -}}
{{- if eq .Values.rules.source "files" -}}
{{- $volumes = append $volumes (dict "name" "rules" "configMap" (dict "name" $rules)) -}}
{{- end -}}
{{- $sources := list -}}
{{- range $variable, $auth := include "tollgate.redisAuth" . | fromJson -}}
{{- $item := dict "key" $auth.key "path" $variable -}}
{{- $sources = append $sources (dict "secret" (dict "name" $auth.existingSecret "items" (list $item))) -}}
{{- end -}}
{{- if $sources -}}
{{- $volumes = append $volumes (dict "name" "redis-auth" "projected" (dict "sources" $sources)) -}}
{{- end -}}
{{- range include "tollgate.secrets" . | fromJsonArray -}}
{{- $volumes = append $volumes (dict "name" (printf "tls-%s" .name) "secret" (dict "secretName" .secret)) -}}
{{- end -}}
{{- with concat $volumes (default list .Values.extraVolumes) }}
volumes: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
{{- end -}}
