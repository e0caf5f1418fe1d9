{{/* Memory in MiB: docs/kubernetes.md states the formula. */}}

{{/* Of the reader process, in a pod where tasks run: its own size, and for each pipeline with
     epoch.reading: continuous the records that may wait in it. */}}
{{- define "slackwater.readerMiB" -}}
{{- $shared := .Values.settings.epoch | default dict -}}
{{- $waiting := 0 -}}
{{- range (.Values.settings.pipelines | default (dict "one" dict)) -}}
{{- $epoch := mergeOverwrite (deepCopy $shared) (deepCopy (.epoch | default dict)) -}}
{{- if eq (toString $epoch.reading) "continuous" -}}
{{- $waiting = add $waiting ($epoch.reader_memory | default 256) -}}
{{- end -}}
{{- end -}}
{{- ternary (add $waiting 150) 0 (gt (int $waiting) 0) -}}
{{- end -}}

{{- define "slackwater.driverOverheadMiB" -}}
{{- $tasks := add (mul .Values.driver.cores .Values.pythonWorkerMiB) (include "slackwater.readerMiB" .) -}}
{{- add .Values.driver.jvmOverheadMiB .Values.driver.pythonMiB (ternary $tasks 0 (eq .Values.shape "one-pod")) -}}
{{- end -}}

{{- define "slackwater.driverMiB" -}}
{{- add .Values.driver.heapMiB (include "slackwater.driverOverheadMiB" .) -}}
{{- end -}}

{{/* What Spark adds to the heap for the limit of an executor's pod. */}}
{{- define "slackwater.executorOverheadMiB" -}}
{{- add .Values.executor.jvmOverheadMiB (mul .Values.executor.cores .Values.pythonWorkerMiB) (include "slackwater.readerMiB" .) -}}
{{- end -}}
