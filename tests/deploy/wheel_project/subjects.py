"""What a type checker has to know of the modules of sealbus: it is never run."""

from __future__ import annotations

from dataclasses import dataclass, field

from consumers.driver import Arrived, Ride

from sealbus import App, Context, Outgoing, Router, connect, payload
from sealbus import vocabulary as words
from sealbus.dialects import dialect, seal_foreign
from sealbus.envelope import Agent
from sealbus.errors import ConfigurationError, UnreachableError
from sealbus.patterns import ContractNet
from sealbus.sagas import AskFailed, Saga, SagaContext, on_answer, on_cancel, on_failure, on_start, on_timer
from sealbus.schemas import DualWrite, Has, Is, Rule, when
from sealbus.telemetry import Metrics, trace_handlers, trace_publishes
from sealbus.testing import DeadLetter, TestBus
from sealbus.trust import Authority, PolicyFile, Security, SigningKey, Untrusted
from sealbus.workflows import WorkflowFinding, check_workflow, parse_workflow, workflow_engine


@dataclass
class Stops:
    seen: list[str] = field(default_factory=list[str])


class Tour(Saga[Stops], version="1.0.0"):
    @on_start(Ride)
    async def begun(self, ride: Ride, context: SagaContext) -> None:
        self.state.seen.append(ride.stop)
        context.ask("next", Ride(stop="east"), to=Agent(role="driver"), answer_by_s=30)
        context.timer("pause", 5)

    @on_answer("next", Arrived)
    async def arrived(self, arrived: Arrived, context: SagaContext) -> None:
        context.finish()

    @on_failure("next")
    async def lost(self, context: SagaContext) -> None:
        failure: AskFailed | None = context.failure
        assert failure
        context.finish()

    @on_timer("pause")
    async def rested(self, context: SagaContext) -> None: ...

    @on_cancel
    async def stopped(self, context: SagaContext) -> None: ...


class Auction(ContractNet, version="1.0.0"):
    @on_start(Ride)
    async def wanted(self, ride: Ride, context: SagaContext) -> None: ...


@payload(
    "ride.noted", version="1.0.0", rules=(Rule("late needs a note", "/note", when(Is("late", (True,)), Has("note"))),)
)
@dataclass
class Noted:
    late: bool = False
    note: str | None = None


@payload("ride.noted", version="2.0.0", dual_write=DualWrite(Noted, lambda new: Noted(note=new.text)))
@dataclass
class NotedBetter:
    text: str = ""


router = Router(middleware=[trace_handlers()])


@router.on(Ride)
async def drive(ride: Ride, context: Context) -> Outgoing:
    return Outgoing(
        Arrived(stop=ride.stop, last=False), security=Security(trust_level="tool_result"), authority=Authority()
    )


@router.on(words.TaskRequest)
async def work(task: words.TaskRequest) -> words.TaskResult:
    return words.TaskResult(status="completed", summary=task.goal)


app = App("fleet@svc", policy=PolicyFile("policy.toml"))
app.include(router)
app.add(Tour)
app.add(Auction)


async def tested(bus: TestBus) -> list[DeadLetter]:
    fleet = bus.fake(Ride, returns=Arrived(stop="east", last=True))
    bus.assert_all_handled()
    return bus.dead_letters if not fleet.received else []


async def published(url: str, line: bytes, metrics: Metrics) -> None:
    signer = SigningKey("keys/fleet.pem")
    try:
        async with connect(url, agent="fleet@svc", signer=signer, middleware=[trace_publishes()]) as bus:
            await bus.publish(Ride(stop="north"))
    except (ConfigurationError, UnreachableError):
        seal_foreign(dialect("frameworks").decode(line), namespace="agents")


def judged(text: str, page: Untrusted[str]) -> list[WorkflowFinding]:
    workflow = parse_workflow(text)
    workflow_engine([workflow])
    return check_workflow(workflow)
