"""Real brokers for the tests that ask for them, and which tests run in one pytest-xdist worker.

A cluster per shape and session, started at the first test that needs it. The tests of one server run in one worker, and
so do those of one file: each server is started once, and a test may empty, freeze or restart it. The workers, who know
the fixtures, write the groups down; the controller, who knows ids only, reads them. (`--dist loadgroup` of xdist 3.8
groups nothing with pytest 9.2, which has no `_nodeid`: nodes' ids cannot be given a suffix any more.)

`SEALBUS_TEST_KAFKA=host:port` uses a cluster that is already there. Where no Kafka can be had the tests that need one
are skipped and the report says so at its end; with `SEALBUS_REQUIRE_KAFKA=1` that is a failure.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from clusters import started, unavailable

from bus.telemetry.logs import configure_unless_done
from deploy.kafka.cluster import Cluster
from tests import endurance

_SERVERS = {"kafka_of_three": "kafka of three", "kafka": "kafka", "postgres": "postgresql"}
"""Fixtures that are servers, and the parameter by which a test asks for one while it runs."""
_LIMITS_S = {"slow": 240, "medium": 120}
_GROUPS = pytest.StashKey[Path]()
_ran: Counter[str] = Counter()


def _server(item: pytest.Item) -> str | None:
    """The server that *item* uses."""
    fixtures: set[str] = set(getattr(item, "fixturenames", ()))
    callspec = getattr(item, "callspec", None)
    parameters = {value for value in callspec.params.values() if isinstance(value, str)} if callspec else set()
    return next((name for name, said in _SERVERS.items() if name in fixtures or said in parameters), None)


def _group(item: pytest.Item) -> str:
    return _server(item) or item.nodeid.partition("::")[0]


def _write_groups(items: Iterable[pytest.Item], path: Path) -> None:
    """Every worker writes the same: the last one wins, and no reader sees half of it."""
    text = json.dumps({item.nodeid: _group(item) for item in items})
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(text, "utf-8")
    part.replace(path)


class _Groups(endurance.EnduringScheduling):
    """Gives a worker one group after the other; those of most tests first."""

    def __init__(self, config: pytest.Config, path: Path, log: Any) -> None:
        super().__init__(config, log)
        self._path = path
        self._groups: dict[str, str] = {}

    def _split_scope(self, nodeid: str) -> str:
        if not self._groups:
            self._groups = json.loads(self._path.read_text("utf-8"))
        return self._groups[nodeid]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(endurance)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What uses a server is at least medium. What waits for processes and clocks has more time, for a busy machine."""
    for item in items:
        if _server(item) is not None:
            item.add_marker(pytest.mark.medium)
        if item.get_closest_marker("timeout") is None:
            limits = (limit for name, limit in _LIMITS_S.items() if item.get_closest_marker(name))
            if (limit := next(limits, None)) is not None:
                item.add_marker(pytest.mark.timeout(limit))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Write the groups before xdist's own hook tells the controller that it may schedule."""
    worker: dict[str, Any] | None = getattr(session.config, "workerinput", None)
    if worker is not None:
        _write_groups(session.items, Path(worker["groups"]))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["groups"] = str(_groups_path(node.config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Groups:
    return _Groups(config, _groups_path(config), log)


def _groups_path(config: pytest.Config) -> Path:
    if _GROUPS not in config.stash:
        folder = tempfile.TemporaryDirectory(prefix="sealbus-groups-")
        config.add_cleanup(folder.cleanup)
        config.stash[_GROUPS] = Path(folder.name) / "groups.json"
    return config.stash[_GROUPS]


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """A test that configures logging, as a command in this process does, leaves none to the next one."""
    was_done, before = structlog.is_configured(), structlog.get_config()
    yield
    if was_done:
        structlog.configure(**before)
    else:
        structlog.reset_defaults()


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


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """The PostgreSQL of this process, in which a test makes databases of its own."""
    from tests.databases import postgres_server

    server = postgres_server()
    yield server
    server.end()


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
