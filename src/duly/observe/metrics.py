"""Metrics in the Prometheus text format (0.0.4)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from duly.core import Core
from duly.errors import StoreError
from duly.model.measure import (
    BOUND_LABELS,
    DURATION,
    DURATION_SUM,
    LABELS,
    RESCUED,
    TICKS,
    WEBHOOKS,
    Count,
    ScheduleCounts,
)
from duly.model.stored_values import read
from duly.observe.health import HealthReport, look
from duly.store.measures import MAX_QUEUES

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FINISHED = "duly_jobs_finished_total"

Sample = tuple[str, Mapping[str, str], float]
_ENDS = ("succeeded", "failed")

_TOTALS = {
    TICKS: "Ticks of schedules, by outcome and reason.",
    RESCUED: "Jobs rescued from dead workers.",
    WEBHOOKS: "Requests to declared webhooks, by verdict.",
}


def metrics_text(core: Core) -> str:
    """All metrics, across all processes."""
    core.tell_counts()
    report = look(core)
    counts: Iterable[Count] = ()
    if report.database and report.schema:
        try:
            counts = core.ready().counts()
        except StoreError:
            report = HealthReport(False, False)
    return "".join(f"{line}\n" for line in _lines(report, counts))


def down_text() -> str:
    """The metrics that are available without a database."""
    return "".join(f"{line}\n" for line in _lines(HealthReport(False, False), ()))


def _lines(report: HealthReport, counts: Iterable[Count]) -> Iterator[str]:
    up = float(report.database and report.schema)
    yield from _family("duly_up", "gauge", "Whether the database can be used.", [_plain(up)])
    if not up:
        return
    yield from _gauges(report)
    by_name: dict[str, dict[tuple[str, ...], int]] = defaultdict(dict)
    for count in counts:
        if (values := _values(count)) is not None:
            by_name[count.name][values] = count.value
    yield from _durations(by_name[DURATION], by_name[DURATION_SUM])
    for name, words in _TOTALS.items():
        labels = LABELS[name]
        found: list[Sample] = [
            ("", dict(zip(labels, values, strict=True)), float(value))
            for values, value in sorted(by_name[name].items())
        ]
        if not labels and not found:
            found = [("", {}, 0.0)]
        yield from _family(name, "counter", words, found)


def _gauges(report: HealthReport) -> Iterator[str]:
    queues = sorted(report.queues, key=lambda queue: (-queue.lag_ms, queue.name))[:MAX_QUEUES]
    yield from _family(
        "duly_queue_depth",
        "gauge",
        "Jobs by queue and state, counted up to 10,000.",
        [
            ("", {"queue": queue.name, "state": state}, float(getattr(queue, state)))
            for queue in queues
            for state in ("due", "later", "running", "held")
        ],
    )
    yield from _family(
        "duly_queue_lag_seconds",
        "gauge",
        "Lag of the oldest due job of a queue, not counting held jobs.",
        [("", {"queue": queue.name}, queue.lag_ms / 1000) for queue in queues],
    )
    yield from _family(
        "duly_worker_lag_seconds",
        "gauge",
        "Lag of the oldest job that could start, in any queue that is not paused.",
        [_plain(report.worker_lag_ms / 1000)],
    )
    yield from _family(
        "duly_evaluator_lag_seconds",
        "gauge",
        "Lag of the most overdue schedule.",
        [_plain(report.evaluator_lag_ms / 1000)],
    )
    schedules = report.schedules or ScheduleCounts(0, 0, 0)
    yield from _family(
        "duly_schedules",
        "gauge",
        "Schedules by status, counted up to 10,000.",
        [
            ("", {"status": status}, float(getattr(schedules, status)))
            for status in ("active", "parked", "inactive")
        ],
    )
    words = "Workers that are alive."
    yield from _family("duly_workers", "gauge", words, [_plain(float(report.workers))])
    words = "Whether the kill switch is engaged."
    yield from _family("duly_paused", "gauge", words, [_plain(float(report.paused))])


def _durations(
    counted: Mapping[tuple[str, ...], int], sums: Mapping[tuple[str, ...], int]
) -> Iterator[str]:
    buckets: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for (function, outcome, le), value in counted.items():
        buckets[function, outcome][le] = value
    samples: list[Sample] = []
    finished: list[Sample] = []
    for (function, outcome), found in sorted(buckets.items()):
        labels = {"function": function, "outcome": outcome}
        total = 0
        for le in BOUND_LABELS:
            total += found.get(le, 0)
            samples.append(("_bucket", labels | {"le": le}, float(total)))
        samples.append(("_sum", labels, sums.get((function, outcome), 0) / 1000))
        samples.append(("_count", labels, float(total)))
        if outcome in _ENDS:
            finished.append(("", {"function": function, "state": outcome}, float(total)))
    words = "Duration of attempts, from the claim until their outcome was stored."
    yield from _family(DURATION, "histogram", words, samples)
    words = "Jobs that have finished in a worker."
    yield from _family(FINISHED, "counter", words, finished)


def _values(count: Count) -> tuple[str, ...] | None:
    """The labels' values; None for counters of another version."""
    names = LABELS.get(count.name)
    labels = read(count.labels, dict[str, str], {})
    if names is None or set(names) != set(labels):
        return None
    return tuple(labels[name] for name in names)


def _plain(value: float) -> Sample:
    return "", {}, value


def _family(name: str, kind: str, words: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# HELP {name} {words}"
    yield f"# TYPE {name} {kind}"
    for suffix, labels, value in samples:
        yield f"{name}{suffix}{_labels(labels)} {_number(value)}"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
