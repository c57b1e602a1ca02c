"""What the steps of a run that waits have returned so far: model calls, pages, answers of tools. From the inbox."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from bus.protocol.sealing import Message
from bus.redaction import cut, masked
from bus.telemetry.terminal import printable
from consumers.delivery.inbox.base import Inbox, InboxKey, principal_of
from consumers.delivery.inbox.remembered_steps import kept_results

__all__ = ["StepResult", "step_results"]

_MAX_TEXT: Final = 300
_MAX_GROUPS: Final = 64


class StepResult(msgspec.Struct, frozen=True):
    """What one step has returned. Its text is untrusted."""

    step: str
    level: str
    """How far its run was trusted then."""
    text: str
    """The beginning of the result as JSON, without secrets; or why it was not kept."""


async def step_results(inbox: Inbox, message: Message, namespace: str, groups: Iterable[str]) -> list[StepResult]:
    """Return what the steps for *message* have returned in one of *groups*. Raises InboxError."""
    keys = dict.fromkeys(
        InboxKey(namespace, principal_of(message, has_keys=has_keys), message.message_type, group, key)
        for group in list(groups)[:_MAX_GROUPS]
        for key in (message.routing.idempotency_key, message.message_id)
        if key is not None
        for has_keys in (True, False)
    )
    for key in keys:
        if rows := await inbox.remembered(key):
            return [
                StepResult(
                    cut(printable(each.step), _MAX_TEXT),
                    each.level,
                    each.unkept or cut(printable(msgspec.json.encode(masked(each.value)).decode()), _MAX_TEXT),
                )
                for each in kept_results(rows)
            ]
    return []
