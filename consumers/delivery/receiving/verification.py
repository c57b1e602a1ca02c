"""RecordVerifier: from a fetched record to a delivery that carries its verdict.

Owns running the gates in order, the fast path for a record with the layout of an accepted one, holding a tier's records
until they are due, and skipping. Pure except for its clock. `consumers.delivery.receiving.receiver` and
`consumers.delivery.handling.executor` act on the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from bus import gates, native
from bus.clock import Clock
from bus.errors import ContractError
from bus.own_context import OwnContext
from bus.payloads.dual_write import which_version
from bus.payloads.payload_types import PayloadType, Registry, RiskClass, raised_risk
from bus.protocol.fast_parse import UNREAD, KnownLayouts, ShortReader, without_signature
from bus.protocol.reasons import gate_of
from bus.protocol.sealing import DATA_AT, Message
from bus.protocol.timestamps import parse_ms
from bus.telemetry.logs import get_logger
from bus.topics.names import read_topic
from bus.transports.base import HEADER_BYTES, Record, size_of
from bus.trust.admission import FAST_PATH, is_stricter
from bus.trust.effective_labels import says_nothing
from bus.trust.policy.policy import NO_POLICY
from consumers.deadletters.records import CONTROL_HEADERS, Control, read_control
from consumers.delivery.declaration import HandlerDeclaration
from consumers.delivery.group_plan import GroupView
from consumers.delivery.receiving.deprecation_watch import DeprecationWatch
from consumers.delivery.receiving.redrive_orders import granted_until_ms
from consumers.delivery.receiving.subscription_checks import check_message
from consumers.delivery.resilience.retry import Tier, choose_tier
from consumers.delivery.resilience.retry_clock import RetryClock
from consumers.delivery.state.delivery import Accepted, Delivery, Refused
from consumers.delivery.state.partition import Partition

__all__ = ["RecordVerifier", "location_of"]

TIMER_MESSAGE: Final = "wait.due"
MAILBOX: Final = "_mail"
_ANY_MAIL: Final = "*"
_TAKEN_MS: Final = 86_400_000
"""The life that is left of what came to a mailbox that takes all: its own may be over."""
_UNREAD: Final = frozenset({"size", "parse", "integrity", "recipient", "audience"})
_UNPROVEN: Final = _UNREAD | {"authenticity"}
"""The gates before anything is known of what a record says."""

_log = get_logger("worker")


class _Passed(msgspec.Struct, frozen=True):
    """What is decided once for all messages of one layout.

    Sender, recipient, type and route are the same in all of them.
    """

    kind: PayloadType
    subscription: HandlerDeclaration
    label: str
    left: tuple[gates.GateCheck, ...]
    """The checks that each of them must pass."""
    left_unread: tuple[gates.GateCheck, ...]
    """The same where the cast has not read the payload."""
    is_apart: bool
    """Whether these checks may run code of users, and so need a context of their own."""
    has_deprecated: bool


class _ReadApart:
    """Reads the payloads of *kind*, which may run code of users, in a context of their own."""

    short: ShortReader | None = None

    def __init__(self, kind: PayloadType, own: OwnContext) -> None:
        self._kind = kind
        self._own = own

    def read(self, data: bytes) -> object | None:
        found: object | None = self._own.call(self._kind.read, data)
        return found


class RecordVerifier:
    """Judges records for one group."""

    def __init__(
        self,
        view: GroupView,
        clock: Clock,
        retry_clock: RetryClock,
        tiers: Sequence[Tier],
        *,
        deprecations: DeprecationWatch | None = None,
        own: OwnContext | None = None,
        count_progress: Callable[[str], object] = str,
    ) -> None:
        self._count_progress = count_progress
        """Told what became of progress that is passed over."""
        self._own = own or OwnContext()
        self._tiers = tiers
        self._deprecations = deprecations
        self._view = view
        self._clock = clock
        self._retry_clock = retry_clock
        handled = (*view.subscriptions.values(), *view.mail.values())
        self._asks_little = view.admission.is_open and not any(is_stricter(one.instructions_from) for one in handled)
        """Whether a message without labels may instruct every handler."""
        self._kinds = {kind.name: kind for kind in view.registry}
        self._risks = {name: raised_risk(kind, view.high_risk) for name, kind in self._kinds.items()}
        has_checks = any(subscription.checks for subscription in handled)
        self._runs_code = has_checks or view.policy is not NO_POLICY or any(map(_runs_code, view.registry))
        """Whether judging a record may run code of users."""
        self._glanced = gates.Case(record=gates.NOWHERE, how=FAST_PATH)
        self._checks = gates.Checks(
            max_message_bytes=view.max_message_bytes,
            own_headers=CONTROL_HEADERS,
            prove=view.registry.prove,
            is_addressed=self._is_addressed,
            namespace=view.namespace,
            risk_of=self._risk_of,
            verifier=view.verifier,
            kind_of=self._kind_of,
            max_hops=view.max_hops,
            max_ttl_ms=view.max_ttl_ms,
            admit=self._admit,
            policy=None if view.policy is NO_POLICY else view.policy,
            group=view.group,
        )

        limits = gates.cast_limits(self._checks)
        self._layouts: KnownLayouts[_Passed] = KnownLayouts(limits)
        self._casts = self._layouts.are_of_use
        # Apart: an unsigned message must not pass by what a signed one was let in for.
        self._signed_layouts: KnownLayouts[_Passed] | None = None if view.verifier is None else KnownLayouts(limits)

    def judge(self, record: Record, partition: Partition, now_ms: int) -> Delivery | None:
        """Return the delivery of *record*, accepted or refused; None when it is addressed to another agent.

        Code of users runs in a context of its own: nothing of one record's is seen by the next one's.
        """
        delivery = self._judge_known_layout(record, partition, now_ms) if self._casts else None
        if delivery is not None:
            return delivery
        if self._runs_code:
            delivery = self._own.call(self._judge_fully, record, partition, now_ms)
        else:
            delivery = self._judge_fully(record, partition, now_ms)
        if self._deprecations is not None and isinstance(delivery, Accepted) and delivery.subscription.kind.deprecated:
            self._deprecations.look(delivery.subscription.kind, delivery.message)
        return delivery

    def _is_addressed(self, message: Message) -> bool:
        view = self._view
        if view.takes_all_mail:
            return True
        return message.metadata.recipient is None or gates.is_addressed(message, view.agent_id, view.roles)

    def _risk_of(self, message: Message) -> RiskClass:
        risk = self._risks.get(message.metadata.message_type)
        return raised_risk(None, ()) if risk is None else risk

    def _kind_of(self, message: Message) -> PayloadType | None:
        if self._view.takes_all_mail and message.metadata.message_type not in self._kinds:
            return None
        return self._kinds.get(message.metadata.message_type) or gates.known_type(message, self._view.registry)

    def _admit(self, message: Message, kind: PayloadType | None, payload: object, how: str) -> object:
        if self._asks_little and says_nothing(message):
            return None
        if message.message_type == TIMER_MESSAGE and how == "mailbox":
            # It says only that a row of this group's own store is to be looked at.
            return None
        known = self._view.mail if how == "mailbox" else self._view.subscriptions
        subscription = known.get(message.message_type)
        threshold = None if subscription is None else subscription.instructions_from
        may_hold = bool(self._view.mail) and subscription is not None and not subscription.takes_steps
        admission = self._view.admission
        if self._view.takes_all_mail and message.metadata.recipient is not None:
            # What comes here is its addressee's: that one's rights and clearance count.
            admission = admission.on_behalf_of(message.metadata.recipient.id or "")
        return admission.admit(message, kind, payload, how=how, instructions_from=threshold, may_hold=may_hold)

    def _judge_known_layout(self, record: Record, partition: Partition, now_ms: int) -> Delivery | None:
        """Return the delivery of a record with a known layout; None if every gate has to run."""
        value, layouts, signature = record.value, self._layouts, None
        if value is None or partition.own or len(value) > self._view.max_message_bytes:
            return None
        bare = value
        if self._signed_layouts is not None and (signed := without_signature(value)) is not None:
            # Parsed without its signature, and not proven yet.
            (bare, signature), layouts = signed, self._signed_layouts
        cast = layouts.judge(bare, record, partition.expected_type, now_ms)
        if cast is None:
            return None
        message, passed = cast.message, cast.known
        kind, payload = passed.kind, message.payload
        if signature is not None:
            verification = msgspec.structs.replace(message.verification, signature=signature)
            message = msgspec.structs.replace(message, value=value, verification=verification)
        left = passed.left_unread if payload is None else passed.left
        if left:
            if not self._passes(left, record, message, passed):
                return None
            payload = self._glanced.payload
        if passed.has_deprecated and self._deprecations is not None:
            self._deprecations.look(kind, message)
        subscription, priority, key = passed.subscription, message.routing.priority, record.key
        return Accepted(
            record=record,
            partition=partition,
            key=(kind.name, key) if subscription.order != "none" else (record.partition, record.offset, record.topic),
            size=_size_of(record, cast.header_bytes, kind, message),
            priority=5 if priority is None else priority,
            control=Control(record.topic, record.partition, record.offset),
            message=message,
            subscription=subscription,
            payload=payload,
            label=passed.label,
            sealed_ms=cast.sealed_ms,
            expires_ms=cast.expires_ms,
        )

    def _passes(self, left: tuple[gates.GateCheck, ...], record: Record, message: Message, passed: _Passed) -> bool:
        """Tell whether a record passes the checks *left* of its layout; its payload is then in the shared case."""
        # One for all: a new one for each record would cost as much as its gates.
        case = self._glanced
        case.record, case.message, case.kind = record, message, passed.kind
        case.payload, case.needs, case.append_ms = message.payload, None, record.timestamp_ms
        try:
            if passed.is_apart:
                return self._own.call(gates.passes_cast, case, self._checks, left)
            return gates.passes_cast(case, self._checks, left)
        except KeyboardInterrupt:
            raise
        # A policy and a type's own code, in `open`, may raise any error: the full walk names the gate.
        except BaseException:  # noqa: BLE001
            return False

    def _judge_fully(self, record: Record, partition: Partition, now_ms: int) -> Delivery | None:
        """Walk every gate for *record*."""
        view, is_own = self._view, partition.own
        control = read_control(record) if is_own else Control(record.topic, record.partition, record.offset)
        mail = _comes_by_mail(control)
        # In a tier, too: what answers a process is judged as such wherever it waits.
        way = "mailbox" if mail else _way(partition)
        case = gates.Case(
            record=record,
            is_own=is_own,
            # A mailbox carries any type.
            expected_type=msgspec.UNSET if mail else partition.expected_type or _origin_type(control),
            key=record.key,
            how=way,
        )
        verdict = gates.judge(case, self._checks, stage="before_inbox")
        parsed = case.message
        if parsed and parsed.metadata.other_version and self._is_left_to_other_version(parsed, verdict):
            return None
        is_heard = mail and parsed is not None and parsed.is_progress
        if is_heard and self._passes_over(parsed, verdict):
            return None
        if view.takes_all_mail and (found := self._taken_mail(case, partition, control, verdict, now_ms)) is not None:
            return found
        if not isinstance(verdict, gates.Passed):
            return self._not_passed(verdict, case, partition, control)
        message, kind, payload = verdict.message, verdict.kind, verdict.payload
        subscription = (view.mail if mail else view.subscriptions).get(message.message_type)
        if subscription is None or kind is None or payload is None:
            text = f"{message.message_type} {'does not answer a request from here' if mail else 'has no handler here'}"
            reason = "invalid_transition" if mail else "unknown_type"
            error = ContractError(text, "/metadata/message_type", reason)
            return _refused(case, partition, control, error, registry=view.registry)
        if subscription.requires or subscription.checks:
            try:
                check_message(subscription, payload, message)
            except ContractError as error:
                return _refused(case, partition, control, error.with_traceback(None), registry=view.registry)
        if control.extend_until_ms:
            until_ms = granted_until_ms(record, control, message, kind, view)
            control = msgspec.structs.replace(control, extend_until_ms=until_ms)
        case.now_ms = now_ms
        found = self._accepted(case, partition, control, subscription, kind)
        if is_heard and isinstance(found, Refused):
            self._refuse_progress(message, found.error)
            return None
        return found

    def _taken_mail(
        self, case: gates.Case, partition: Partition, control: Control, verdict: gates.GateVerdict, now_ms: int
    ) -> Delivery | None:
        """Return the delivery of what came to a mailbox that takes all; None where it proves nothing.

        A row says whose it is, and how long it waits for it, so its own lifetime does not matter. What its sender has
        sealed and a later gate refuses is shown to the row, with the refusal as its payload.
        """
        message = case.message
        if message is None or isinstance(verdict, gates.NotAddressed):
            return None
        if isinstance(verdict, gates.Failed) and gate_of(verdict.error.reason) in _UNPROVEN:
            return None
        subscription = self._view.mail.get(message.message_type)
        if isinstance(verdict, gates.Failed):
            subscription, case.payload = self._view.mail[_ANY_MAIL], verdict.error.with_traceback(None)
        elif subscription is None:
            # It has passed every gate but the schema's, and is shown as it is.
            subscription, case.payload = self._view.mail[_ANY_MAIL], message
        control = msgspec.structs.replace(control, extend_until_ms=now_ms + _TAKEN_MS)
        case.now_ms = now_ms
        found = self._accepted(case, partition, control, subscription, subscription.kind)
        if isinstance(found, Refused) and isinstance(found.otherwise, Accepted):
            found.otherwise.payload = found.error
            return found.otherwise
        return found

    def _not_passed(
        self, verdict: gates.Failed | gates.NotAddressed, case: gates.Case, partition: Partition, control: Control
    ) -> Refused | None:
        if isinstance(verdict, gates.NotAddressed):
            return None
        return _refused(case, partition, control, verdict.error, registry=self._view.registry)

    def _passes_over(self, message: Message, verdict: gates.GateVerdict) -> bool:
        """Return whether progress in the mailbox is passed over: no process has a method for it, or it is refused.

        It ends nothing and nobody waits for it, so it is worth no dead letter.
        """
        if isinstance(verdict, gates.Failed) and gate_of(verdict.error.reason) in _UNREAD:
            return False
        if message.message_type not in self._view.mail:
            self._count_progress("passed")
            return True
        if isinstance(verdict, gates.Failed):
            self._refuse_progress(message, verdict.error)
            return True
        return False

    def _refuse_progress(self, message: Message, error: ContractError) -> None:
        self._count_progress("refused")
        _log.warning("progress.refused", type=message.message_type, message_id=message.message_id, reason=error.reason)

    def _accepted(
        self,
        case: gates.Case,
        partition: Partition,
        control: Control,
        subscription: HandlerDeclaration,
        kind: PayloadType,
    ) -> Accepted | Refused:
        """Return the delivery of a record that has passed the gates before the inbox, or that a later one refuses."""
        record, message, is_own = case.record, case.message, partition.own
        priority = message.routing.priority
        case.times = sealed_ms, expires_ms = gates.times_of(message)
        header_bytes = native.header_bytes(record.headers) if is_own else case.header_size
        # All that comes by mail in one conversation lies in one lane.
        lane = MAILBOX if case.how == "mailbox" else kind.name
        accepted = Accepted(
            record=record,
            partition=partition,
            control=control,
            key=location_of(record) if subscription.order == "none" else (lane, record.key),
            size=_size_of(record, header_bytes, kind, message),
            priority=5 if priority is None else priority,
            message=message,
            subscription=subscription,
            payload=case.payload,
            label=kind.name,
            sealed_ms=sealed_ms,
            expires_ms=max(expires_ms, control.extend_until_ms),
        )
        # These gates come last: a message that the inbox knows as done is settled as done, although they refuse it.
        case.extend_until_ms = control.extend_until_ms
        case.append_ms = sealed_ms if is_own else record.timestamp_ms
        verdict = gates.judge(case, self._checks, stage="after_inbox")
        if isinstance(verdict, gates.Failed):
            registry = self._view.registry
            return _refused(case, partition, control, verdict.error, registry=registry, otherwise=accepted)
        accepted.needs = case.needs
        if partition.tier is not None or message.routing.not_before is not None:
            self._schedule(accepted, case.now_ms or 0)
        if message.verification.parents is None:
            self._remember(accepted, kind)
        return accepted

    def _is_left_to_other_version(self, message: Message, verdict: gates.GateVerdict) -> bool:
        """Return whether *message* is one of two versions, and this group handles the other one."""
        if (other := message.metadata.other_version) is None or isinstance(verdict, gates.NotAddressed):
            return False
        if isinstance(verdict, gates.Failed) and verdict.error.reason != "unsupported_version":
            return False
        kind, subscription = (
            self._view.registry.get(message.message_type),
            self._view.subscriptions.get(message.message_type),
        )
        remembers = self._view.has_inbox and subscription is not None and subscription.dedup != "off"
        return kind is not None and (
            which_version(
                reads_this=isinstance(verdict, gates.Passed),
                reads_other=kind.reads(other.schema_version),
                is_newer=other.content_hash is not None,
                has_inbox=remembers,
            )
            == "skip"
        )

    def read_again(self, delivery: Accepted) -> None:
        """Read the payload of *delivery*, which passed every gate, again: a run may have changed it."""
        delivery.message = msgspec.structs.replace(delivery.message, payload=None)
        try:
            delivery.payload = delivery.subscription.kind.open(delivery.message)
        except ContractError as error:
            error.__cause__ = error.__context__ = None
            delivery.unreadable = error.with_traceback(None)

    def label(self, partition: Partition) -> str:
        """Return the metric label for records of *partition*."""
        return self._view.registry.label(partition.expected_type or "")

    def check_lifetime(self, delivery: Accepted, now_ms: int) -> None:
        """Run the lifetime gate once more. Raises ContractError."""
        case = gates.Case(
            record=delivery.record,
            message=delivery.message,
            now_ms=now_ms,
            append_ms=self._append_ms(delivery),
            extend_until_ms=delivery.control.extend_until_ms,
        )
        verdict = gates.judge(case, self._checks, first="lifetime", until="policy")
        if isinstance(verdict, gates.Failed):
            raise verdict.error

    def remaining_s(self, delivery: Delivery) -> float:
        """Return the rest of the lifetime of *delivery* in seconds."""
        return (delivery.expires_ms - self._clock.now_ms()) / 1000

    def _append_ms(self, delivery: Accepted) -> int:
        # A worker appended a record of a retry or redrive topic: its clock says nothing about the sender's, which was
        # judged the first time.
        return delivery.sealed_ms if delivery.partition.own else delivery.record.timestamp_ms

    def _schedule(self, delivery: Accepted, now_ms: int) -> None:
        control, tier = delivery.control, delivery.partition.tier
        if tier is None:
            self._delay(delivery, now_ms)
            return
        if not control.not_before_ms:
            return
        due_ms = self._retry_clock.due_ms(control.not_before_ms, delivery.record.timestamp_ms, tier.delay_s)
        if due_ms > now_ms:
            # It has to wait longer than the largest tier: one more hop, no attempt used.
            delivery.requeue = tier
            delivery.control = msgspec.structs.replace(control, not_before_ms=due_ms)

    def _delay(self, delivery: Accepted, now_ms: int) -> None:
        """Send a message that its sender has delayed to a tier of the group."""
        not_before = delivery.message.routing.not_before
        if not_before is None or (not_before_ms := parse_ms(not_before) or 0) <= now_ms:
            return
        due_ms = self._retry_clock.due_ms(not_before_ms, delivery.record.timestamp_ms, 0.0)
        if due_ms > now_ms:
            delivery.requeue = choose_tier(self._tiers, (due_ms - now_ms) / 1000)
            delivery.control = msgspec.structs.replace(delivery.control, not_before_ms=due_ms)

    def _remember(self, delivery: Accepted, kind: PayloadType | None) -> None:
        """Have the next message with the layout of *delivery* verified the short way."""
        message = delivery.message
        is_signed, layouts = message.verification.signature is not None, self._layouts
        if is_signed and self._signed_layouts is not None:
            layouts = self._signed_layouts
        if not layouts.is_missing_one:
            return
        subscription = delivery.subscription
        if message.routing.not_before is not None or message.metadata.other_version is not None:
            return
        if subscription.checks or subscription.requires or subscription.is_mailbox:
            return
        if delivery.partition.own or kind is None or message.metadata.schema_version != kind.version:
            return
        is_free = self._asks_little and says_nothing(message)
        left, left_unread = (
            gates.left_of(gates.Layout(kind, is_signed, is_free, is_read), self._checks) for is_read in (True, False)
        )
        is_apart = kind.runs_code or self._checks.policy is not None
        known = _Passed(
            kind, subscription, delivery.label, left, left_unread, is_apart, has_deprecated=bool(kind.deprecated)
        )
        if not is_signed:
            layouts.learn(message, _ReadApart(kind, self._own) if kind.runs_code else kind, known)
        elif self._signed_layouts is not None:
            verification = msgspec.structs.replace(message.verification, signature=None)
            layouts.learn(msgspec.structs.replace(message, verification=verification), UNREAD, known)


def _way(partition: Partition) -> str:
    """Return on which way records of *partition* come."""
    return "topic" if not partition.own else "redrive" if partition.tier is None else "retry"


def _refused(
    case: gates.Case,
    partition: Partition,
    control: Control,
    error: ContractError,
    *,
    registry: Registry,
    otherwise: Accepted | None = None,
) -> Refused:
    """Return the delivery of a record that a gate refused with *error*."""
    record = case.record
    delivery = Refused(
        record=record,
        partition=partition,
        control=control,
        key=location_of(record),
        size=size_of(record),
        # Another worker of the group may know the type.
        requeue=partition.tier if error.reason == "unknown_type" else None,
        error=error,
        otherwise=otherwise,
    )
    # A message whose content differs from what was sealed belongs to no sender.
    if (message := case.message) is not None and gate_of(error.reason) != "integrity":
        delivery.message = message
        delivery.label = registry.label(message.message_type)
        delivery.sealed_ms = parse_ms(message.metadata.timestamp) or 0
        delivery.expires_ms = max(parse_ms(message.routing.expires_at) or 0, control.extend_until_ms)
    return delivery


def _comes_by_mail(control: Control) -> bool:
    name = read_topic(control.origin_topic)
    return name is not None and name.kind == "mail"


def location_of(record: Record) -> tuple[int, int, str]:
    """Return the key of a lane of its own: a record without order waits for no other."""
    return record.partition, record.offset, record.topic


def _size_of(record: Record, header_bytes: int, kind: PayloadType, message: Message) -> int:
    """Estimate the memory that *record* takes, and its decoded payload where that is worth counting, in bytes."""
    size = len(message.value) + len(record.key or b"") + header_bytes + HEADER_BYTES * len(record.headers)
    # Only data become a payload: a chain of proofs alone is longer than most payloads.
    end = message.data_end
    return size + kind.weight.of(message.value, DATA_AT, end) if end - DATA_AT > kind.small_bytes else size


def _runs_code(kind: PayloadType) -> bool:
    return kind.runs_code or bool(kind.upcasters) or kind.dual_write is not None


def _origin_type(control: Control) -> str | None:
    name = read_topic(control.origin_topic)
    return name.message_type if name is not None and name.kind == "message" else None
