"""Real brokers for whoever asks: one cluster per shape and session, started at the first test that needs it.

`SEALBUS_TEST_KAFKA=host:port` uses a cluster that is already there. Where no Kafka can be had the tests that need one
are skipped and the report says so at its end; with `SEALBUS_REQUIRE_KAFKA=1` that is a failure.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest
from clusters import started, unavailable

from bus.telemetry.logs import configure_unless_done
from deploy.kafka.cluster import Cluster

_ran: Counter[str] = Counter()


@pytest.fixture(scope="session", autouse=True)
def logs() -> None:
    """As in every program: what captures logs in one test leaves structlog's own defaults to the next, where nothing
    was configured before."""
    configure_unless_done("debug")


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Addresses of a Kafka of one node."""
    given = os.environ.get("SEALBUS_TEST_KAFKA")
    if given:
        yield given
        return
    with started(tmp_path_factory.mktemp("kafka")) as cluster:
        yield cluster.bootstrap


@pytest.fixture(scope="session")
def kafka_of_three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers and a controller beside them: any broker may be stopped and started again by its tests."""
    with started(tmp_path_factory.mktemp("kafka3"), brokers=3, controller=True) as cluster:
        yield cluster


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count what ran on which transport."""
    if report.when == "call" and report.passed:
        for name in ("memory", "sqlite", "kafka"):
            if name in report.nodeid:
                _ran[name] += 1
                break
        else:
            _ran["no transport, or one of its own"] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests ran on which transport, and loudly when Kafka's did not."""
    counts = ", ".join(f"{name} {count}" for name, count in sorted(_ran.items()))
    terminalreporter.write_line(f"passed by transport: {counts or 'none'}")
    if unavailable:
        terminalreporter.section("KAFKA TESTS DID NOT RUN", red=True, bold=True)
        terminalreporter.write_line(unavailable[0])
