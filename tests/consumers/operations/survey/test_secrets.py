"""Secrets that senders, handlers and settings have are on no surface; names of strangers make no series."""

from __future__ import annotations

import asyncio
import html
import json
import re
import sqlite3
import subprocess
import urllib.request
from contextlib import closing
from functools import partial
from typing import Any

import msgspec
import pytest

from bus.clock import SystemClock
from bus.settings.loading import load
from bus.transports import open_transport
from bus.transports.base import NewRecord
from producers.connection import make_publisher
from sealbus import Outgoing, connect, payload
from sealbus.telemetry import Metrics

SECRETS = {
    "password": "hunter2-Zq8-password",
    "bearer": "Zq8bearerZq8bearer0123456789",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJacTgifQ.c2lnbmF0dXJlWnE4MDEyMw",
    "url": "Zq8-password-of-a-url",
    "key": "sk-Zq8Zq8Zq8Zq8Zq8Zq8Zq8Zq8",
    "header": "Zq8-in-a-header",
}
AGENTS = f"""
import logging

import msgspec
import structlog

from sealbus import App, Context, Reject, payload


@payload("job.run", version="1.0.0")
class Job(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    password: str = ""
    note: str = ""
    settings: dict[str, str] = {{}}


app = App("worker@svc")


@app.on(Job)
async def run(job: Job, context: Context) -> None:
    structlog.get_logger().info("looked", password=job.password, settings=job.settings, note=job.note)
    logging.getLogger("mine").warning("note %s", job.note)
    if job.number % 3 == 0:
        raise Reject(f"refused: password={{job.password}}, {{job.note}}")
    if job.number % 3 == 1:
        raise Reject("Authorization: Bearer {SECRETS["bearer"]}")
    raise ValueError(job.note, job.settings)
"""


def read(url: str, path: str = "/metrics") -> str:
    with urllib.request.urlopen(url + path, timeout=10) as answer:  # noqa: S310 - of this test
        text: str = answer.read().decode()
        return text


def call(folder: Any, *words: str, stdin: str = "", **environment: str) -> str:
    """What a command says, on both streams."""
    found = folder.apart(*words, stdin=stdin, **environment)
    return str(found.stdout + found.stderr)


def told(text: str) -> set[str]:
    """Which secrets are in *text*."""
    plain = html.unescape(text)
    return {name for name, secret in SECRETS.items() if secret in plain or secret in text}


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_no_surface_shows_a_secret(folder: Any) -> None:
    (folder.path / "agents.py").write_text(AGENTS)
    ports = {name: folder.free_port() for name in ("worker", "exporter", "audit", "console")}
    folder.worker("--metrics-port", str(ports["worker"]), "--log-level", "debug")
    logs = {}
    for name, words in {
        "exporter": ("serve", "metrics", "--port", str(ports["exporter"]), "--every", "1s"),
        "audit": ("serve", "audit", "--app", "agents:app", "--metrics-port", str(ports["audit"])),
        "console": ("serve", "console", "--port", str(ports["console"]), "--read-only"),
    }.items():
        logs[name] = (folder.path / f"{name}.log").open("w+")
        folder.start(*words, "--log-level", "debug", stdout=logs[name], stderr=logs[name])
    note = f"see postgresql://me:{SECRETS['url']}@db/x with {SECRETS['jwt']} and {SECRETS['key']}"
    jobs = [
        {"number": number, "password": SECRETS["password"], "note": note, "settings": {"api_key": SECRETS["key"]}}
        for number in range(9)
    ]
    published = call(
        folder, "publish", "job.run", "--app", "agents:app", stdin="\n".join(json.dumps(job) for job in jobs)
    )
    assert "published 9" in published

    async def with_headers() -> None:
        """A record of nobody, with a secret where only a header is."""
        settings = load(flags={"bus.url": f"sqlite:///{folder.path}/sealbus.db"}, env={}, file=None).settings
        transport = open_transport(settings.bus.url)
        headers = (("authorization", f"Bearer {SECRETS['header']}".encode()), ("x-token", SECRETS["header"].encode()))
        record = NewRecord("agents.job.run", b"key", json.dumps(jobs[0]).encode(), headers)
        await transport.append([record], timeout_s=5)
        await transport.close()

    asyncio.run(with_headers())

    def letters() -> list[dict[str, Any]]:
        lines = call(folder, "dlq", "list", "-o", "json").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    folder.wait_until(lambda: len([each for each in letters() if each["reason"] in ("rejected", "malformed")]) == 7)
    found = letters()
    folder.wait_until(lambda: "agents.job.run.dlq" in call(folder, "audit", "export"))

    shown = {
        "publish": published,
        "doctor": call(folder, "doctor"),
        "groups": call(folder, "group", "list"),
        "agents": call(folder, "agent", "list"),
        "dlq list": call(folder, "dlq", "list"),
        "dlq causes": call(folder, "dlq", "list", "--by", "cause"),
        "audit": call(folder, "audit", "export"),
        **{f"explain {n}": call(folder, "explain", each["message_id"] or "none") for n, each in enumerate(found)},
        **{name: read(f"http://127.0.0.1:{ports[name]}") for name in ("worker", "exporter", "audit")},
        "live": read(f"http://127.0.0.1:{ports['worker']}", "/healthz/live"),
    }
    shown |= {f"console {path}": page for path, page in crawled(f"http://127.0.0.1:{ports['console']}").items()}
    for name, log in logs.items():
        log.close()
        shown[f"log of {name}"] = (folder.path / f"{name}.log").read_text()
    shown["log of worker"] = (folder.path / "worker.log").read_text()
    with closing(sqlite3.connect(folder.path / "sealbus.db")) as log:
        query = (
            "SELECT headers FROM records JOIN partitions ON part = partitions.id JOIN topics ON topic_id = topics.id "
            "WHERE name LIKE '%.dlq'"
        )
        rows = log.execute(query).fetchall()
    assert len(rows) >= 7
    for number, (headers,) in enumerate(rows):
        raw = headers if isinstance(headers, bytes) else str(headers).encode()
        shown[f"headers of letter {number}"] = raw.decode("utf-8", "replace")
    assert len(shown["log of worker"]) > 1_000
    assert len([name for name in shown if name.startswith("console")]) > 15
    assert {name: told(text) for name, text in shown.items() if told(text)} == {}
    assert "***" in shown["log of worker"]


def crawled(url: str, most: int = 200) -> dict[str, str]:
    """Every page that links lead to, by its path."""
    pages: dict[str, str] = {}
    waiting = ["/", "/conversations", "/messages", "/audit", "/costs"]
    while waiting and len(pages) < most:
        path = waiting.pop(0)
        if path in pages:
            continue
        try:
            pages[path] = read(url, path)
        except OSError:
            pages[path] = ""
            continue
        links = re.findall(r'href="(/[^"#]*)"', pages[path])
        waiting += [html.unescape(link) for link in links if "/static/" not in link and "/tail" not in link]
    return pages


@pytest.mark.slow
def test_a_password_in_the_settings_is_shown_nowhere(folder: Any) -> None:
    url = f"postgresql://me:{SECRETS['url']}@127.0.0.1:{folder.free_port()}/db"
    settings = {"SEALBUS_INBOX__URL": url, "SEALBUS_AUDIT__URL": url, "SEALBUS_KAFKA__PASSWORD": SECRETS["password"]}
    words = [["doctor"], ["doctor", "agents:app"], ["config"], ["audit", "verify"], ["workflow", "list"]]
    words += [["run", "agents:app", "--log-level", "debug"], ["serve", "audit", "--once"]]
    for each in words:
        said = call(folder, *each, **settings)
        assert said, each
        assert told(said) == set(), (each, said)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_names_of_strangers_and_conversations_make_no_series(folder: Any) -> None:
    ports = {name: folder.free_port() for name in ("worker", "exporter", "audit")}
    folder.worker("--metrics-port", str(ports["worker"]))
    folder.start("serve", "metrics", "--port", str(ports["exporter"]), "--every", "1s", stderr=subprocess.DEVNULL)
    folder.start("serve", "audit", "--metrics-port", str(ports["audit"]), stderr=subprocess.DEVNULL)
    scraped = lambda name: [  # noqa: E731
        line for line in read(f"http://127.0.0.1:{ports[name]}").splitlines() if not line.startswith("#")
    ]
    for port in ports.values():
        folder.wait_until(partial(scraped_or_not, port))
    assert "published 1" in call(folder, "publish", "job.run", "--app", "agents:app", stdin='{"number": 0}')
    folder.wait_until(lambda: len(folder.handled()) == 1)
    call(folder, "publish", "job.run", "--app", "agents:app", folder.jobs(10_000))
    hostile = [f"evil.t{number}" for number in range(1_000)]

    async def attack() -> None:
        settings = load(flags={"bus.url": f"sqlite:///{folder.path}/sealbus.db"}, env={}, file=None).settings
        transport, aside = open_transport(settings.bus.url), open_transport("memory://")
        for number, name in enumerate(hostile):
            made = msgspec.defstruct("Evil", [("number", int)], frozen=True, kw_only=True)
            kind: Any = payload(name, version="1.0.0")(made)
            publisher = make_publisher(aside, settings, f"evil{number}@svc", clock=SystemClock(), metrics=Metrics())
            record = publisher.sealer.seal(Outgoing(kind(number=number))).record
            await transport.append([msgspec.structs.replace(record, topic="agents.job.run", partition=0)], timeout_s=5)
        await aside.close()
        await transport.close()
        for number in range(50):
            async with connect(settings.bus.url, agent=f"evil{number}@svc") as bus:
                await bus.directory.ready()

    asyncio.run(attack())
    folder.wait_until(lambda: len(folder.handled()) == 10_001, within_s=60)
    letters = lambda: [line for line in scraped("exporter") if line.startswith("sealbus_dead_letters_open")]  # noqa: E731
    folder.wait_until(lambda: sum(float(line.rpartition(" ")[2]) for line in letters()) == 1_000, within_s=30)
    folder.wait_until(lambda: "sealbus_audit_behind_records 0.0" in scraped("audit"), within_s=60)
    for name in ports:
        lines = scraped(name)
        assert len(lines) < 1_000, (name, len(lines))
        assert not [line for line in lines if "evil" in line]


def scraped_or_not(port: int) -> str:
    try:
        return read(f"http://127.0.0.1:{port}")
    except OSError:
        return ""
