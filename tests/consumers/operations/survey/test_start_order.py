"""Services are started before the log is there: they say so, and see it when it comes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from clusters import started

pytestmark = pytest.mark.medium  # real processes


def got(url: str) -> str:
    return httpx.get(url, timeout=10).text


def port_of(process: Any, log: Path, wait_until: Callable[..., None], event: str) -> int:
    """The port that *process* says, in its log at *log*, that it serves on."""

    def said() -> list[int]:
        assert process.poll() is None, log.read_text()
        if event == "console of":
            lines = [line for line in log.read_text().splitlines() if line.startswith(event)]
            return [int(line.rstrip("/").rpartition(":")[2]) for line in lines]
        lines = [line for line in log.read_text().splitlines() if f'"{event}"' in line]
        return [json.loads(line)["port"] for line in lines]

    wait_until(lambda: bool(said()))
    return said()[0]


def test_the_exporter_serves_down_until_the_embedded_log_is_there(folder: Any) -> None:
    log = folder.path / "exporter.log"
    with log.open("w") as out:
        process = folder.start("serve", "metrics", "--port", "0", "--every", "200ms", stderr=out)
    port = port_of(process, log, folder.wait_until, "metrics.served")
    folder.wait_until(lambda: '"exporter.blind"' in log.read_text())
    assert "no log at" in log.read_text()
    assert 'sealbus_survey_up{namespace="agents"} 0.0' in got(f"http://127.0.0.1:{port}/metrics")
    assert not list(folder.path.glob("*.db*"))
    folder.worker()
    folder.wait_until(lambda: 'sealbus_survey_up{namespace="agents"} 1.0' in got(f"http://127.0.0.1:{port}/metrics"))
    assert log.read_text().count('"exporter.blind"') == 1
    assert '"exporter.sees"' in log.read_text()
    assert "Traceback" not in log.read_text()
    folder.end(process)


def test_the_exporter_serves_down_while_kafka_is_away(folder: Any) -> None:
    log = folder.path / "exporter.log"
    with log.open("w") as out:
        words = (
            "serve",
            "metrics",
            "--port",
            "0",
            "--every",
            "200ms",
            "--bus",
            f"kafka://127.0.0.1:{folder.free_port()}",
        )
        process = folder.start(*words, stderr=out)
    port = port_of(process, log, folder.wait_until, "metrics.served")
    folder.wait_until(lambda: '"exporter.blind"' in log.read_text())
    assert 'sealbus_survey_up{namespace="agents"} 0.0' in got(f"http://127.0.0.1:{port}/metrics")
    assert process.poll() is None
    folder.end(process)


@pytest.mark.parametrize("bus", ["file", "kafka"])
def test_the_console_says_that_there_is_no_log(folder: Any, bus: str) -> None:
    log = folder.path / "console.log"
    words = () if bus == "file" else ("--bus", f"kafka://127.0.0.1:{folder.free_port()}")
    with log.open("w") as out:
        process = folder.start("serve", "console", "--port", "0", *words, stderr=out)
    url = f"http://127.0.0.1:{port_of(process, log, folder.wait_until, 'console of')}"
    wanted = "no log at" if bus == "file" else "nothing listens at"
    folder.wait_until(lambda: wanted in got(f"{url}/"), 90.0)
    assert not list(folder.path.glob("*.db*"))
    if bus == "file":
        folder.worker()
        folder.wait_until(lambda: wanted not in got(f"{url}/") and "worker-svc" in got(f"{url}/groups"))
    assert "Traceback" not in log.read_text()
    folder.end(process)


def test_the_audit_waits_for_the_embedded_log_and_serves_its_metrics_meanwhile(folder: Any) -> None:
    log = folder.path / "audit.log"
    with log.open("w") as out:
        process = folder.start("serve", "audit", "--metrics-port", "0", stderr=out)
    port = port_of(process, log, folder.wait_until, "metrics.served")
    folder.wait_until(lambda: '"audit.log_unreachable"' in log.read_text())
    assert "sealbus_audit" in got(f"http://127.0.0.1:{port}/metrics")
    assert not list(folder.path.glob("*.db*"))
    folder.worker()
    folder.wait_until(lambda: "recording agents" in log.read_text())
    assert "Traceback" not in log.read_text()
    folder.end(process)
    assert "no log at" in folder.apart("serve", "audit", "--once", "--bus", "sqlite:///other.db").stderr


@pytest.mark.slow
def test_kafka_is_seen_when_it_comes(folder: Any, tmp_path: Path) -> None:
    port, services = folder.free_port(), {}
    for name, words in {
        "metrics.served": ("serve", "metrics", "--port", "0", "--every", "200ms"),
        "console of": ("serve", "console", "--port", "0"),
    }.items():
        log = folder.path / f"{words[1]}.log"
        with log.open("w") as out:
            process = folder.start(*words, "--bus", f"kafka://127.0.0.1:{port}", stderr=out)
        services[words[1]] = port_of(process, log, folder.wait_until, name)
    folder.wait_until(lambda: '"exporter.blind"' in (folder.path / "metrics.log").read_text())
    with started(tmp_path / "kafka", port=port):
        scraped = f"http://127.0.0.1:{services['metrics']}/metrics"
        folder.wait_until(lambda: 'sealbus_survey_up{namespace="agents"} 1.0' in got(scraped), 120.0)
        console = f"http://127.0.0.1:{services['console']}/"
        folder.wait_until(lambda: "nothing listens at" not in got(console), 120.0)
    for name in services:
        assert "Traceback" not in (folder.path / f"{name}.log").read_text()


def test_the_doctor_names_what_it_has_not_looked_at_while_the_log_is_away(folder: Any) -> None:
    done = folder.apart("doctor", "--bus", f"kafka://127.0.0.1:{folder.free_port()}", "-o", "json")
    found = folder.objects(done.stdout)
    assert [each["area"] for each in found if each["state"] == "fault"] == ["log"], done.stdout
    unseen = {each["area"] for each in found if each["state"] == "unknown"}
    assert unseen >= {"topics", "groups", "letters", "agents", "audit", "clock"}
