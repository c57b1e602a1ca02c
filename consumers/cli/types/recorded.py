"""Check the recorded messages of a log against the types as they are now, one page at a time.

Owns the walk, its progress and its table. `PayloadType.open` decides whether a type accepts a message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import click
import msgspec

from bus.errors import ContractError
from bus.payloads.payload_types import PayloadType
from bus.protocol.sealing import Message
from bus.telemetry.terminal import printable
from bus.topics.names import message_topic
from consumers.cli.interrupts import execute
from consumers.cli.io.printing import print_json, print_table
from consumers.cli.io.recorded import recorded_messages
from consumers.cli.session import CommandSession
from consumers.delivery.declaration import HandlerDeclaration
from consumers.delivery.receiving.subscription_checks import check_message

__all__ = ["check_recorded"]

_MAX_ROWS: Final = 50


class _Refusal(msgspec.Struct, frozen=True):
    """Messages that are refused alike."""

    type: str
    version: str
    reason: str
    pointer: str


def check_recorded(
    session: CommandSession, url: str, kinds: Sequence[PayloadType], subscriptions: Mapping[str, HandlerDeclaration]
) -> bool:
    """Check every message of *kinds* in the log at *url*, also against what *subscriptions* require.

    Returns whether one is refused.
    """
    settings = session.settings(bus=url)
    refusals: Counter[_Refusal] = Counter()
    firsts: dict[_Refusal, str] = {}
    total = 0

    async def body(_: object) -> int:
        nonlocal total
        topics = {message_topic(settings.bus.namespace, kind.name): kind for kind in kinds}
        async with session.open(settings) as transport:
            async for topic, message, location in recorded_messages(transport, topics):
                total += 1
                kind = topics[topic]
                refusal = _refusal(kind, message, subscriptions.get(kind.name))
                if refusal is not None:
                    refusals[refusal] += 1
                    firsts.setdefault(refusal, location)
        return 0

    execute(body)
    _show(session, refusals, firsts, total)
    return bool(refusals)


def _refusal(kind: PayloadType, message: Message, subscription: HandlerDeclaration | None) -> _Refusal | None:
    try:
        payload = kind.open(message)
        if subscription is not None:
            check_message(subscription, payload, message)
    except ContractError as error:
        return _Refusal(kind.name, message.metadata.schema_version, error.reason, error.pointer)
    return None


def _show(session: CommandSession, refusals: Counter[_Refusal], firsts: dict[_Refusal, str], total: int) -> None:
    if session.as_json:
        for refusal, count in refusals.most_common():
            print_json({**msgspec.structs.asdict(refusal), "messages": count, "first": firsts[refusal]})
    elif refusals:
        print_table(
            ("TYPE", "VERSION", "REFUSED FOR", "FIELD", "MESSAGES", "FIRST AT"),
            [
                (refusal.type, refusal.version, refusal.reason, printable(refusal.pointer), str(count), firsts[refusal])
                for refusal, count in refusals.most_common(_MAX_ROWS)
            ],
        )
    click.echo(f"{total} recorded messages, {sum(refusals.values())} would be refused", err=True)
