{{/* Memory in MiB: docs/kubernetes.md states the formula. */}}
{{- define "slackwater.driverOverheadMiB" -}}
{{- $workers := ternary (mul .Values.driver.cores .Values.pythonWorkerMiB) 0 (eq .Values.shape "one-pod") -}}
{{- add .Values.driver.jvmOverheadMiB .Values.driver.pythonMiB $workers -}}
{{- end -}}

{{- define "slackwater.driverMiB" -}}
{{- add .Values.driver.heapMiB (include "slackwater.driverOverheadMiB" .) -}}
{{- end -}}

{{/* What Spark adds to the heap for the limit of an executor's pod. */}}
{{- define "slackwater.executorOverheadMiB" -}}
{{- add .Values.executor.jvmOverheadMiB (mul .Values.executor.cores .Values.pythonWorkerMiB) -}}
{{- end -}}
