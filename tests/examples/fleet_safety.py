"""A robot fleet: no mission starts before the safety agent has cleared it, and its no is final.

sealbus run fleet_safety:coordinator fleet_safety:safety fleet_safety:robot
"""

from __future__ import annotations

import msgspec

from sealbus import App, Reject, payload
from sealbus.sagas import Saga, SagaContext, on_answer, on_failure, on_start


@payload("mission.request", version="1.0.0")
class MissionRequest(msgspec.Struct, frozen=True, kw_only=True):
    mission: str
    speed: int


@payload("mission.result", version="1.0.0")
class MissionResult(msgspec.Struct, frozen=True, kw_only=True):
    done: bool
    why: str = ""


@payload("clearance.request", version="1.0.0", performative="query")
class ClearanceRequest(msgspec.Struct, frozen=True, kw_only=True):
    mission: str
    speed: int


@payload("clearance.output", version="1.0.0")
class Clearance(msgspec.Struct, frozen=True, kw_only=True):
    mission: str


@payload("drive.request", version="1.0.0")
class DriveRequest(msgspec.Struct, frozen=True, kw_only=True):
    mission: str


@payload("drive.output", version="1.0.0")
class Driven(msgspec.Struct, frozen=True, kw_only=True):
    mission: str


class MissionState(msgspec.Struct):
    mission: str = ""


class Mission(Saga[MissionState], version="1.0.0"):
    @on_start(MissionRequest, key="/data/mission")
    async def wanted(self, request: MissionRequest, context: SagaContext) -> None:
        self.state.mission = request.mission
        question = ClearanceRequest(mission=request.mission, speed=request.speed)
        context.ask("clearance", question, to="safety@svc", answer_by_s=30)

    @on_answer("clearance", Clearance)
    async def cleared(self, _: Clearance, context: SagaContext) -> None:
        # Somebody may still take over: the second robot is asked where the first is silent.
        order = DriveRequest(mission=self.state.mission)
        context.ask("drive", order, to=["robot@svc", "spare@svc"], answer_by_s=600)

    @on_failure("clearance")
    async def not_cleared(self, context: SagaContext) -> None:
        self.end(context, done=False)

    @on_answer("drive", Driven)
    async def driven(self, _: Driven, context: SagaContext) -> None:
        self.end(context, done=True)

    @on_failure("drive")
    async def not_driven(self, context: SagaContext) -> None:
        self.end(context, done=False)

    def end(self, context: SagaContext, *, done: bool) -> None:
        failure = context.failure
        why = "" if failure is None else f"{failure.by or 'nobody'}: {failure.text or failure.kind}"
        context.answer(MissionResult(done=done, why=why))
        context.finish()


coordinator = App("coordinator@svc", types=[ClearanceRequest, DriveRequest, MissionResult])
coordinator.add(Mission)
safety, robot, spare = App("safety@svc"), App("robot@svc"), App("spare@svc")
driven: list[str] = []


@safety.on(ClearanceRequest)
async def check(request: ClearanceRequest) -> Clearance:
    if request.speed > 5:
        raise Reject("too fast near people")
    return Clearance(mission=request.mission)


@robot.on(DriveRequest)
@spare.on(DriveRequest)
async def drive(request: DriveRequest) -> Driven:
    driven.append(request.mission)
    return Driven(mission=request.mission)


async def test_a_cleared_mission_is_driven() -> None:
    async with coordinator.test(safety, robot) as bus:
        result = await bus.request(MissionRequest(mission="m1", speed=3), MissionResult, timeout_s=3_000)
        assert result == MissionResult(done=True)


async def test_a_command_rejected_by_the_safety_agent_never_runs() -> None:
    driven.clear()
    async with coordinator.test(safety, robot) as bus:
        result = await bus.request(MissionRequest(mission="m2", speed=9), MissionResult, timeout_s=3_000)
        assert not result.done
        assert "too fast near people" in result.why
        assert driven == []


async def test_a_silent_safety_agent_clears_nothing() -> None:
    driven.clear()
    async with coordinator.test(robot) as bus:
        result = await bus.request(MissionRequest(mission="m3", speed=3), MissionResult, timeout_s=3_000)
        assert (result.done, driven) == (False, [])


async def test_the_spare_robot_drives_where_the_first_is_silent() -> None:
    async with coordinator.test(safety, spare) as bus:
        result = await bus.request(MissionRequest(mission="m4", speed=3), MissionResult, timeout_s=3_000)
        assert result.done
