"""What is tallied in plain numbers is shown as prometheus_client's own counters and histograms would show it."""

from __future__ import annotations

import re
import subprocess
import sys
import threading

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from bus.telemetry.metrics import Metrics

DURATIONS = (0.0, 0.0001, 0.001, 0.0011, 0.3, 7, 300, 301)
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


def shown(registry: CollectorRegistry, *names: str) -> str:
    """The text of both formats; when a series began is no fact about it."""
    text = generate_latest(registry).decode() + generate_openmetrics(registry).decode().removesuffix("# EOF\n")
    text = re.sub(r"(_created\{[^}]*\}) \S+", r"\1 then", text)
    blocks = re.split(r"(?=# HELP )", text)
    return "".join(
        block for block in blocks if any(re.match(rf"# HELP {name}\b|# HELP {name}_", block) for name in names)
    )


def test_tallies_are_shown_as_the_librarys_own_series_are() -> None:
    metrics, plain = Metrics(), CollectorRegistry()
    received = Counter("sealbus_received", "Records taken from the log.", ("type", "group"), registry=plain)
    settled = Counter(
        "sealbus_settled", "Messages settled, by outcome.", ("type", "group", "outcome", "reason"), registry=plain
    )
    seconds = Histogram(
        "sealbus_handler_seconds", "Time spent in handlers.", ("type", "group"), registry=plain, buckets=BUCKETS
    )
    names = ("sealbus_received", "sealbus_settled", "sealbus_handler_seconds")
    assert shown(metrics.registry, *names) == shown(plain, *names)
    for round_number in range(3):
        for group in ("one", "two"):
            for kind in ("a.b", 'od"d\\'):
                meter = metrics.meters(group)[kind]
                meter.received.count += 3
                meter.done.count += 2
                meter.skipped.count += 1
                received.labels(kind, group).inc(3)
                settled.labels(kind, group, "done", "").inc(2)
                settled.labels(kind, group, "skipped", "").inc(1)
                for duration in DURATIONS:
                    meter.handler_seconds.observe(duration * (round_number + 1))
                    seconds.labels(kind, group).observe(duration * (round_number + 1))
        metrics.settled.labels("a.b", "one", "dead", "expired").inc()
        settled.labels("a.b", "one", "dead", "expired").inc()
        assert shown(metrics.registry, *names) == shown(plain, *names)


def test_a_process_that_serves_its_metrics_shows_no_second_series_of_when_a_counter_was_made() -> None:
    program = (
        "import urllib.request\n"
        "from bus.telemetry.metrics import Metrics\n"
        "from consumers.worker.metrics_server import MetricsServer\n"
        "metrics = Metrics()\n"
        "metrics.meters('g')['a.b'].handler_seconds.observe(1)\n"
        "with MetricsServer(metrics.registry, '127.0.0.1', 0) as server:\n"
        "    print(urllib.request.urlopen(f'http://127.0.0.1:{server.port}/metrics').read().decode())\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "sealbus_handler_seconds_bucket" in found.stdout
    assert "_created" not in found.stdout
    assert "process_resident_memory_bytes" in found.stdout


def test_one_series_may_be_asked_for_alone() -> None:
    metrics = Metrics()
    metrics.meters("g")["a.b"].received.count += 5
    assert (
        'sealbus_received_total{group="g",type="a.b"} 5.0'
        in generate_latest(metrics.registry.restricted_registry(["sealbus_received_total"])).decode()
    )


def test_nothing_is_lost_or_counted_twice_while_others_read() -> None:
    metrics = Metrics()
    meter = metrics.meters("g")["a.b"]
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            generate_latest(metrics.registry)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for _ in range(50_000):
        meter.received.count += 1
        meter.handler_seconds.observe(0.1)
    done.set()
    for reader in readers:
        reader.join()
    labels = {"type": "a.b", "group": "g"}
    assert metrics.registry.get_sample_value("sealbus_received_total", labels) == 50_000
    assert metrics.registry.get_sample_value("sealbus_handler_seconds_count", labels) == 50_000
