"""The first hour: what a newcomer does wrong, and the words of the answer that name the cure.

Each line of a table is a mistake and what its message must say, in Python and on the command line.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import msgspec
import pydantic
import pydantic.v1
import pytest
from click.testing import CliRunner

from consumers.cli import main
from sealbus import App, Bus, Outgoing, Reject, Retry, connect, connect_sync, payload
from sealbus.outbox import Outbox


@payload("job.run")
class Job(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    seconds: int = 1


@payload("money.paid", risk="high")
class Payment(msgspec.Struct, frozen=True):
    cents: int = 1


class Unmarked(msgspec.Struct):
    name: str = ""


class Inherited(Job):  # type: ignore[misc]
    pass


@dataclasses.dataclass
class Order:
    sku: str
    count: int = 1


class Point(NamedTuple):
    x: int


class Plain:
    sku: str


class OldModel(pydantic.v1.BaseModel):
    sku: str


class Model(pydantic.BaseModel):
    sku: str


class Many(pydantic.RootModel[list[int]]):
    pass


class Typed(TypedDict):
    sku: str


async def handler(job: Job) -> None: ...


any_: Any = None
wrong: Any = "3"

PYTHON: list[tuple[str, Callable[[], object], tuple[str, ...]]] = [
    ("payload without brackets", lambda: payload(Job), ("the name of a message type", '@payload("job")', "above Job")),
    ("payload of a number", lambda: payload(5), ("@payload needs the name", "not int")),
    ("payload in capitals", lambda: payload("Job.Run"), ("'Job.Run'", "lower-case segments joined by dots")),
    ("payload of one number", lambda: payload("a.b", version="1"), ("'1'", "x.y.z")),
    (
        "payload of a number as version",
        lambda: payload("a.b", version=any_ or 1),
        ("@payload('a.b'): version", '"1.0.0", not int'),
    ),
    (
        "payload of a list of upcasters",
        lambda: payload("a.b", upcasters=any_ or [1]),
        ("upcasters is a dict", "not list"),
    ),
    (
        "payload of a text as major",
        lambda: payload("a.b", upcasters=any_ or {"1": dict}),
        ("upcasters is a dict", "'1'"),
    ),
    (
        "payload of a list to match",
        lambda: payload("a.b", must_match=any_ or [1]),
        ("must_match is a dict", "not list"),
    ),
    (
        "payload of a list of options",
        lambda: payload("a.b", options_from=any_ or ["a"]),
        ("options_from is a dict", "not list"),
    ),
    ("payload of a number as rules", lambda: payload("a.b", rules=any_ or 3), ("rules is a tuple", "not int")),
    ("payload of texts as rules", lambda: payload("a.b", rules=any_ or ("x",)), ("rules is a tuple", "holds str")),
    (
        "payload of a list of deprecated",
        lambda: payload("a.b", deprecated=any_ or [1]),
        ("deprecated is a dict", "not list"),
    ),
    (
        "payload of a number as resource",
        lambda: payload("a.b", resource=any_ or 1),
        ("resource is a pointer", "not int"),
    ),
    ("payload of a number as critical", lambda: payload("a.b", critical=any_ or 1), ("critical is a tuple", "not int")),
    (
        "payload of a number as options",
        lambda: payload("a.b", required_options=any_ or 1),
        ("required_options is a", "not int"),
    ),
    (
        "App.on of a name",
        lambda: App("a@svc").on(any_ or "t.one"),
        ("the class of the type, not its name: @app.on(YourClass)",),
    ),
    ("App.on of an instance", lambda: App("a@svc").on(any_ or Job(name="x")), ("not an instance of it: @app.on(Job)",)),
    ("App of names of types", lambda: App("a@svc", types=any_ or ["t.one"]), ("not its name: types=[YourClass]",)),
    ("App of a number as version", lambda: App("a@svc", version=any_ or 1), ("version is int 1",)),
    ("App of a number as group", lambda: App("a@svc", group=any_ or 1), ("group is int 1",)),
    ("App of a number as namespace", lambda: App("a@svc", namespace=any_ or 1), ("namespace is int 1",)),
    ("payload of no risk", lambda: payload("a.b", risk="hgih"), ("'hgih'", "low, medium or high")),
    (
        "payload of a NamedTuple",
        lambda: payload("a.b")(Point),
        ("not NamedTuple Point; write", "class Point(msgspec.Struct, frozen=True): x: int"),
    ),
    (
        "payload of a plain class",
        lambda: payload("a.b")(Plain),
        ("not Plain; write `@dataclass` between", "class Plain(msgspec.Struct, frozen=True): sku: str"),
    ),
    (
        "payload of a class by attrs",
        lambda: payload("a.b")(type("Made", (), {"__attrs_attrs__": (), "__annotations__": {"x": int}})),
        ("not attrs class Made", "class Made(msgspec.Struct, frozen=True): x: int"),
    ),
    (
        "payload of a model of Pydantic 1",
        lambda: payload("a.b")(OldModel),
        ("not Pydantic 1 model OldModel", "the BaseModel of Pydantic 2"),
    ),
    (
        "payload of a RootModel",
        lambda: payload("a.b")(Many),
        ("Many is a RootModel of another kind", "a BaseModel with one field"),
    ),
    ("payload of a dict", lambda: payload("a.b")(dict), ("not dict",)),
    ("App.on of an unmarked model", lambda: App("a@svc").on(Model), ("Model", '@payload("my.type") above it')),
    ("App.on of an unmarked dataclass", lambda: App("a@svc").on(Order), ("Order", '@payload("my.type") above it')),
    ("App.on of an unmarked TypedDict", lambda: App("a@svc").on(Typed), ("Typed", '@payload("my.type") above it')),
    ("App.on without brackets", lambda: App("a@svc").on(handler), ("the function handler", "@app.on(MyPayload)")),  # type: ignore[call-overload]
    ("App.on of an unmarked class", lambda: App("a@svc").on(Unmarked), ("Unmarked", '@payload("my.type") above it')),
    ("App.on of an inheriting class", lambda: App("a@svc").on(Inherited), ("Inherited", "of Job is not inherited")),
    ("App without an agent", lambda: App(None), ("agent is None", "App('researcher@svc')")),
    ("App of an empty agent", lambda: App(""), ("illegal agent id ''", "1 to 256 characters")),
    ("Retry of a text", lambda: Retry(attempts=wrong), ("attempts", "a whole number", "found str '3'")),
    ("Retry of no attempt", lambda: Retry(attempts=0), ("attempts", "at least 1", "found int 0")),
    ("Retry of no backoff", lambda: Retry(backoff="exp"), ("backoff", "one of constant, linear, exponential", "'exp'")),
    ("Retry of a text's seconds", lambda: Retry(base_s=wrong), ("base_s", "seconds, such as 0.5", "found str '3'")),
    ("Retry with a low cap", lambda: Retry(base_s=9, cap_s=1), ("cap_s", "at least base_s, which is 9", "found int 1")),
    ("a handler's retry that is none", lambda: App("a@svc").on(Job, retry=3), ("int 3", "retry=Retry(attempts=5)")),  # type: ignore[call-overload]
    ("connect without an agent", lambda: connect("memory://", agent=any_), ("agent is NoneType None", "planner@svc")),
    ("connect with an empty agent", lambda: connect("memory://", agent=""), ("illegal agent id ''", "planner@svc")),
    ("an outbox without an agent", lambda: Outbox(any_), ("agent is NoneType None", "planner@svc")),
    (
        "an ordinary with",
        lambda: connect("memory://", agent="a").__enter__(),  # type: ignore[attr-defined]
        ("async with connect(...) as bus", "with connect_sync(...) as bus"),
    ),
    (
        "no with at all",
        lambda: connect("memory://", agent="a").publish(Job(name="x")),  # type: ignore[attr-defined]
        ("the log is not open", "async with connect(...) as bus", "bus.publish"),
    ),
    (
        "connect that is awaited",
        lambda: connect("memory://", agent="a").__await__(),  # type: ignore[attr-defined]
        ("not awaited", "async with connect(...) as bus"),
    ),
]


@pytest.mark.parametrize(("mistake", "words"), [line[1:] for line in PYTHON], ids=[line[0] for line in PYTHON])
def test_a_mistake_in_a_program_names_its_fix(mistake: Callable[[], object], words: tuple[str, ...]) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - what it says is tested
        mistake()
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


OPENING: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"url": "redis://x"}, ("the url given to connect", "'redis://x'", "sqlite://..., memory:// or kafka://host:port")),
    ({"url": "x.db"}, ("the url given to connect", "'x.db'", "sqlite://")),
    ({"url": "sqlite://x.db"}, ("sqlite:///relative.db",)),
    ({"url": "memory://", "namespace": "My_Team"}, ("the namespace given to connect", "'My_Team'", "lower-case")),
    ({"url": "memory://", "config": "none.toml"}, ("none.toml", "cannot be read")),
    ({"url": "memory://", "env": {"SEALBUS_BUS_URL": "x"}}, ("SEALBUS_BUS_URL", "the nearest known one is SEALBUS_")),
]


@pytest.mark.parametrize(("given", "words"), OPENING, ids=lambda value: repr(value)[:40])
async def test_what_cannot_be_opened_names_the_argument(given: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - what it says is tested
        async with connect(**{"agent": "a@svc", "env": {}, **given}):
            pass
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


async def streamed(bus: Bus, source: Any) -> None:
    async for outcome in bus.publish_many(source):
        if isinstance(outcome, Exception):
            raise outcome


job = Job(name="x")
CALLS: list[tuple[str, Callable[[Any], Awaitable[object]], tuple[str, ...]]] = [
    (
        "a dict",
        lambda bus: bus.publish({"name": "x", "n": 1}),
        (
            "dict is not a payload",
            "write MyPayload(...)",
            "class MyPayload(msgspec.Struct, frozen=True): name: str; n: int",
        ),
    ),
    (
        "a dataclass",
        lambda bus: bus.publish(Order("x")),
        ("dataclass Order is not a payload", '@payload("my.type") above it'),
    ),
    ("a class", lambda bus: bus.publish(Job), ("Job is a class", "an instance of it")),
    ("None", lambda bus: bus.publish(None), ("None is not a payload",)),
    ("an unmarked Struct", lambda bus: bus.publish(Unmarked()), ('@payload("my.type") above it',)),
    ("an Outgoing", lambda bus: bus.publish(Outgoing(job)), ("publish_many", "its options by name")),
    ("a wrong field", lambda bus: bus.publish(Job(name=any_)), ("/data/name", "expected `str`")),
    ("high risk", lambda bus: bus.publish(Payment()), ("Keys come with a signer", 'risk="medium"')),
    ("ttl", lambda bus: bus.publish(job, ttl=5), ("no option 'ttl'", "the nearest is ttl_s")),
    ("prio", lambda bus: bus.publish(job, prio=5), ("no option 'prio'", "the nearest is priority")),
    ("timeout", lambda bus: bus.publish(job, timeout=5), ("no option 'timeout'", "the nearest is timeout_s")),
    ("a text as ttl_s", lambda bus: bus.publish(job, ttl_s="5"), ("ttl_s", "str", "seconds")),
    ("a text as timeout_s", lambda bus: bus.publish(job, timeout_s="5"), ("timeout_s", "str '5'", "seconds")),
    ("a retry of 3", lambda bus: bus.publish(job, retry=3), ("retry", "int 3", "retry=Retry(attempts=3)")),
    ("a priority", lambda bus: bus.publish(job, priority="hgih"), ("'hgih'", "low, normal, medium, high, critical")),
    ("delay and at", lambda bus: bus.publish(job, delay_s=-1), ("delay_s", "0 or more")),
    ("a request's reply", lambda bus: bus.request(job, "Job"), ("str is not a payload", "@payload")),
    ("a request's lifetime", lambda bus: bus.request(job, Job, ttl_s=5), ("ttl_s", "lives for timeout_s")),
    ("a request's delay", lambda bus: bus.request(job, Job, delay_s=5), ("delay_s", "sent at once")),
    ("a request's option", lambda bus: bus.request(job, Job, idempotency="x"), ("the nearest is idempotency_key",)),
    ("one payload as many", lambda bus: streamed(bus, job), ("an iterable of payloads", "one payload is for publish")),
    ("many dicts", lambda bus: streamed(bus, [{"name": "x"}]), ("dict is not a payload",)),
    ("resend of a payload", lambda bus: bus.resend(job), ("the `message` of a PublishUnknown", "not Job")),
]


@pytest.mark.parametrize(("call", "words"), [line[1:] for line in CALLS], ids=[line[0] for line in CALLS])
async def test_a_wrong_call_of_a_bus_names_its_fix(
    call: Callable[[Any], Awaitable[object]], words: tuple[str, ...]
) -> None:
    async with connect("memory://", agent="a@svc", env={}) as bus:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - what it says is tested
            await call(bus)
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


def test_a_sync_bus_names_the_fix_too() -> None:
    with pytest.raises(Exception, match="agent is NoneType None"), connect_sync("memory://", agent=any_):
        pass
    with connect_sync("memory://", agent="a@svc", env={}) as bus, pytest.raises(TypeError, match="nearest is ttl_s"):
        bus.publish(job, ttl=5)  # type: ignore[call-arg]


AGENTS = """
import msgspec
import pydantic
import pydantic.v1
from sealbus import App, Reject, payload

@payload("job.run")
class Job(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    seconds: int = 1

app = App("worker@svc")

@app.on(Job)
async def run(job: Job) -> None:
    raise Reject("not this one")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a user's app, a log with one message, and its dead letter."""
    path = tmp_path_factory.mktemp("first-hour")
    (path / "first_hour.py").write_text(AGENTS, "utf-8")
    return path


@pytest.fixture
def shell(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [name for name in os.environ if name.startswith("SEALBUS_")]:
        monkeypatch.delenv(name)

    def call(*arguments: str, stdin: str = "") -> tuple[int, str]:
        result = CliRunner().invoke(main, arguments, input=stdin)
        return result.exit_code, result.output

    if not (folder / "sealbus.db").exists():
        assert call("publish", "job.run", "--app", "first_hour:app", stdin='{"name": "x"}')[0] == 0
    return call


PUBLISH = "publish job.run --app first_hour:app"
COMMANDS: list[tuple[str, str, int, tuple[str, ...]]] = [
    ("rnu", "", 2, ("no such command 'rnu'", "the nearest is run")),
    ("topcs list", "", 2, ("the nearest is topic",)),
    ("dlq lst", "", 2, ("no such command 'lst'", "the nearest is list")),
    ("topic show", "", 2, ("no such command 'show'", "there are apply, list")),
    ("xyzzy", "", 2, ("no such command 'xyzzy'", "there are", "publish")),
    ("--bus sqlite:///x.db tail job.run", "", 2, ("--bus goes behind the command", "tail TOPIC --bus")),
    ("tail job.run --folow", "", 2, ("--follow",)),
    ("publish job.run --prioritty 3", "", 2, ("--priority",)),
    (PUBLISH, '{"nmae": "x"}', 1, ("/data/nmae", "job.run has no field 'nmae'", "the nearest is name")),
    (PUBLISH, '{"name": "x", "secnods": 3}', 1, ("/data/secnods", "the nearest is seconds", "--ignore-unknown")),
    (f"{PUBLISH} --ignore-unknown", '{"nmae": "x"}', 1, ("missing required field `name`", "was given is nmae")),
    (f"{PUBLISH} --ignore-unknown", '{"name": "x", "secnods": 3}', 0, ("left out; the nearest is seconds",)),
    (PUBLISH, '{"name": 5}', 1, ("/data/name", "expected `str`")),
    (PUBLISH, "[1]", 1, ("the payload is not an object",)),
    ("publish job.rum --app first_hour:app", "", 2, ("unknown type 'job.rum'", "the nearest is job.run")),
    ("publish job.run", "", 2, ("unknown type 'job.run'", "--app MODULE:APP")),
    ("publish Job.Run", "", 2, ("not a valid message type", "lower-case")),
    (f"{PUBLISH} --ttl soon", "", 2, ("'soon' is not a duration", "10s, 5m, 1h, 7d")),
    (f"{PUBLISH} --priority hgih", "", 2, ("0 to 9", "high")),
    (f"{PUBLISH} --bus memory://", "", 2, ("a log in memory ends with this command", "sqlite:///x.db")),
    ("tail job.rum", "", 78, ("the nearest is agents.job.run", "sealbus topic list")),
    ("tail job.run --from begining", "", 2, ("neither `start` nor an offset",)),
    ("tail job.run --output jsn", "", 2, ("text, json", "the nearest is json")),
    ("tail job.run --bus redis://x", "", 78, ("flag --bus", "sqlite://..., memory:// or kafka://host:port")),
    ("tail job.run --bus sqlite:///none.db", "", 69, ("no log at none.db", "sealbus publish")),
    ("type show job.rum --app first_hour:app", "", 1, ("the nearest is job.run",)),
    ("type show job.run", "", 1, ("--app MODULE:APP adds your own",)),
    ("group show wrker", "", 1, ("no group 'wrker'", "sealbus group list")),
    ("dlq add job.run/0/0 --group worker", "", 2, ("give --why TEXT", "journal")),
    ("dlq add job.run/0/0 --why x", "", 2, ("Missing option '--group'",)),
    ("run first_hour:ap", "", 2, ("has no 'ap'", "first_hour:app")),
    ("run first_hour", "", 2, ("not MODULE:APP", "agents:app")),
    ("run first_hour:app --concurrency many", "", 78, ("--concurrency", "'many'", "a whole number")),
    ("doctor first_hour:ap", "", 2, ("first_hour:app",)),
    ("dlq list --since yesterday", "", 2, ("'yesterday' is not a time", "2h or 3d", "2026-01-31")),
    ("dlq list --since 2026-01-31", "", 0, ("0 dead letters",)),
    ("dlq list --reason rejectd", "", 2, ("the nearest is rejected",)),
    ("dlq list --state opn", "", 2, ("open, redriven, parked, dismissed", "the nearest is open")),
    ("dlq show job.run/0", "", 2, ("TOPIC/PARTITION/OFFSET", "sealbus dlq list")),
    ("dlq show job.rum/0/0", "", 78, ("the nearest is agents.job.run",)),
    ("dlq show job.run/0/7", "", 1, ("no dead letter at agents.job.run.dlq/0/7", "sealbus dlq list")),
    ("verify --now noon", "", 2, ("'noon' is not a time", "2026-01-31T12:00:00Z")),
    ("serve outbox mysql://x --dry-run", "", 78, ("postgresql://", "sqlite:///")),
    ("config wroker", "", 2, ("the nearest is worker",)),
]


@pytest.mark.parametrize(("line", "stdin", "code", "words"), COMMANDS, ids=[each[0] for each in COMMANDS])
def test_a_mistake_on_the_command_line_names_its_fix(
    shell: Callable[..., tuple[int, str]], line: str, stdin: str, code: int, words: tuple[str, ...]
) -> None:
    found, output = shell(*line.split(), stdin=stdin)
    assert [word for word in words if word not in output] == [], output
    assert found == code, output


@pytest.mark.medium
@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (("--type", "job.rum"), "no dead letters of type job.rum; the nearest is job.run"),
        (("--group", "worker-svc"), "no dead letters of group worker-svc; the nearest is worker-svc-"),
        (("--sender", "cli@sealbs"), "no dead letters of sender cli@sealbs; the nearest is cli@sealbus"),
        (("--cause", "0123456"), "no dead letters of cause 0123456"),
    ],
)
@pytest.mark.parametrize("verb", ["list", "redrive", "dismiss"])
def test_a_filter_that_takes_no_dead_letter_names_the_nearest(
    shell: Callable[..., tuple[int, str]], folder: Path, verb: str, options: tuple[str, ...], hint: str
) -> None:
    if shell("dlq", "list")[1].startswith("0 dead letters"):
        asyncio.run(let_it_die(f"sqlite:///{folder}/sealbus.db"))
    code, output = shell("dlq", verb, *options)
    assert (code, hint in output) == (0, True), output


async def let_it_die(url: str) -> None:
    app, ran = App("worker@svc"), asyncio.Event()

    @app.on(Job)
    async def run(job: Job) -> None:
        ran.set()
        raise Reject("not this one")

    async with app.running(url):
        await ran.wait()
