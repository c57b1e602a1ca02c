"""The units of deploy/systemd come up together on one machine, share its log, sign, and are stopped in order.

No systemd runs here: each unit's command is run as its user, with its folders, environment and credentials.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.machines import ROOT, eventually, get, refuse_or_skip, sample
from tests.deploy.units import FOLDER, Machine, unit_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
USER = 10002
POLICY = """
[[agents]]
id = "hello@svc"

[[agents]]
id = "audit@sealbus"

[[rules]]
id = "hello"
effect = "allow"
action = ["publish", "handle"]
agents = "hello@svc"
types = "hello.*"

[[agents]]
id = "gateway@sealbus"
groups = ["doors"]

[[rules]]
id = "checkpoints"
effect = "allow"
action = "publish"
agents = "audit@sealbus"
types = "audit.checkpoint"
"""
SECOND = "from agents import Hello\nfrom sealbus import App\n\napp = App('second@svc')\n"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    refuse_or_skip()
    made = Machine(tmp_path, user=USER)
    shutil.copy(FOLDER / "sealbus.toml", made.etc)
    (made.etc / "policy.toml").write_text(POLICY)
    token = hashlib.sha256(secrets.token_bytes(8)).hexdigest()
    (made.etc / "tokens.toml").write_text(f'[alice]\nsha256 = "{token}"\nscopes = ["read"]\n')
    (made.etc / "tokens.toml").chmod(0o600)
    keys = made.etc / "keys"
    keys.mkdir()
    command = [sys.executable, "-m", "consumers.cli", "key", "new", "hello@svc", "second@svc", "audit@sealbus"]
    subprocess.run(
        [*command, "--dir", str(keys)], check=True, capture_output=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    command = [sys.executable, "-m", "consumers.cli", "door", "add", "ci", "--agent", "ci@acme", "--to", "hello@svc"]
    subprocess.run(
        [*command, "--type", "hello.said", "--doors", str(made.etc / "doors.toml")],
        check=True,
        capture_output=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "SEALBUS_TRUST__KEYS": str(keys)},
    )
    (made.etc / "doors.toml").chmod(0o644)
    (made.etc / "agents:app.pem").symlink_to("keys/hello-svc-bc36c77c.pem")
    shutil.copy(ROOT / "deploy" / "container" / "agents.py", made.library)
    yield made
    made.close()


def test_the_units_share_one_log_sign_are_scraped_and_stop(machine: Machine) -> None:
    worker = unit_of("sealbus-worker@.service", "agents:app")
    # In the worst order: nobody has made the log yet.
    names = ("sealbus-exporter.service", "sealbus-console.service")
    units = {name: unit_of(name) for name in names}
    for unit in units.values():
        machine.start(unit)
    running = list(machine.running.values())
    eventually(lambda: 'sealbus_survey_up{namespace="agents"} 0.0' in get(9109, "/metrics")[1], running)
    begun = machine.start(worker)
    eventually(lambda: get(9400, "/healthz/ready")[0] == 200, [*running, begun])
    machine.start(unit_of("sealbus-audit.service"))
    machine.start(unit_of("sealbus-gateway.service"))
    running = list(machine.running.values())
    eventually(lambda: get(9111, "/healthz/ready")[0] == 200, running)
    eventually(lambda: get(8766, "/healthz/ready")[0] == 200, running)

    words = ("publish", "hello.said", "--app", "agents:app", "--config", "/etc/sealbus/sealbus.toml")
    sent = machine.start(worker, *words, stdin=b'{"name": "Ada"}')
    assert sent.process.wait(60) == 0, sent.said()
    assert "unsigned" not in sent.said()
    eventually(lambda: 'sealbus_survey_up{namespace="agents"} 1.0' in get(9109, "/metrics")[1], running)
    eventually(lambda: sample(get(9400, "/metrics")[1], "sealbus_settled_total") >= 1, running)
    eventually(lambda: "sealbus_audit_rows_total" in get(9108, "/metrics")[1], running)
    assert get(8765, "/healthz/live")[0] == 200
    words = ("tail", "hello.answered", "--from", "start", "--verify", "--config", "/etc/sealbus/sealbus.toml")
    checked = machine.start(worker, *words, "--trusted-keys", "/etc/sealbus/keys/jwks.json")
    assert checked.process.wait(60) == 0, checked.said()
    assert "Hello, Ada!" in checked.said()

    for name, started in machine.running.items():
        started.require_running()
        unit = worker if name == worker.name else unit_of(name)
        code = started.end(60)
        assert code in (0, *map(int, unit.settings["SuccessExitStatus"])), f"{name}: {started.said()[-3000:]}"
        for fault in ("Traceback", "no_checkpoints", "unsigned"):
            assert fault not in started.said(), f"{name}: {started.said()[-3000:]}"
    assert begun.process.returncode == 0


def test_a_second_worker_takes_its_port_and_key_from_files_of_its_own_name(machine: Machine) -> None:
    (machine.library / "second.py").write_text(
        SECOND + "\n\n@app.on(Hello)\nasync def hear(said: Hello) -> None: ...\n"
    )
    (key,) = (machine.etc / "keys").glob("second-svc-*.pem")
    (machine.etc / "second:app.pem").symlink_to(Path("keys") / key.name)
    (machine.etc / "second:app.env").write_text("METRICS_PORT=9401\n")
    (machine.etc / "policy.toml").write_text(
        POLICY.replace('id = "audit@sealbus"', 'id = "audit@sealbus"\n\n[[agents]]\nid = "second@svc"').replace(
            'agents = "hello@svc"', 'agents = ["hello@svc", "second@svc"]'
        )
    )
    for instance in ("agents:app", "second:app"):
        machine.start(unit_of("sealbus-worker@.service", instance))
    running = list(machine.running.values())
    for port in (9400, 9401):
        eventually(lambda: get(port, "/healthz/ready")[0] == 200, running)  # noqa: B023 - called here


def test_every_unit_has_the_one_user_and_a_limit_of_memory() -> None:
    assert (FOLDER / "sysusers.conf").read_text().splitlines()[-1].startswith("u sealbus ")
    for path in FOLDER.glob("*.service"):
        unit = unit_of(path.name, "agents:app")
        assert unit.one("User") == "sealbus"
        assert "DynamicUser" not in unit.settings
        assert "MemoryMax" in unit.settings
