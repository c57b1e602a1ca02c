"""Handlers that a type checker has to refuse, each under a line that says `wrong`: it is never run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from consumers.driver import Arrived, Ride
from pydantic import BaseModel

from sealbus import App, Context, payload

app = App("driver@svc")


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


@app.on(Ride)
async def right(ride: Ride) -> Arrived:
    return Arrived(stop=ride.stop)


@app.on(Ride, blocking=True)
def right_too(ride: Ride, context: Context) -> list[Arrived]:
    return [Arrived(stop=ride.stop)]


@app.on(Ride, provide={"rate": 3})
async def right_given(ride: Ride, context: Context, *, rate: int) -> None: ...


@app.on(Ride)  # wrong: swapped
async def swapped(context: Context, ride: Ride) -> None: ...


@app.on(Ride)  # wrong: another payload
async def of_another(arrived: Arrived) -> None: ...


@app.on(Ride)  # wrong: returns a dict
async def returns_dict(ride: Ride) -> dict[str, str]:
    return {"stop": ride.stop}


@app.on(Ride)  # wrong: no coroutine function
def ordinary(ride: Ride) -> None: ...


@app.on(Ride, blocking=True)  # wrong: a coroutine function
async def blocking(ride: Ride) -> None: ...


@app.on(Ride)  # wrong: an argument that nothing gives
async def more(ride: Ride, context: Context, rate: int) -> None: ...


@app.on(DataRide)
async def right_data(ride: DataRide) -> DictRide:
    return DictRide(stop=ride.stop)


@app.on(DictRide)
async def right_dict(ride: DictRide, context: Context) -> list[ModelRide]:
    context.send(DataRide(stop=ride["stop"]))
    return [ModelRide(stop=ride["stop"])]


@app.on(ModelRide)
async def right_model(ride: ModelRide) -> DataRide | None:
    return DataRide(stop=ride.stop)


@app.on(DataRide)  # wrong: another payload
async def of_another_data(ride: DictRide) -> None: ...


@app.on(DictRide)  # wrong: another payload
async def of_another_dict(ride: ModelRide) -> None: ...


@app.on(ModelRide)  # wrong: another payload
async def of_another_model(ride: DataRide) -> None: ...


@app.on(DictRide)  # wrong: swapped
async def swapped_dict(context: Context, ride: DictRide) -> None: ...


@app.on(DictRide)  # wrong: returns a dict
async def returns_plain_dict(ride: DictRide) -> dict[str, str]:
    return {"stop": ride["stop"]}


@app.on(ModelRide)  # wrong: returns a text
async def returns_text(ride: ModelRide) -> str:
    return ride.stop
