"""The progress of a job as metrics, without Spark."""

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
metrics: Any = pytest.importorskip("opentelemetry.sdk.metrics", reason="the extra 'otel' is not installed")
export: Any = pytest.importorskip("opentelemetry.sdk.metrics.export")

from purgatory.pipeline.stream.job import BatchProgress  # noqa: E402 - only where it is installed
from purgatory.pipeline.stream.metrics import count_progress  # noqa: E402


def test_each_batch_is_counted_and_reported() -> None:
    """Counters add up over batches; gauges have the latest batch, and no lag before there is a watermark."""
    reader = export.InMemoryMetricReader()
    meter = metrics.MeterProvider(metric_readers=[reader]).get_meter("test")
    seen: list[BatchProgress] = []
    count = count_progress(meter, seen.append)
    batches = [BatchProgress(0, 100, 30, 2, 70, None, 0, 1.5), BatchProgress(1, 50, 60, 0, 60, 12.5, 3, 0.5)]
    found = []
    for batch in batches:
        count(batch)
        (resource,) = reader.get_metrics_data().resource_metrics
        points = {
            metric.name.removeprefix("purgatory.stream."): metric.data.data_points[0]
            for metric in resource.scope_metrics[0].metrics
        }
        found.append({name: point.value for name, point in points.items() if hasattr(point, "value")})
    assert seen == batches
    assert found[0] == {"rows": 100, "outcomes": 30, "dead": 2, "late": 0, "live": 70}
    assert found[1] == {"rows": 150, "outcomes": 90, "dead": 2, "late": 3, "live": 60, "lag": 12.5}
    assert (points["batch"].count, points["batch"].sum) == (2, 2.0)
