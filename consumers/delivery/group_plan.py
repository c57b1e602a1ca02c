"""GroupPlan: the declarations of an App combined with the settings, as values for the worker's parts.

Owns composing them. `consumers.worker.worker` and `consumers.worker.wiring` read further settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import msgspec

from bus.clock import Clock, SystemClock
from bus.payloads.payload_types import Registry
from bus.protocol.signatures import Verifier
from bus.settings import durations
from bus.settings.schema import Settings
from bus.topics.names import mailbox_topic, message_topic, read_topic, redrive_topic, retry_topic
from bus.trust.admission import Admission, Denial, Party
from bus.trust.labels import GRAVE
from bus.trust.policy.policy import Policy
from consumers.delivery.declaration import Declaration, HandlerDeclaration
from consumers.delivery.inbox.open import has_inbox
from consumers.delivery.resilience.retry import Retry, Tier
from consumers.delivery.state.delivery import Accepted, Delivery

__all__ = ["GroupPlan", "GroupView", "leftover_tiers", "make_plan"]


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """The values with which one group judges records."""

    namespace: str
    group: str
    agent_id: str
    roles: frozenset[str]
    registry: Registry
    subscriptions: Mapping[str, HandlerDeclaration]
    policy: Policy
    verifier: Verifier | None
    admission: Admission
    max_message_bytes: int
    max_hops: int
    max_ttl_ms: int
    has_inbox: bool = False
    high_risk: tuple[str, ...] = ()
    """Types whose risk the settings raise to high."""
    mail: Mapping[str, HandlerDeclaration] = MappingProxyType({})
    """By message type, the subscriptions of the group's mailbox."""
    takes_all_mail: bool = False
    """Whether its mailbox takes messages to whomever: a row says whose each is."""
    inbox_keep_ms: int = 0
    """How much longer than its life a message is remembered."""


class GroupPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults of a group, and the topics it reads."""

    namespace: str
    group: str
    agent_id: str
    retry: Retry
    timeout_s: float
    tiers: tuple[Tier, ...]
    topics: tuple[str, ...]
    view: GroupView
    app_version: str = "1.0.0"

    def subscription_of(self, delivery: Delivery) -> HandlerDeclaration | None:
        """Return the subscription for *delivery*, even if a gate refused it; None if there is none."""
        if isinstance(delivery, Accepted):
            return delivery.subscription
        origin = read_topic(delivery.control.origin_topic)
        known = self.view.mail if origin is not None and origin.kind == "mail" else self.view.subscriptions
        return None if delivery.message is None else known.get(delivery.message.message_type)

    def timeout_of(self, subscription: HandlerDeclaration) -> float:
        """Return the seconds that a run of *subscription* may take; inf: as long as its message lives."""
        timeout_s = subscription.timeout_s
        return self.timeout_s if timeout_s is msgspec.UNSET else math.inf if timeout_s is None else timeout_s


def make_plan(
    app: Declaration,
    settings: Settings,
    *,
    clock: Clock | None = None,
    note: Callable[[Denial], None] = lambda _: None,
) -> GroupPlan:
    """Return the plan of *app* under *settings*."""
    namespace = settings.bus.namespace
    tiers = tuple(Tier(name, durations.seconds(name)) for name in settings.retry.tiers)
    return GroupPlan(
        namespace=namespace,
        group=app.group,
        agent_id=app.agent_id,
        retry=Retry(
            attempts=settings.retry.attempts,
            backoff=settings.retry.backoff,
            base_s=settings.retry.base_s,
            cap_s=settings.retry.cap_s,
        ),
        timeout_s=settings.worker.timeout_s,
        tiers=tiers,
        topics=(
            *(message_topic(namespace, name) for name in app.subscriptions),
            *(retry_topic(namespace, app.group, tier.name) for tier in tiers),
            redrive_topic(namespace, app.group),
            *([mailbox_topic(namespace, app.group)] if app.has_mailbox else []),
        ),
        app_version=app.version,
        view=_make_view(app, settings, clock or SystemClock(), note),
    )


def leftover_tiers(topics: Iterable[str], plan: GroupPlan) -> dict[str, Tier]:
    """Return, by topic, tiers of this group that exist in the log and not in the settings.

    They are still read: messages in them must not wait for ever.
    """
    known = {tier.name for tier in plan.tiers}
    found = {}
    for topic in topics:
        name = read_topic(topic)
        if (
            name is None
            or (name.kind, name.namespace, name.group) != ("retry", plan.namespace, plan.group)
            or name.delay in known
        ):
            continue
        try:
            found[topic] = Tier(name.delay, durations.seconds(name.delay))
        except ValueError:
            continue
    return found


def _make_view(app: Declaration, settings: Settings, clock: Clock, note: Callable[[Denial], None]) -> GroupView:
    party = Party(agent_id=app.agent_id, namespace=settings.bus.namespace, group=app.group)
    high_risk = (*settings.trust.high_risk, *(GRAVE if app.verifier is not None else ()))
    return GroupView(
        namespace=settings.bus.namespace,
        group=app.group,
        agent_id=app.agent_id,
        roles=app.roles,
        registry=app.registry,
        subscriptions=app.subscriptions,
        policy=app.policy,
        verifier=app.verifier,
        admission=Admission(
            party, verifier=app.verifier, policy=app.policy, now_ms=clock.now_ms, note=note, high_risk=high_risk
        ),
        max_message_bytes=settings.publish.max_message_bytes,
        max_hops=settings.worker.max_hops,
        max_ttl_ms=round(settings.publish.max_ttl_s * 1000),
        has_inbox=has_inbox(app, settings),
        mail=app.mail,
        takes_all_mail=app.tasks is not None,
        high_risk=high_risk,
        inbox_keep_ms=round(settings.inbox.keep_s * 1000),
    )
