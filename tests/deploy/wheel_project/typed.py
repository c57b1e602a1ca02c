"""What a type checker has to know of sealbus: it is never run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict, reveal_type

from consumers.driver import Arrived, Ride, app, drive
from producers.rides import stops
from pydantic import BaseModel
from sealbus.bus.transports.base import Record

from sealbus import Receipt, RequestFailed, connect, connect_sync, payload


@payload("ride.data")
@dataclass
class DataRide:
    stop: str


@payload("ride.dict")
class DictRide(TypedDict):
    stop: str


@payload("ride.model")
class ModelRide(BaseModel):
    stop: str


async def everything() -> None:
    reveal_type(app)
    reveal_type(drive)
    async with connect("sqlite:///x.db", agent="planner@svc") as bus:
        reveal_type(bus)
        reveal_type(await bus.publish(Ride(stop="north")))
        try:
            reveal_type(await bus.request(Ride(stop="north"), Arrived, timeout_s=5))
        except RequestFailed as error:
            reveal_type(error.reason)
        async for outcome in bus.publish_many(Ride(stop=stop) for stop in stops(10)):
            reveal_type(outcome)
            if isinstance(outcome, Receipt):
                reveal_type(outcome.offset)
    async with app.test() as tested:
        reveal_type(tested.sent(Arrived))
        reveal_type(tested.dead_letters)


async def of_any_kind() -> None:
    async with connect("sqlite:///x.db", agent="planner@svc") as bus:
        reveal_type(await bus.request(DataRide(stop="north"), DictRide))
        reveal_type(await bus.request(DictRide(stop="north"), ModelRide))
        reveal_type(await bus.request(ModelRide(stop="north"), DataRide))


def in_threads() -> None:
    with connect_sync("sqlite:///x.db", agent="planner@svc") as bus:
        reveal_type(bus.request(Ride(stop="north"), Arrived, timeout_s=5))


def deeper(record: Record) -> None:
    reveal_type(record.value)
