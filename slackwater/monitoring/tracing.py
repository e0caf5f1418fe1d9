"""OpenTelemetry spans of epochs: planning, partition queries, the sink's commit.

A span tree is made after its epoch has been committed, from what Spark and the tasks measured: no
epoch waits for a collector, and Spark's workers need no exporter.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import set_span_in_context

from slackwater.pipeline.epochs.report import EpochReport
from slackwater.pipeline.observer import Observer
from slackwater.timestamp import format_rfc3339, seconds_to_ns

_STAGES: Final = ("choose", "log", "plan", "read", "sink", "commit")


class Tracing(Observer):
    """An observer that exports a span tree for each committed epoch.

    Args:
        exporter: of the spans.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self._provider = TracerProvider(resource=Resource({SERVICE_NAME: "slackwater"}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("slackwater")

    def epoch_committed(self, pipeline: str, report: EpochReport) -> None:
        """Export the epoch's spans."""
        attributes: dict[str, str | int] = {
            "slackwater.pipeline": pipeline,
            "slackwater.epoch": report.epoch,
            "slackwater.low_watermark": format_rfc3339(report.low_watermark_ns),
            "slackwater.records": report.records,
            "slackwater.transactions": report.transactions,
        }
        begun_ns = report.begun_ns
        epoch = self._tracer.start_span("epoch", attributes=attributes, start_time=begun_ns)
        inside = set_span_in_context(epoch)
        stages, at_ns = report.stage_seconds(), begun_ns
        for name in _STAGES:
            end_ns = at_ns + seconds_to_ns(stages[name])
            stage = self._tracer.start_span(name, context=inside, start_time=at_ns)
            if name == "read":
                self._add_queries(report, set_span_in_context(stage))
            stage.end(end_ns)
            at_ns = end_ns
        epoch.end(max(at_ns, begun_ns + seconds_to_ns(report.seconds)))

    def close(self) -> None:
        """Export the spans that are still queued."""
        self._provider.shutdown()

    def _add_queries(self, report: EpochReport, inside: object) -> None:
        for query in report.measures.traced:
            span = self._tracer.start_span(
                "partition query",
                context=inside,  # type: ignore[arg-type]
                attributes={"slackwater.partition": query.token},
                start_time=query.start_ns,
            )
            span.end(query.end_ns)


@contextmanager
def tracing(endpoint: str) -> Iterator[Tracing]:
    """Yield an exporter of spans while the context is open.

    Args:
        endpoint: a collector's, OTLP over HTTP: http://HOST:4318/v1/traces.
    """
    # Imported only here: it loads an HTTP client of its own.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    exporter = Tracing(OTLPSpanExporter(endpoint))
    try:
        yield exporter
    finally:
        exporter.close()
