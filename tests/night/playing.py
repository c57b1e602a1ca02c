"""Playing the night: its namespace, its processes, and what happens.

A namespace on a file in a temporary folder, with keys, a policy and an audit; its workers are processes.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sealbus import connect
from tests.night.agents import Fetch, Quote, Stock, Survey

ROOT: Final = Path(__file__).resolve().parent.parent.parent
AGENTS: Final = ("planner", "scout", "reader", "reviewer", "publisher", "catalogue")
POLICY: Final = """
[[agents]]
id = "ada@acme"
kind = "human"
owner = "ada"
trust_ceiling = "user_request"

[[agents]]
id = "bo@acme"
kind = "human"
owner = "bo"

[[agents]]
id = "audit@sealbus"
kind = "service"
model = false
capabilities = ["audit.read"]

[[rules]]
id = "work"
effect = "allow"
action = ["publish", "handle", "redrive"]
agents = "**"
types = "**"

[[rules]]
id = "agents-may-ask-agents"
effect = "allow"
action = "handle"
agents = ["reader@svc", "reviewer@lab", "publisher@svc", "catalogue@svc"]
types = ["page.fetch", "draft.check", "report.publish", "stock.ask"]
groups = "*"
instructions_from = "model_generated"

[[rules]]
id = "people-decide"
effect = "allow"
action = "approve"
agents = "bo@acme"
types = "report.**"
"""
GOALS: Final = (
    "Which suppliers could replace Kestrel by March?",
    "Compare freight offers from Rotterdam to Gdansk",
    "Summarise the minutes of 25 November",
    "Quote 250 cells of type 21700",
    "Translate 14 pages from Polish",
)


class Night:
    """A namespace in a folder, and its processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "SEALBUS_BUS__URL": f"sqlite:///{folder}/log.db",
            "SEALBUS_BUS__NAMESPACE": "research",
            "SEALBUS_INBOX__URL": f"sqlite:///{folder}/inbox.db",
            "SEALBUS_AUDIT__URL": f"sqlite:///{folder}/audit.db",
            "SEALBUS_AUDIT__DAILY_BUDGET": "5",
            "SEALBUS_TRUST__KEYS": str(folder / "keys" / "jwks.json"),
            "SEALBUS_TRUST__KEY_FILE": str(folder / "keys"),
            "SEALBUS_POLICY__FILE": str(folder / "policy.toml"),
            "SEALBUS_LOG__LEVEL": "warning",
        }
        self.running: list[subprocess.Popen[bytes]] = []

    def call(self, *arguments: str, stdin: str = "") -> str:
        """Run a command of the bus; return its output."""
        return subprocess.run(
            [sys.executable, "-m", "consumers.cli", *arguments],
            env=self.environment,
            cwd=self.folder,
            input=stdin,
            text=True,
            capture_output=True,
            check=True,
            timeout=120,
        ).stdout

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        """Run a command of the bus; return its rows."""
        return [json.loads(line) for line in self.call(*arguments, "-o", "json").splitlines()]

    def publish(self, agent: str, *payloads: Any) -> None:
        """Publish *payloads* as *agent*, from any thread: a browser's driver has an event loop in its own."""
        env = {name: value for name, value in self.environment.items() if name.startswith("SEALBUS_")}

        async def send() -> None:
            async with connect(agent=agent, env=env) as bus:
                for each in payloads:
                    await bus.publish(each, ttl_s=86_400)

        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, send()).result()

    @staticmethod
    def wait_for(condition: Callable[[], bool], what: str) -> None:
        """Wait until *condition* holds. Raises TimeoutError."""
        wait_for(condition, what)

    def start(self, *arguments: str) -> Path:
        """Start a command of the bus; return the file with what it says."""
        path = self.folder / f"process-{len(self.running)}.log"
        with path.open("wb") as log:
            self.running.append(
                subprocess.Popen(
                    [sys.executable, "-m", "consumers.cli", *arguments],
                    env=self.environment,
                    cwd=self.folder,
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                )
            )
        return path

    def stop(self) -> None:
        """End everything that was started."""
        for process in self.running:
            process.terminate()
        for process in self.running:
            process.wait(30)

    async def play(self) -> None:
        """Publish what happens in the night."""
        env = {name: value for name, value in self.environment.items() if name.startswith("SEALBUS_")}
        async with connect(agent="ada@acme", env=env) as bus:
            for number, goal in enumerate(GOALS):
                await bus.publish(Survey(goal=goal, publish=number == 0), ttl_s=86_400)
        async with connect(agent="scout@lab", env=env) as bus:
            for number in range(41):
                await bus.publish(
                    Quote(supplier="Voltmark BV", unit_price="41.20", lead_time_days=-number - 1, portal_token="sk-42"),
                    ttl_s=86_400,
                )
        async with connect(agent="planner@lab", env=env) as bus:
            for number in range(5):
                url = f"https://kestrel.example/{number}"
                await bus.publish(Fetch(url=url), key="kestrel.example", ttl_s=86_400)
            for number in range(6):
                await bus.publish(Stock(warehouse=f"hall-{number}"), ttl_s=86_400)


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 90.0) -> None:
    """Wait until *condition* holds. Raises TimeoutError."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end_s:
            raise TimeoutError(what)
        time.sleep(0.3)


@contextmanager
def played(folder: Path) -> Iterator[tuple[Night, str, str]]:
    """Play the night; yield it, the address of its console, and a token of the console."""
    night = Night(folder)
    (folder / "policy.toml").write_text(POLICY, "utf-8")
    night.call("key", "new", *(_id(name) for name in AGENTS), "ada@acme", "bo@acme", "audit@sealbus")
    night.call("topic", "apply", *(f"tests.night.agents:{name}" for name in AGENTS))
    try:
        for name in AGENTS:
            night.start("run", f"tests.night.agents:{name}")
        night.start("serve", "audit")
        console = night.start("serve", "console", "--port", "0", "--key-file", str(folder / "keys"), "--as", "bo@acme")

        def told(pattern: str) -> str:
            found = re.search(pattern, console.read_text("utf-8"))
            return found[1] if found else ""

        wait_for(lambda: bool(told(r"(http://\S+)/") and told(r"for this run: (\S+)")), "the console has started")
        asyncio.run(night.play())
        wait_for(lambda: len(night.rows("approval", "list")) >= 1, "an approval waits")
        wait_for(lambda: len(night.rows("dlq", "list", "--limit", "100")) >= 47, "letters")
        yield night, told(r"(http://\S+)/"), told(r"for this run: (\S+)")
    finally:
        night.stop()


def _id(name: str) -> str:
    return f"{name}@svc" if name in ("reader", "publisher", "catalogue") else f"{name}@lab"


def addresses(night: Night) -> dict[str, str]:
    """Return the addresses of the pages by the names of their pictures."""
    letters = night.rows("dlq", "list", "--limit", "1000")
    quote = next(each for each in letters if "supplier.quote" in each["location"])
    approval = night.rows("approval", "list", "--all")[0]
    sealed = json.loads(night.call("show", approval["request"], "-o", "json"))
    conversation = sealed["envelope"]["metadata"]["conversation_id"]
    digits = approval["approval"].removeprefix("sha256:")
    cause = night.rows("dlq", "list", "--by", "cause")[0]["value"]
    return {
        "overview": "/",
        "letters": "/letters",
        "cause": f"/letters/cause?name={cause}",
        "redrive": f"/letters/redrive?cause={cause}",
        "letter": f"/letters/show?place={quote['location']}",
        "conversations": "/conversations",
        "conversation": f"/conversations?id={conversation}",
        "causes": f"/conversations?id={conversation}&view=causes",
        "text": f"/conversations?id={conversation}&view=text",
        "message": f"/messages?id={quote['message_id']}",
        "approvals": "/approvals",
        "approval": f"/approvals/show?id={digits[:12]}",
        "agents": "/agents",
        "agent": "/agents/show?id=reader@svc",
        "groups": "/groups",
        "group": f"/groups?name={night.rows('group', 'list')[0]['group']}",
        "processes": "/processes",
        "costs": "/costs",
        "audit": f"/audit?conversation={conversation}",
        "tail": "/tail",
    }
