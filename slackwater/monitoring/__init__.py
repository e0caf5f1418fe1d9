"""The monitoring of pipelines, which does not affect them.

- status: decides whether a pipeline is ready, from its row in the metadata store; polls it.
- http: the routes. page: the files of the page. json_fields: the JSON of API and command line.
- metrics: Prometheus' counters and gauges. tracing: OpenTelemetry's spans.
- epoch_history: details of the last epochs. lineage_graph: the partitions as a drawing.
- live_view: the table on a terminal. log: the format and level of log lines.

slackwater.pipeline.alerts decides what counts as stalled or held back, and
slackwater.pipeline.catch_up whether a pipeline keeps up.
"""
