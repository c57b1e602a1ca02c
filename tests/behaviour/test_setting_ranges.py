"""At the ends of the ranges that settings allow everything works: nothing overflows, and nothing is rounded to
nothing."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from bus.settings.loading import _TYPES, load
from bus.settings.schema import Settings
from bus.transports.kafka import options_of
from bus.transports.kafka.options import KafkaOptions
from sealbus import App
from tests.kit import Answered, Asked


def at(end: str, **others: object) -> Settings:
    """With every duration as short, or as long, as it may be."""
    metas = {
        name: meta
        for name, kind in _TYPES.items()
        for meta in get_args(kind)
        if isinstance(meta, msgspec.Meta) and name.endswith("_s")
    }
    flags = {name: getattr(meta, end) for name, meta in metas.items()}
    assert len(flags) >= 16
    return load(
        flags=flags | {name.replace("__", "."): value for name, value in others.items()}, env={}, file=None
    ).settings


SHORTEST = at("ge", kafka__session_timeout_s=0.03, retry__tiers="1ms")
LONGEST = at("le", retry__tiers="5s,36500d")


@pytest.mark.parametrize("settings", [SHORTEST, LONGEST], ids=["the shortest", "the longest"])
async def test_an_app_works_with_whatever_durations_are_allowed(settings: Settings) -> None:
    app = App("ranges@tests")

    @app.on(Asked)
    async def answer(asked: Asked) -> Answered:
        return Answered(asked.text)

    async with app.test(settings=settings) as bus:
        await bus.publish(Asked("hello"), ttl_s=settings.publish.max_ttl_s)
        await bus.settle()
        assert bus.sent(Answered) == [Answered("hello")]
        await bus.advance(5)


@pytest.mark.parametrize("settings", [SHORTEST, LONGEST], ids=["the shortest", "the longest"])
def test_kafkas_protocol_has_room_for_whatever_durations_are_allowed(settings: Settings) -> None:
    arguments = KafkaOptions(bootstrap=("localhost:9092",), **options_of(settings)).member("group")
    assert all(0 < value < 2**31 for name, value in arguments.items() if name.endswith("_ms"))
