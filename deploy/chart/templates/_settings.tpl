{{/* What the chart adds to the settings, as YAML. */}}
{{- define "slackwater.settingsOfChart" -}}
http:
  listen: 0.0.0.0:{{ .Values.port }}
  # Not NAME.NAMESPACE: that could be somebody's name in public DNS.
  {{- $service := printf "%s.%s.svc" (include "slackwater.name" .) .Release.Namespace }}
  {{- $names := list $service (printf "*.%s" $service) }}
  {{- $names = concat $names (list (printf "%s.cluster.local" $service) (printf "*.%s.cluster.local" $service)) }}
  hosts: {{- concat (list (include "slackwater.name" .)) $names .Values.http.hosts | toYaml | nindent 4 }}
  {{- if .Values.http.tokenSecret }}
  token_file: /etc/slackwater-http-token/token
  {{- end }}
  {{- if .Values.http.tlsSecret }}
  tls: {certificate: /etc/slackwater-http-tls/tls.crt, key: /etc/slackwater-http-tls/tls.key}
  {{- end }}
{{- if and .Values.volume.enabled (not (hasKey .Values.secretEnv "SLACKWATER_STATE_URL")) }}
state:
  url: sqlite:////var/lib/slackwater/state.db
{{- end }}
spark:
  {{- if eq .Values.shape "one-pod" }}
  # As many tasks as the pod has cores. The second number lets Spark try a failed task again.
  master: local[{{ .Values.driver.cores }},4]
  conf:
    spark.driver.memory: {{ .Values.driver.heapMiB }}m
  {{- else }}
  master: k8s://https://kubernetes.default.svc
  conf:
    # An epoch has a task for each core of the executors that were asked for.
    spark.executor.instances: {{ .Values.executor.instances | quote }}
    spark.executor.cores: {{ .Values.executor.cores | quote }}
    {{- if eq .Values.shape "executors" }}
    spark.driver.memory: {{ .Values.driver.heapMiB }}m
    spark.executor.memory: {{ .Values.executor.heapMiB }}m
    spark.executor.memoryOverhead: {{ include "slackwater.executorOverheadMiB" . }}m
    spark.kubernetes.executor.request.cores: {{ .Values.executor.cpuRequest | default .Values.executor.cores | quote }}
    spark.kubernetes.executor.limit.cores: {{ .Values.executor.cores | quote }}
    spark.kubernetes.container.image: {{ include "slackwater.image" . }}
    spark.kubernetes.container.image.pullPolicy: {{ .Values.image.pullPolicy }}
    spark.kubernetes.executor.podTemplateFile: /etc/slackwater/executor.yaml
    spark.kubernetes.authenticate.executor.serviceAccountName: {{ include "slackwater.serviceAccount" . }}-executor
    spark.driver.port: "7078"
    {{- end }}
    spark.authenticate.secret.file: /etc/slackwater-spark/secret
    # One port for blocks in each pod, which the NetworkPolicy allows.
    spark.blockManager.port: "7079"
    spark.driver.blockManager.port: "7079"
  {{- end }}
{{- end -}}

{{- define "slackwater.settings" -}}
{{- $settings := mergeOverwrite (include "slackwater.settingsOfChart" . | fromYaml) (deepCopy .Values.settings) -}}
{{ toYaml $settings }}
{{- end -}}

{{/* Refuses values that would render, but not run. */}}
{{- define "slackwater.check" -}}
{{- $url := dig "state" "url" "" .Values.settings -}}
{{- $hasSecret := hasKey .Values.secretEnv "SLACKWATER_STATE_URL" -}}
{{- $storeIsShared := or $hasSecret (and $url (not (hasPrefix "sqlite" $url))) -}}
{{- if not (or $storeIsShared .Values.volume.enabled) -}}
{{- fail "without a volume the metadata store is lost with the pod: set secretEnv.SLACKWATER_STATE_URL or settings.state.url" -}}
{{- end -}}
{{- $pods := ternary (int .Values.replicas) 2 (eq .Values.shape "one-pod") -}}
{{- if and (eq .Values.shape "spark-application") (gt (int .Values.replicas) 1) -}}
{{- fail "replicas: the Spark operator runs one driver: use shape executors for a standby" -}}
{{- end -}}
{{- if and (gt $pods 1) (not $storeIsShared) -}}
{{- fail "several pods need a metadata store that all of them reach: set secretEnv.SLACKWATER_STATE_URL to a Secret with the URL of PostgreSQL, or settings.state.url to a Spanner database" -}}
{{- end -}}
{{- if and (gt $pods 1) .Values.volume.enabled (ne .Values.volume.accessMode "ReadWriteMany") (not .Values.volume.existingClaim) -}}
{{- fail "several pods can't share a volume that is ReadWriteOnce: set volume.accessMode to ReadWriteMany, or volume.enabled to false and the sink's paths to an object store" -}}
{{- end -}}
{{- $shared := omit .Values.settings "pipelines" -}}
{{- range $name, $own := (.Values.settings.pipelines | default (dict "" dict)) -}}
{{- range $key := list "path" "checkpoint" -}}
{{- $path := dig "sink" $key (dig "sink" $key "" $shared) $own -}}
{{- if and $path (not (contains "://" $path)) (not (and $.Values.volume.enabled (hasPrefix "/var/lib/slackwater/" $path))) -}}
{{- fail (printf "settings: sink.%s %s is neither in an object store nor on the volume at /var/lib/slackwater" $key $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
