"""The subscriptions of an app's sagas: the types that reach them by topic, and what may come to the mailbox."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NoReturn

import msgspec

from bus.errors import ConfigurationError
from bus.payloads.payload_types import PayloadType, payload, payload_type
from bus.trust.labels import LEAST_TRUSTED
from consumers.delivery.declaration import HandlerDeclaration
from consumers.processes.sagas.rules import SagaRules

__all__ = ["ANY_MAIL", "cancel_subscription", "every_mail", "mail_subscriptions", "step_subscriptions"]

ANY_MAIL: Final = "*"
"""The subscription for types that are not known here, of a mailbox that takes all."""
_NONE: Final[Mapping[str, HandlerDeclaration]] = MappingProxyType({})


def step_subscriptions(sagas: Sequence[SagaRules]) -> Mapping[str, HandlerDeclaration]:
    """Return, by message type, the subscriptions of what opens processes or reaches them by its own topic."""
    found: dict[str, HandlerDeclaration] = {}
    for rules in sagas:
        for rule in (*rules.starters.values(), *rules.events.values()):
            known = found.setdefault(rule.kind.name, _subscription(rule.kind))
            if known.kind.cls is not rule.kind.cls:
                raise ConfigurationError(
                    f"{rule.kind.name} is {known.kind.cls.__qualname__} for one saga and {rule.kind.cls.__qualname__} "
                    "for another"
                )
    return MappingProxyType(found)


def cancel_subscription() -> Mapping[str, HandlerDeclaration]:
    """Return the subscription by which processes hear that their task is cancelled."""
    from bus.vocabulary.task import TaskCancel

    kind = payload_type(TaskCancel)
    return MappingProxyType({kind.name: _subscription(kind)})


def mail_subscriptions(
    sagas: Sequence[SagaRules], *, holds: bool = False, asks: bool = False
) -> Mapping[str, HandlerDeclaration]:
    """Return the mailbox's subscriptions by message type: answers, error reports, and due waits.

    *holds*: also decisions about messages that wait for an approval. *asks*: also answers to what a run has asked its
    requester.
    """
    if not sagas and not holds:
        return _NONE
    from bus.vocabulary.approval import ApprovalDecision
    from bus.vocabulary.bus import WaitDue
    from bus.vocabulary.error import ErrorReported
    from bus.vocabulary.task import TaskClarification, TaskClarified

    kinds = [rule.kind for rules in sagas for rule in rules.answers.values()]
    kinds += [payload_type(WaitDue), payload_type(ErrorReported)]
    if any(not rule.ends for rules in sagas for rule in rules.answers.values()):
        # Who takes progress can be asked back, and an ask whose question nobody answers ends.
        kinds.append(payload_type(TaskClarification))
    if asks:
        kinds.append(payload_type(TaskClarified))
    found = {kind.name: _subscription(kind, is_mailbox=True) for kind in kinds}
    if holds:
        # A decision rests on what is held, whatever its level: it lets one action run, and instructs nobody.
        kind = payload_type(ApprovalDecision)
        decision = msgspec.structs.replace(_subscription(kind, is_mailbox=True), instructions_from=LEAST_TRUSTED)
        found[kind.name] = decision
    return MappingProxyType(found)


def every_mail(types: Iterable[PayloadType]) -> Mapping[str, HandlerDeclaration]:
    """Return the subscriptions of a mailbox that takes messages of all *types*, and of unknown ones as `ANY_MAIL`.

    Only what they are about matters. They instruct nobody here, so their level does not matter.
    """
    found = {
        kind.name: msgspec.structs.replace(_subscription(kind, is_mailbox=True), instructions_from=LEAST_TRUSTED)
        for kind in (*types, payload_type(_Anything))
    }
    found[ANY_MAIL] = found.pop(payload_type(_Anything).name)
    return MappingProxyType(found)


@payload("mail.unknown", side_effect="none")
class _Anything(msgspec.Struct, frozen=True):
    """Stands for messages of types that are not known here. None is ever sent."""


def _subscription(kind: PayloadType, *, is_mailbox: bool = False) -> HandlerDeclaration:
    return HandlerDeclaration(
        kind=kind,
        handler=_no_handler,
        takes_context=False,
        retry=None,
        timeout_s=msgspec.UNSET,
        order="key",
        takes_steps=True,
        is_mailbox=is_mailbox,
    )


async def _no_handler(payload: Any) -> NoReturn:
    raise AssertionError(f"{type(payload).__name__} goes to a saga")
