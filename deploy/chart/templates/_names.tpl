{{/* The name of the release's objects. */}}
{{- define "slackwater.name" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $chart := .Values.nameOverride | default .Chart.Name -}}
{{- if contains $chart .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $chart | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What selects the pods of a component: takes a list of the context and the component. */}}
{{- define "slackwater.selector" -}}
{{- $context := index . 0 -}}
app.kubernetes.io/name: {{ $context.Values.nameOverride | default $context.Chart.Name }}
app.kubernetes.io/instance: {{ $context.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "slackwater.labels" -}}
{{ include "slackwater.selector" . }}
{{- with index . 0 }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}
{{- end -}}

{{- define "slackwater.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "slackwater.name" .) -}}
{{- end -}}

{{- define "slackwater.claim" -}}
{{- .Values.volume.existingClaim | default (printf "%s-data" (include "slackwater.name" .)) -}}
{{- end -}}

{{- define "slackwater.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* True if the driver asks for executor pods. */}}
{{- define "slackwater.hasExecutors" -}}
{{- if ne .Values.shape "one-pod" }}true{{ end -}}
{{- end -}}

{{/* True if the chart makes the secret by which driver and executors know each other. */}}
{{- define "slackwater.makesSparkSecret" -}}
{{- if and (include "slackwater.hasExecutors" .) (not .Values.sparkSecret.name) }}true{{ end -}}
{{- end -}}

{{- define "slackwater.sparkSecret" -}}
{{- .Values.sparkSecret.name | default (printf "%s-spark" (include "slackwater.name" .)) -}}
{{- end -}}

{{/* The secret, in base64: the one that is there, or else a new one, the same for all templates. */}}
{{- define "slackwater.newSparkSecret" -}}
{{- if not (hasKey .Release "sparkSecret") -}}
{{- $there := lookup "v1" "Secret" .Release.Namespace (include "slackwater.sparkSecret" .) | default dict -}}
{{- $_ := set .Release "sparkSecret" (dig "data" .Values.sparkSecret.key (randAlphaNum 43 | b64enc) $there) -}}
{{- end -}}
{{- .Release.sparkSecret -}}
{{- end -}}

{{/* How the page, the probes and the metrics are asked for. */}}
{{- define "slackwater.scheme" -}}
{{- ternary "https" "http" (ne .Values.http.tlsSecret "") -}}
{{- end -}}
