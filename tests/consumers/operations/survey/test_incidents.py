"""Faults made on purpose beside real workers, exporter, audit, console and Prometheus: within half a minute probes,
alert, doctor and console tell the same story, and when the fault is mended they all say so."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from clusters import started

from bus.clock import SystemClock
from bus.transports import open_transport
from bus.transports.base import TopicSpec, Transport
from tests.databases import Postgres
from tests.prometheus import Prometheus

STORY_S = 30.0
WATCH_S = float(os.environ.get("WATCH_S", "20"))
"""Within so many seconds every surface tells of a fault."""

AGENTS = """
import asyncio
import os
import time
from pathlib import Path

import msgspec
from sealbus import App, Approval, Context, Retry, RetryLater, payload


@payload("job.run", version="1.0.0")
class Job(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    label: str = ""


@payload("ship.order", version="1.0.0")
class Ship(msgspec.Struct, frozen=True, kw_only=True):
    service: str


@payload("bank.order", version="1.0.0")
class Bank(msgspec.Struct, frozen=True, kw_only=True):
    number: int


@payload("heavy.job", version="1.0.0")
class Heavy(msgspec.Struct, frozen=True, kw_only=True):
    number: int


app = App("worker@svc")
kept = []


@app.on(Bank, order="key_strict", retry=Retry(attempts=50, base_s=5, cap_s=20))
async def pay(order: Bank) -> None:
    if order.number == 0 and not Path("bank-open").exists():
        raise RetryLater("the bank is closed", after_s=20)


@app.on(Heavy)
async def load(job: Heavy) -> None:
    kept.append(b"x" * 4_000_000)


@app.on(Job, timeout_s=2)
async def run(job: Job, context: Context) -> None:
    while job.label == "stick" and not Path("let-go").exists():
        try:
            await asyncio.sleep(0.2)
        except asyncio.CancelledError:
            pass


@app.on(Ship, approval=Approval(by="human"))
async def ship(order: Ship) -> None:
    pass
"""

POLICY = """
[[agents]]
id = "worker@svc"
owner = "ops"

[[agents]]
id = "shop@corp"
owner = "ops"

[[agents]]
id = "audit@sealbus"
owner = "ops"

[[agents]]
id = "lead@acme"
kind = "human"
owner = "lead"

[[rules]]
id = "everybody"
effect = "allow"
action = ["publish", "handle"]
types = ["job.**", "ship.**", "bank.**", "heavy.**", "error.reported", "status.update", "agent.*", "audit.*"]

[[rules]]
id = "approvers"
effect = "allow"
action = "approve"
agents = "*@acme"
types = "ship.**"
"""

SKEWED = """
import time

_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + 30
time.time_ns = lambda: _time_ns() + 30_000_000_000
"""


def got(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - of this test
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


class Site:
    """Two workers, exporter, audit, console and Prometheus on one log, and all that they say."""

    def __init__(self, folder: Any, url: str, inbox: str) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.environment: dict[str, str] = {}
        """For the commands that are called."""
        self.ports = {name: folder.free_port() for name in ("one", "two", "exporter", "audit", "console")}
        self.prometheus: Prometheus | None = None
        self.common = ("--bus", url, "--config", "sealbus.toml")
        self.inbox = inbox
        (folder.path / "agents.py").write_text(AGENTS)
        (folder.path / "policy.toml").write_text(POLICY)
        settings = (
            "[inbox]",
            f'url = "{inbox}"',
            "[audit]",
            'url = "sqlite:///audit.db"',
            "[trust]",
            'keys = "keys/jwks.json"',
            'key_file = "keys"',
        )
        (folder.path / "sealbus.toml").write_text("\n".join([*settings, "[policy]", 'file = "policy.toml"', ""]))
        self.call("key", "new", "worker@svc", "shop@corp", "lead@acme", "audit@sealbus", code=0)

    def open(self) -> None:
        self.call("topic", "apply", "agents:app", *self.common, code=0)
        self.begin("one", "run", "agents:app", "--metrics-port", str(self.ports["one"]))
        self.begin("two", "run", "agents:app", "--metrics-port", str(self.ports["two"]))
        self.begin("exporter", "serve", "metrics", "--port", str(self.ports["exporter"]), "--every", "2s")
        self.begin("audit", "serve", "audit", "--app", "agents:app", "--metrics-port", str(self.ports["audit"]))
        self.begin("console", "serve", "console", "--port", str(self.ports["console"]), "--read-only")
        jobs = {
            "sealbus-worker": [self.ports["one"], self.ports["two"]],
            "sealbus-exporter": [self.ports["exporter"]],
            "sealbus-audit": [self.ports["audit"]],
        }
        self.prometheus = Prometheus(self.folder.path, self.folder.free_port(), jobs)

    def begin(self, name: str, *words: str, **environment: str) -> None:
        with (self.folder.path / f"{name}.log").open("a") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "consumers.cli", *words, *self.common],
                cwd=self.folder.path,
                env=self.folder.environment() | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
            )

    def end(self, name: str) -> None:
        process = self.processes.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(45)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(45)

    def close(self) -> None:
        if self.prometheus is not None:
            self.prometheus.close()
        for name in list(self.processes):
            self.processes[name].kill()
            self.processes.pop(name).wait(45)

    def call(self, *words: str, stdin: str = "", code: int | None = None) -> subprocess.CompletedProcess[str]:
        found: subprocess.CompletedProcess[str] = self.folder.apart(*words, stdin=stdin, **self.environment)
        assert code is None or found.returncode == code, found.stdout + found.stderr
        return found

    def publish(self, kind: str, data: dict[str, Any], *options: str, agent: str = "shop@corp") -> None:
        words = ("publish", kind, "--app", "agents:app", "--as", agent, *options, *self.common)
        self.call(*words, stdin=json.dumps(data), code=0)

    def rows(self, *words: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.call(*words, "-o", "json", *self.common).stdout.splitlines()]

    def probes(self) -> dict[str, int]:
        """What every probe of both workers answers."""
        return {
            f"{name} {probe}": got(f"http://127.0.0.1:{self.ports[name]}/healthz/{probe}")[0]
            for name in ("one", "two")
            for probe in ("live", "ready")
        }

    def alerts(self) -> set[str]:
        return set() if self.prometheus is None else self.prometheus.firing()

    def asked(self, expression: str) -> float:
        return 0.0 if self.prometheus is None else self.prometheus.value(expression)

    def doctor(self) -> dict[str, str]:
        """By state and area, the texts of every fault and hint."""
        told = self.call("doctor", "-o", "json", *self.common)
        found: dict[str, str] = {}
        for each in map(json.loads, told.stdout.splitlines()):
            if each["state"] != "ok":
                place = f"{each['state']} {each['area']}"
                found[place] = "; ".join(filter(None, (found.get(place), each["text"])))
        return found

    def console(self) -> str:
        return got(f"http://127.0.0.1:{self.ports['console']}/")[1]


class Told:
    """What has to be told of one fault, and when each surface said it."""

    def __init__(self, site: Site, **wanted: Callable[[], bool]) -> None:
        self.site, self.wanted, self.after_s = site, wanted, dict.fromkeys(wanted, -1.0)

    def within(self, most_s: float = STORY_S) -> dict[str, float]:
        begun_s = time.monotonic()
        while missing := [name for name, after_s in self.after_s.items() if after_s < 0]:
            for name in missing:
                if self.wanted[name]():
                    self.after_s[name] = round(time.monotonic() - begun_s, 1)
            told_s = time.monotonic() - begun_s
            assert told_s < most_s, self.report(missing)
            time.sleep(0.3)
        print(self.after_s)
        return self.after_s

    def report(self, missing: list[str]) -> str:
        site = self.site
        return f"{missing} silent: {site.probes()} {site.alerts()} {site.doctor()} {self.after_s}"


@pytest.fixture
def on_kafka(folder: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Any, Any]]:
    cluster = started(tmp_path_factory.mktemp("kafka"))
    postgres = Postgres(Path(tempfile.mkdtemp(prefix="sealbus-incidents-")))
    site = Site(folder, f"kafka://{cluster.bootstrap}", asyncio.run(postgres.create_database()))
    try:
        yield site, cluster, postgres
    finally:
        site.close()
        cluster.stop()
        postgres.end()


def tells(site: Site, area: str, part: str) -> dict[str, Callable[[], bool]]:
    """Doctor and console name *area* with *part* in what they say."""

    def doctor() -> bool:
        return any(place.endswith(area) and part in text for place, text in site.doctor().items())

    return {"doctor": doctor, "console": lambda: part in site.console()}


def all_well(site: Site) -> dict[str, Callable[[], bool]]:
    return {
        "probes": lambda: set(site.probes().values()) == {200},
        "alerts": lambda: not site.alerts(),
        "doctor": lambda: not any(place.startswith("fault") for place in site.doctor()),
        "console": lambda: "All is well" in site.console(),
    }


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(600)
def test_every_surface_shows_each_fault_and_its_end(on_kafka: tuple[Site, Any, Any]) -> None:
    site, cluster, postgres = on_kafka
    site.open()
    site.folder.wait_until(lambda: set(site.probes().values()) == {200}, within_s=60)
    site.publish("job.run", {"number": 1})
    Told(site, **all_well(site)).within(90)

    # A handler that never returns.
    site.publish("job.run", {"number": 2, "label": "stick"})
    Told(
        site,
        probes=lambda: sorted(site.probes().values()) == [200, 200, 503, 503],
        alert=lambda: {"SealbusGroupStill", "SealbusAgentUnhealthy"} <= site.alerts(),
        doctor=lambda: (
            "1 of 2 workers of worker@svc report that they are stuck" in site.doctor().get("fault agents", "")
        ),
        console=lambda: "report that they are stuck" in site.console() and "past its deadline" in site.console(),
    ).within()
    stuck = [got(f"http://127.0.0.1:{site.ports[name]}/healthz/live")[1] for name in ("one", "two")]
    assert any("agents.run (job.run)" in text for text in stuck), stuck
    (site.folder.path / "let-go").touch()
    Told(site, **all_well(site)).within(60)

    # The broker.
    cluster.nodes[0].kill()
    Told(
        site,
        probes=lambda: (
            {probe: status for probe, status in site.probes().items() if "ready" in probe}
            == {"one ready": 503, "two ready": 503}
        ),
        live=lambda: all(status == 200 for probe, status in site.probes().items() if "live" in probe),
        alert=lambda: {"SealbusBlind", "SealbusAuditBlind"} <= site.alerts(),
        doctor=lambda: "fault log" in site.doctor(),
        console=lambda: "✖ fault" in site.console() and "log" in site.console(),
    ).within()
    cluster.nodes[0].start()
    Told(site, **all_well(site)).within(90)

    # The inbox.
    postgres.stop()
    site.publish("job.run", {"number": 3})
    Told(
        site,
        probes=lambda: 503 in [status for probe, status in site.probes().items() if "ready" in probe],
        alert=lambda: "SealbusStoreDown" in site.alerts(),
        doctor=lambda: "fault inbox" in site.doctor(),
        console=lambda: "✖ fault" in site.console() and "inbox" in site.console(),
    ).within()
    postgres.start()
    Told(site, **all_well(site)).within(90)

    # A message that nobody signed.
    (site.folder.path / "unsigned.toml").write_text("")
    words = ("publish", "job.run", "--app", "agents:app", "--as", "shop@corp", "--config", "unsigned.toml")
    site.call(*words, *site.common[:2], stdin='{"number": 4}', code=0)
    Told(site, alert=lambda: "SealbusForged" in site.alerts(), **tells(site, "letters", "signature_missing")).within()
    site.call("dlq", "dismiss", "--yes", *site.common, code=0)
    Told(site, **all_well(site)).within(60)

    # A machine whose clock is wrong.
    skewed = site.folder.path / "skewed"
    skewed.mkdir()
    (skewed / "sitecustomize.py").write_text(SKEWED)
    wrong = {"PYTHONPATH": f"{skewed}{os.pathsep}{site.folder.environment()['PYTHONPATH']}"}
    site.end("two")
    site.begin("two", "run", "agents:app", "--metrics-port", str(site.ports["two"]), **wrong)
    site.end("console")
    site.begin("console", "serve", "console", "--port", str(site.ports["console"]), "--read-only", **wrong)
    site.environment = wrong
    Told(site, alert=lambda: "SealbusClockSkew" in site.alerts(), **tells(site, "clock", "30 s ahead of")).within(60)
    site.environment = {}
    site.end("two")
    site.begin("two", "run", "agents:app", "--metrics-port", str(site.ports["two"]))
    site.end("console")
    site.begin("console", "serve", "console", "--port", str(site.ports["console"]), "--read-only")
    Told(site, **all_well(site)).within(60)

    # An approval that nobody gives.
    site.publish("ship.order", {"service": "tea"})
    waits = tells(site, "approvals", "for an approval")
    Told(site, alert=lambda: "SealbusApprovalOpen" in site.alerts(), **waits).within()


class Faltering:
    """A broker that stands still for 1.2 s of every 1.32 s."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._node.freeze()
            time.sleep(1.2)
            self._node.thaw()
            time.sleep(0.12)


@contextlib.contextmanager
def locked(url: str) -> Iterator[None]:
    """Another program's transaction that keeps everybody out of the inbox."""
    held, stop = threading.Event(), threading.Event()

    async def hold() -> None:
        connection = await asyncpg.connect(url, server_settings={"application_name": "nightly-report"})
        async with connection.transaction():
            await connection.execute("LOCK TABLE sealbus_inbox IN ACCESS EXCLUSIVE MODE")
            held.set()
            await asyncio.to_thread(stop.wait)
        await connection.close()

    def run() -> None:
        # The end of its session comes as any of these, by where the connection stands.
        ends = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
        with contextlib.suppress(*ends):
            asyncio.run(hold())

    thread = threading.Thread(target=run)
    thread.start()
    held.wait(60)
    try:
        yield
    finally:
        stop.set()
        thread.join()


async def ended(url: str, pid: int) -> None:
    """End that session, as docs/how-to/incidents.md does."""
    connection = await asyncpg.connect(url)
    assert await connection.fetchval("SELECT pg_terminate_backend($1)", pid)
    await connection.close()


async def shorten(url: str, topic: str, retention_ms: int) -> None:
    """As somebody does with Kafka's own tools."""
    async with opened(url) as transport:
        await transport.admin.create_topics([TopicSpec(name=topic, retention_ms=retention_ms)])


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[Transport]:
    transport = open_transport(url, clock=SystemClock())
    try:
        yield transport
    finally:
        await transport.close()


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(900)
def test_every_surface_names_the_true_cause_and_its_cure_works(on_kafka: tuple[Site, Any, Any]) -> None:
    site, cluster, _ = on_kafka
    site.open()
    site.folder.wait_until(lambda: set(site.probes().values()) == {200}, within_s=60)
    Told(site, **all_well(site)).within(90)

    # One key waits for its next attempt, and others of it behind it.
    for number in range(4):
        site.publish("bank.order", {"number": number}, "--key", "customer-7")
    Told(site, alert=lambda: "SealbusHeldUp" in site.alerts(), **tells(site, "groups", "customer-7")).within(45)
    health = [json.loads(got(f"http://127.0.0.1:{site.ports[name]}/healthz/live")[1]) for name in ("one", "two")]
    assert [each["key"] for answer in health for each in answer["hold_ups"]] == ["customer-7"]
    (name,) = {row["group"] for row in site.rows("group", "list") if row["group"].startswith("worker-svc")}
    assert "customer-7" in site.call("group", "show", name, *site.common).stderr
    assert "customer-7" in site.call("status", *site.common).stdout
    # By the cure that it proposes, with a reason in place of the dots.
    cure = next(each["fix"] for each in site.rows("doctor") if "customer-7" in each["text"])
    words = cure.partition("sealbus ")[2].partition(" --why")[0].split()
    site.call(*words, "--why", "the account is closed", "--yes", *site.common, code=0)
    Told(site, **all_well(site)).within(90)
    assert len(site.rows("dlq", "list", "--state", "parked")) == 1

    # A policy that cannot be read.
    policy = site.folder.path / "policy.toml"
    policy.write_text(POLICY + "[[rules\n")
    Told(site, alert=lambda: "SealbusPolicyBroken" in site.alerts(), **tells(site, "policy", "policy.toml")).within()
    policy.write_text(POLICY)
    Told(site, **all_well(site)).within(60)

    # Records that are deleted too early.
    asyncio.run(shorten(site.common[1], "agents.job.run", 60_000))
    Told(site, alert=lambda: "SealbusTopicsWrong" in site.alerts(), **tells(site, "topics", "agents.job.run")).within()
    site.call("topic", "apply", "agents:app", "--yes", *site.common, code=0)
    Told(site, **all_well(site)).within(60)

    # A lock on the inbox.
    with locked(site.inbox):
        site.publish("job.run", {"number": 5}, "--idempotency-key", "five")
        told = tells(site, "inbox", "nightly-report")
        Told(
            site,
            probes=lambda: 503 in [status for probe, status in site.probes().items() if "ready" in probe],
            alert=lambda: "SealbusStoreDown" in site.alerts(),
            **told,
        ).within()
        # And as long as it lasts.
        ready = [status for _ in range(10) for probe, status in site.probes().items() if "ready" in probe]
        assert ready.count(503) == 10, ready
        pid = re.search(r"pid (\d+) of PostgreSQL", site.doctor()["fault inbox"])
        assert pid is not None
        asyncio.run(ended(site.inbox, int(pid[1])))
    Told(site, **all_well(site)).within(90)

    # A slow broker.
    with Faltering(cluster.nodes[0]):
        Told(site, alert=lambda: "SealbusLogSlow" in site.alerts(), **tells(site, "log", "is slow")).within(60)
    Told(site, **all_well(site)).within(90)

    # A handler that keeps what it should let go.
    for _ in range(2):
        site.call(
            *("publish", "heavy.job", "--app", "agents:app", "--as", "shop@corp", *site.common),
            stdin="\n".join(json.dumps({"number": number}) for number in range(80)),
            code=0,
        )
    Told(
        site, alert=lambda: "SealbusMemoryGrows" in site.alerts(), **tells(site, "agents", "more than when it began")
    ).within(60)

    # A worker that the kernel kills.
    killed = site.processes.pop("two")
    killed.kill()
    killed.wait(45)
    Told(
        site,
        alert=lambda: {"SealbusTargetDown", "SealbusWorkerLost"} <= site.alerts(),
        **tells(site, "agents", "fell silent without a goodbye"),
    ).within(60)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(WATCH_S + 600)
def test_under_load_every_scrape_succeeds_and_every_look_finds_all_well(on_kafka: tuple[Site, Any, Any]) -> None:
    """For WATCH_S seconds. Half an hour: `WATCH_S=1800 pytest -m "" -s -o faulthandler_timeout=2400 -k under_load`."""
    site, _, _ = on_kafka
    site.open()
    Told(site, **all_well(site)).within(90)
    jobs = site.folder.path / "load.ndjson"
    jobs.write_text("".join(f'{{"number": {number}}}\n' for number in range(2_000)))
    begun_s, rounds = time.monotonic(), 0
    words = ("publish", "job.run", "--app", "agents:app", "--as", "shop@corp", *site.common, "load.ndjson")
    while time.monotonic() < begun_s + WATCH_S:
        site.call(*words, code=0)
        rounds += 1
        wrong = [name for name, is_well in all_well(site).items() if not is_well()]
        assert not wrong, Told(site).report(wrong)
        time.sleep(1)
    assert site.asked(f"min(min_over_time(up[{time.monotonic() - begun_s:.0f}s]))") == 1
    handled = site.asked('sum(sealbus_settled_total{outcome="done"})')
    print(f"{rounds * 2_000:,} published in {rounds} looks, {handled:,.0f} done by the last scrape")
    assert handled > 0
    Told(site, **all_well(site)).within()


@pytest.fixture
def on_a_small_disk(folder: Any) -> Iterator[tuple[Site, Path]]:
    disk = folder.path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("this user may not mount a small disk")
    site = Site(folder, f"sqlite:///{disk}/log.db", "auto")
    try:
        yield site, disk
    finally:
        site.close()
        subprocess.run(["umount", "-l", str(disk)], check=False)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(300)
def test_every_surface_shows_a_full_disk(on_a_small_disk: tuple[Site, Path]) -> None:
    site, disk = on_a_small_disk
    site.open()
    site.folder.wait_until(lambda: set(site.probes().values()) == {200}, within_s=60)
    site.publish("job.run", {"number": 1})
    # A disk of 64 MB is always nearly full: that is a hint before it is a fault.
    # Unbuffered: what is still in a buffer would fail once more when the file is closed.
    with (disk / "filling").open("wb", buffering=0) as filling, contextlib.suppress(OSError):
        while True:
            filling.write(b"x" * 65_536)
    words = ("publish", "job.run", "--app", "agents:app", "--as", "shop@corp", *site.common)
    refused = site.call(*words, stdin='{"number": 2}')
    assert refused.returncode != 0
    assert "no space left" in refused.stdout + refused.stderr, refused.stdout + refused.stderr
    Told(
        site,
        probes=lambda: {"one ready": 503, "two ready": 503}.items() <= site.probes().items(),
        alert=lambda: "SealbusDiskLow" in site.alerts(),
        doctor=lambda: "fault disk" in site.doctor(),
        console=lambda: "are free for the log in" in site.console() and "✖ fault" in site.console(),
    ).within()
    (disk / "filling").unlink()
    Told(site, probes=lambda: set(site.probes().values()) == {200}).within(60)
    site.publish("job.run", {"number": 3})
