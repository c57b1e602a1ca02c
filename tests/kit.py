"""Message types and apps that many tests share. A test whose subject is a declaration declares its own."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from sealbus import App, payload

__all__ = ["Answered", "Asked", "Done", "Job", "Order", "handling"]


@payload("job.asked", performative="request")
class Job(msgspec.Struct, frozen=True):
    number: int = 0


@payload("job.done", performative="inform")
class Done(msgspec.Struct, frozen=True):
    number: int = 0


@payload("question.asked")
class Asked(msgspec.Struct, frozen=True):
    text: str = "why?"


@payload("question.answered")
class Answered(msgspec.Struct, frozen=True):
    text: str = ""


@payload("order.placed")
class Order(msgspec.Struct, frozen=True):
    sku: str = "tea"


def handling(app: App, kind: type, answer: Any = None, **options: Any) -> App:
    """Return *app* with a handler of *kind*: *answer* is an error to raise, a function of the message, or what to
    return. *options* are those of `app.on`."""

    async def handle(message: Any) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        returned = answer(message) if inspect.isroutine(answer) else answer
        return await returned if inspect.isawaitable(returned) else returned

    returned_type = type(answer) if isinstance(answer, msgspec.Struct) else None
    handle.__annotations__ = {"message": kind, "return": returned_type}
    app.on(kind, **options)(handle)
    return app
