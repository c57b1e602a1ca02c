"""Handlers that a type checker has to refuse, each under a line that says `wrong`: it is never run."""

from __future__ import annotations

from consumers.driver import Arrived, Ride

from sealbus import App, Context

app = App("driver@svc")


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
