{{- define "slackwater.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
# A large volume is not walked through at each start.
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "slackwater.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "slackwater.env" -}}
# Otherwise gRPC and glibc take as much memory as the records.
- name: MALLOC_ARENA_MAX
  value: "2"
{{- range $name, $secret := .Values.secretEnv }}
- name: {{ $name }}
  valueFrom:
    secretKeyRef: {name: {{ $secret.name }}, key: {{ $secret.key }}}
{{- end }}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "slackwater.mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if .Values.endpointSecret }}
- {name: endpoint, mountPath: /etc/slackwater-endpoint, readOnly: true}
{{- end }}
{{- if include "slackwater.hasExecutors" . }}
- {name: spark-secret, mountPath: /etc/slackwater-spark, readOnly: true}
{{- end }}
{{- if .Values.volume.enabled }}
- {name: data, mountPath: /var/lib/slackwater}
{{- end }}
{{- end -}}

{{- define "slackwater.volumes" -}}
- name: tmp
  emptyDir: {sizeLimit: {{ .Values.tmpSize }}}
{{- with .Values.endpointSecret }}
- name: endpoint
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- if include "slackwater.hasExecutors" . }}
- name: spark-secret
  secret:
    secretName: {{ include "slackwater.sparkSecret" . }}
    defaultMode: 0440
    items: [{key: {{ .Values.sparkSecret.key }}, path: secret}]
{{- end }}
{{- if .Values.volume.enabled }}
- name: data
  persistentVolumeClaim: {claimName: {{ include "slackwater.claim" . }}}
{{- end }}
{{- end -}}

{{- define "slackwater.placement" -}}
{{- with .Values.nodeSelector -}}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The metadata and spec of the pod that runs slackwater; takes the context and its container's name. */}}
{{- define "slackwater.driverPod" -}}
{{- $container := index . 1 -}}
{{- with index . 0 -}}
metadata:
  labels:
    {{- include "slackwater.selector" (list . "driver") | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    # New settings start the pod again.
    checksum/settings: {{ include "slackwater.settings" . | sha256sum }}
    {{- if eq .Values.shape "executors" }}
    checksum/executor: {{ include "slackwater.executorPod" . | sha256sum }}
    {{- end }}
    {{- if include "slackwater.makesSparkSecret" . }}
    # An executor with another secret than its driver's is refused.
    checksum/spark-secret: {{ include "slackwater.newSparkSecret" . | sha256sum }}
    {{- end }}
    prometheus.io/scrape: "true"
    prometheus.io/port: {{ .Values.port | quote }}
    prometheus.io/path: /metrics
    prometheus.io/scheme: {{ include "slackwater.scheme" . }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "slackwater.serviceAccount" . }}
  automountServiceAccountToken: {{ include "slackwater.hasExecutors" . | eq "true" }}
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
  {{- with include "slackwater.placement" . }}
  {{- . | nindent 2 }}
  {{- end }}
  topologySpreadConstraints:
    {{- if .Values.topologySpreadConstraints }}
    {{- toYaml .Values.topologySpreadConstraints | nindent 4 }}
    {{- else }}
    # Otherwise an owner and its standby may share the node that is lost.
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels: {{- include "slackwater.selector" (list . "driver") | nindent 10 }}
    {{- end }}
  securityContext:
    {{- include "slackwater.podSecurity" . | nindent 4 }}
  containers:
    - name: {{ $container }}
      image: {{ include "slackwater.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      env:
        {{- include "slackwater.env" . | nindent 8 }}
        - name: POD_NAME
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        - name: POD_IP
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
      ports:
        - {name: http, containerPort: {{ .Values.port }}}
        {{- if eq .Values.shape "executors" }}
        - {name: driver, containerPort: 7078}
        - {name: blocks, containerPort: 7079}
        {{- end }}
      # Neither a long epoch nor a pause nor a standby fails them: they ask whether the process answers.
      startupProbe:
        httpGet: {path: /healthz, port: http, scheme: {{ include "slackwater.scheme" . | upper }}}
        periodSeconds: 2
        failureThreshold: 60
      livenessProbe:
        httpGet: {path: /healthz, port: http, scheme: {{ include "slackwater.scheme" . | upper }}}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      readinessProbe:
        # A standby that can take over is ready, too: otherwise a rolling update would wait for ever.
        httpGet: {path: "/readyz?standby=ready", port: http, scheme: {{ include "slackwater.scheme" . | upper }}}
        periodSeconds: 5
        timeoutSeconds: 5
      securityContext:
        {{- include "slackwater.containerSecurity" . | nindent 8 }}
      volumeMounts:
        - {name: settings, mountPath: /etc/slackwater, readOnly: true}
        {{- if .Values.http.tokenSecret }}
        - {name: http-token, mountPath: /etc/slackwater-http-token, readOnly: true}
        {{- end }}
        {{- if .Values.http.tlsSecret }}
        - {name: http-tls, mountPath: /etc/slackwater-http-tls, readOnly: true}
        {{- end }}
        {{- include "slackwater.mounts" . | nindent 8 }}
      {{- if ne .Values.shape "spark-application" }}
      args: [run, -c, /etc/slackwater/slackwater.yaml]
      resources:
        requests:
          cpu: {{ .Values.driver.cpuRequest | default .Values.driver.cores | quote }}
          memory: {{ include "slackwater.driverMiB" . }}Mi
        limits:
          cpu: {{ .Values.driver.cores | quote }}
          memory: {{ include "slackwater.driverMiB" . }}Mi
      {{- end }}
  volumes:
    - name: settings
      configMap: {name: {{ include "slackwater.name" . }}}
    {{- with .Values.http.tokenSecret }}
    - name: http-token
      secret: {secretName: {{ .name }}, defaultMode: 0440, items: [{key: {{ .key }}, path: token}]}
    {{- end }}
    {{- with .Values.http.tlsSecret }}
    - name: http-tls
      secret: {secretName: {{ . }}, defaultMode: 0440}
    {{- end }}
    {{- include "slackwater.volumes" . | nindent 4 }}
{{- end -}}
{{- end -}}

{{/* The template of Spark's executors. Spark adds the image, what to start, and resources. */}}
{{- define "slackwater.executorPod" -}}
metadata:
  labels:
    {{- include "slackwater.selector" (list . "executor") | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.podAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "slackwater.serviceAccount" . }}-executor
  automountServiceAccountToken: false
  {{- with include "slackwater.placement" . }}
  {{- . | nindent 2 }}
  {{- end }}
  securityContext:
    {{- include "slackwater.podSecurity" . | nindent 4 }}
  containers:
    - name: spark-kubernetes-executor
      securityContext:
        {{- include "slackwater.containerSecurity" . | nindent 8 }}
      env:
        {{- include "slackwater.env" . | nindent 8 }}
      volumeMounts:
        {{- include "slackwater.mounts" . | nindent 8 }}
  volumes:
    {{- include "slackwater.volumes" . | nindent 4 }}
{{- end -}}
