"""An app that answers: what the workers and the requesters of the request tests have in common."""

import asyncio

import msgspec

from sealbus import App, payload


@payload("request.sum", version="1.0.0")
class Sum(msgspec.Struct, frozen=True, kw_only=True):
    number: int


@payload("request.total", version="1.0.0")
class Total(msgspec.Struct, frozen=True, kw_only=True):
    number: int


app = App("adder@test", group="request-test")


@app.on(Sum)
async def add(question: Sum) -> Total:
    await asyncio.sleep(question.number % 20 / 1000)
    return Total(number=question.number + 1)
