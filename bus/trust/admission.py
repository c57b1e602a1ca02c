"""Admission: authorizes a verified message before it reaches a handler, a waiting request, a view or a store.

Owns gate `policy`: the key's types, authority and classification along the chain, the right of the sender to publish
and of the reader to handle, and the trust level that a directive needs. Each message is judged by the current policy.
Pure except for the policy's file, which is checked for changes once a second.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import copy
from typing import Final, Literal

import msgspec

from bus.errors import ContractError
from bus.payloads.directives import DirectiveFacts, declared_facts, is_directive
from bus.payloads.payload_types import PayloadType, raised_risk
from bus.protocol.envelope import Statement
from bus.protocol.sealing import Message
from bus.protocol.signatures import Verifier, signer_named
from bus.topics.names import group_of_agent, read_topic, reply_topic
from bus.trust.authority import Granted, exceeding_member, members_of, received_authority
from bus.trust.effective_labels import (
    PLAIN,
    EffectiveLabels,
    LabelRules,
    begins_plainly,
    effective_labels,
    says_nothing,
)
from bus.trust.keys.signature_algorithms import HS256
from bus.trust.labels import DEFAULT_CLASSIFICATION, INSTRUCTING, rank_of_classification, rank_of_level
from bus.trust.policy.decision import (
    Allow,
    Deny,
    NeedsApproval,
    PolicyDecision,
    decide_request,
    index_of,
    instruction_level,
)
from bus.trust.policy.facts import Request
from bus.trust.policy.policy import NO_POLICY, Policy, rules_source
from bus.trust.policy.rules import PolicyRules

__all__ = ["Admission", "Denial", "FAST_PATH", "Party", "is_stricter"]

FAST_PATH: Final = "glance"
"""The fast path: a message that it refuses is judged again by the full path, which records the refusal."""

_ANSWERING: Final = frozenset({"reply", "mailbox"})
"""The ways on which something that waits is answered."""
_OPEN: Final = LabelRules()
_NO_MATCH: Final = "no-match"
_INTERPRETER: Final = "interpreter"
_REPORT: Final = "error.reported"
_CANCEL: Final = "task.cancel"
_DECISION: Final = "approval.decision"
_PRESENCE: Final = frozenset({"agent.handshake", "agent.heartbeat", "agent.goodbye"})
"""Types with which an agent announces itself: readers accept them only from that agent."""
_DUE: Final = "schedule.due"
"""A group's message to its own agent: only a deny rule stops it."""
_NUDGE: Final = "wait.due"
"""A group's message to itself: it only asks to look at a row of the group's own store."""


class Denial(msgspec.Struct, frozen=True, kw_only=True):
    """One refusal, for the audit: the agent, the action, the rule, and the facts that differed. No payload."""

    rule: str
    action: str
    how: str
    """On which way the message came: topic, reply, mailbox, retry, redrive, hold or replay."""
    sender: str
    actor: str | None
    message_type: str
    message_id: str
    group: str | None
    reason: str
    differing: tuple[str, ...]
    policy: str | None
    """Hash of the policy file; None without one."""


class Party(msgspec.Struct, frozen=True, kw_only=True):
    """The reader: an agent with its group. *group* is `reply` for a reader of answers."""

    agent_id: str
    namespace: str
    group: str


class _Judged(msgspec.Struct, frozen=True):
    """One message under the policy of now."""

    message: Message
    kind: PayloadType | None
    payload: object
    labels: EffectiveLabels
    rules: PolicyRules
    how: str
    lenient: bool = False
    """Whether it needs no allow rule."""


class Admission:
    """Decides which messages one party may receive and send.

    *note* is called with each denial. *high_risk* are the types whose risk the settings raise.
    """

    def __init__(
        self,
        party: Party,
        *,
        verifier: Verifier | None = None,
        policy: Policy = NO_POLICY,
        now_ms: Callable[[], int],
        note: Callable[[Denial], None] = lambda _: None,
        high_risk: Collection[str] = (),
    ) -> None:
        self._party = party
        self._high_risk = high_risk
        self._verifier = verifier
        self._may_sign = getattr(verifier, "may_sign", None)
        # A policy of the program's own has no rules: the gate asks it besides.
        self._rules = rules_source(policy)
        self._is_stale: Callable[[], bool] = getattr(policy, "is_stale", lambda: False)
        self._now_ms = now_ms
        self._note = note
        self.is_open = verifier is None and self._rules() is None
        """Whether neither keys nor a policy are configured: labels are advice then."""

    def on_behalf_of(self, agent_id: str) -> Admission:
        """Return what judges for *agent_id* instead, in the same group: a door acts with its caller's authority."""
        made = copy(self)
        made._party = msgspec.structs.replace(self._party, agent_id=agent_id)  # noqa: SLF001 - its own
        return made

    @property
    def agent_id(self) -> str:
        """The agent of the party."""
        return self._party.agent_id

    @property
    def has_keys(self) -> bool:
        """Whether senders are verified."""
        return self._verifier is not None

    @property
    def has_rules(self) -> bool:
        """Whether a policy file is loaded."""
        return self._rules() is not None

    @property
    def counts_as_human(self) -> bool:
        """Whether every sender counts as human without a policy: the keys are made for a test."""
        return bool(getattr(self._verifier, "counts_as_human", False))

    @property
    def writes_labels(self) -> bool:
        """Whether every caused message carries its trust level, because a receiver may not see all of its ancestors."""
        return not self.is_open

    def labels(self, message: Message) -> EffectiveLabels:
        """Return the effective labels of *message*."""
        if self.is_open and says_nothing(message):
            return PLAIN
        return effective_labels(message, self._label_rules(self._rules()))

    def authority(self, message: Message) -> Granted:
        """Return what *message* allows its reader. Raises ContractError where it exceeds its cause."""
        stated: list[Granted | None] = [link.statement.authority for link in message.verification.proof_chain or ()]
        return received_authority([*stated, message.statement.authority])

    def admit(
        self,
        message: Message,
        kind: PayloadType | None,
        payload: object,
        *,
        how: str = "topic",
        instructions_from: str | None = None,
        may_hold: bool = False,
    ) -> NeedsApproval | None:
        """Authorize *message*, or raise ContractError (`unauthorized`, `untrusted_instruction`).

        *payload* is the upcast payload, *instructions_from* the threshold of the handler's declaration, if any. With
        *may_hold*, a message that needs an approval passes with its need, even below the threshold, and then waits for
        a decision.
        """
        # What says nothing has a user's level: only a stricter threshold has to be asked.
        plain = says_nothing(message)
        suffices = plain and not is_stricter(instructions_from)
        if suffices and self.is_open:
            return None
        rules = self._rules()
        self._check_signer(message, rules)
        if suffices and rules is None and begins_plainly(message):
            return None
        if not plain:
            self._check_chain(message, rules)
        labels = effective_labels(message, self._label_rules(rules))
        threshold = INSTRUCTING if instructions_from is None else instructions_from
        if rules is not None:
            if self._is_stale() and (kind is None or raised_risk(kind, self._high_risk) == "high"):
                raise _refused("the policy has been unreadable for too long: high risk is refused")
            own = message.message_type == _DUE and message.metadata.sender.id == self._party.agent_id
            judged = _Judged(message, kind, payload, labels, rules, how, lenient=own and message.metadata.hops == 0)
            reading = self._request("handle", self._party.agent_id, judged)
            needed = self._check_parties(judged, reading, may_hold=may_hold)
            if needed is not None:
                return needed
            if threshold == INSTRUCTING:
                # A stricter one of the handler stands, whatever a rule names.
                threshold = instruction_level(rules, reading)
        # Progress only informs, also of type `task.clarification`: whoever asked is shown it.
        is_shown = how in _ANSWERING and message.is_progress
        if (
            labels.is_below(threshold)
            and not is_shown
            and is_directive(
                self._directive_facts(message, kind, payload, how=how, has_threshold=instructions_from is not None)
            )
        ):
            self._deny(
                message,
                "instructions-from",
                action="handle",
                actor=self._party.agent_id,
                how=how,
                rules=rules,
                differing=("level",),
                reason="untrusted_instruction",
            )
            because = f": {labels.path[-1]}" if labels.path else ""
            raise ContractError(
                f"its level is {labels.level}, which is too low to give instructions here{because}",
                "/metadata/security/trust_level",
                "untrusted_instruction",
            )
        return None

    def check_outgoing(self, message: Message, kind: PayloadType, payload: object) -> None:
        """Raise ContractError (`unauthorized`) for a message of this party that receivers would refuse."""
        rules = self._rules()
        if rules is None or message.message_type == _NUDGE:
            return
        labels = effective_labels(message, self._label_rules(rules))
        judged = _Judged(message, kind, payload, labels, rules, "topic")
        if not says_nothing(message):
            self._check_chain(message, rules)
        self._check_reply_to(message, rules)
        _check_query(message)
        recipient = message.metadata.recipient
        if recipient is not None and recipient.id is not None:
            clearance = rules.agent(recipient.id).clearance
            if rank_of_classification(labels.classification) > rank_of_classification(clearance):
                raise _refused(
                    f"it is {labels.classification}, and {recipient.id} is cleared for {clearance} at most",
                    "/metadata/security/data_classification",
                )
        actor = self._party.agent_id if message.verification.signature else None
        if _is_from_bus(message, payload):
            # The bus asks and tells on the order of the rule that wants an approval, and says who is there: only a
            # deny rule stops it.
            judged = msgspec.structs.replace(judged, lenient=True)
        self._require(self._request("publish", actor, judged, is_signed=actor is not None), judged)

    def may_answer(self, sender: str, request: Message, kind: PayloadType | None) -> bool:
        """Return whether the verified *sender* may answer *request*, which named a role or no recipient (R1)."""
        rules = self._rules()
        if rules is None:
            return True
        recipient = request.metadata.recipient
        if recipient is not None and recipient.role is not None and recipient.role not in rules.agent(sender).roles:
            return False
        judged = _Judged(request, kind, None, effective_labels(request, self._label_rules(rules)), rules, "reply")
        return isinstance(decide_request(rules, self._request("handle", sender, judged)), Allow | NeedsApproval)

    def approval_fault(
        self,
        decider: str,
        pending: Message,
        kind: PayloadType,
        payload: object,
        *,
        by: str,
        involved: frozenset[str],
        same_owner: bool,
    ) -> str | None:
        """Return why *decider*, which is proven, may not decide about *pending*; None where it may.

        *involved* are the agents of the action's chain, and the one that would run it.
        """
        rules = self._rules()
        if rules is None:
            # Without a policy nobody is known to be human, but where keys are made for a test.
            return None if getattr(self._verifier, "counts_as_human", False) else "no policy defines the approvers"
        facts = rules.agent(decider)
        if by == "human" and facts.kind != "human":
            return f"{decider} is not a human according to the policy"
        owners = {rules.agent(each).owner for each in involved} - {None}
        if facts.owner in owners and not same_owner:
            return f"{decider} belongs to {facts.owner}, as an agent of the action does"
        judged = _Judged(pending, kind, payload, effective_labels(pending, self._label_rules(rules)), rules, "topic")
        decision = decide_request(rules, self._request("approve", decider, judged, is_signed=True))
        if not isinstance(decision, Allow):
            return f"{decider} may not approve {pending.message_type}: rule {decision.rule}"
        return None

    def decide_use(
        self, tool: str, message: Message, kind: PayloadType | None, payload: object, labels: EffectiveLabels
    ) -> PolicyDecision | None:
        """Decide whether this party may use *tool* while it handles *message*, in a run with *labels*.

        None where no rule of the policy has the action `use`: then every tool may be used.
        """
        rules = self._rules()
        if rules is None or not index_of(rules).asks_use:
            return None
        judged = _Judged(message, kind, payload, labels, rules, "topic")
        request = self._request("use", self._party.agent_id, judged)
        decision = decide_request(rules, msgspec.structs.replace(request, tool=tool))
        if isinstance(decision, Deny):
            differing, agent_id = decision.differing, self._party.agent_id
            self._deny(
                message, decision.rule, action="use", actor=agent_id, how="topic", rules=rules, differing=differing
            )
        return decision

    def owner_of(self, agent_id: str) -> str | None:
        """Return the owner of an agent by the policy; None if the policy names none."""
        rules = self._rules()
        return None if rules is None else rules.agent(agent_id).owner

    def check_detached(self, message_type: str) -> None:
        """Raise ContractError unless this party may publish from a run without naming the run's inputs as causes
        (S13)."""
        rules = self._rules()
        if rules is None:
            return
        request = Request(
            action="detach",
            actor=self._party.agent_id,
            message_type=message_type,
            major=1,
            namespace=self._party.namespace,
            group=None,
            side_effect=None,
            level=INSTRUCTING,
            classification=DEFAULT_CLASSIFICATION,
            tags=frozenset(),
            signed=True,
            algorithm="asymmetric",
            via=(),
            via_complete=True,
            first=True,
            performative=None,
            lift_to=None,
            now_ms=self._now_ms(),
        )
        if not isinstance(decision := decide_request(rules, request), Allow):
            raise _refused(f"{request.actor} may not detach {message_type} from its cause: rule {decision.rule}")

    def check_redrive(self, order: Message, message: Message, kind: PayloadType) -> None:
        """Raise ContractError (`unauthorized`) unless the verified sender of *order* may redrive *message*."""
        self._check_signer(order, rules := self._rules())
        if rules is not None:
            labels = effective_labels(message, self._label_rules(rules))
            judged = _Judged(message, kind, None, labels, rules, "redrive")
            self._require(self._request("redrive", order.metadata.sender.id, judged), judged)

    def admit_presence(self, message: Message, kind: PayloadType | None, payload: object) -> None:
        """Raise ContractError (`unauthorized`) unless the verified sender of *message* may announce its presence.

        Such a message must have no cause, and only a deny rule forbids it. The types of a key are not checked: they
        limit messages to other agents.
        """
        if message.message_type not in _PRESENCE or message.metadata.hops:
            raise _refused("an announcement of presence must not have a cause", "/metadata/hops")
        rules = self._rules()
        if rules is None:
            return
        self._check_chain(message, rules)
        labels = effective_labels(message, self._label_rules(rules))
        judged = _Judged(message, kind, payload, labels, rules, "topic", lenient=True)
        sender = message.metadata.sender.id if self._is_proven(message) else None
        self._require(self._request("publish", sender, judged), judged)

    # Its parts.

    def _check_signer(self, message: Message, rules: PolicyRules | None) -> None:
        text = message.verification.signature
        if self._may_sign is None or text is None:
            return
        named = signer_named(text)
        if named is None or not self._may_sign(named[1], message.message_type):
            raise _refused("its key may not sign messages of this type", "/verification/signature")
        if named[0] == HS256 and rules is not None and rules.agent(message.metadata.sender.id or "").interpreter:
            raise _refused("an interpreter signs with a key of its own", "/verification/signature")

    def _check_chain(self, message: Message, rules: PolicyRules | None) -> None:
        granted = self.authority(message)
        if rules is not None and granted:
            links = message.verification.proof_chain
            first = links[0].statement if links else message.statement
            found = exceeding_member(first.authority or {}, members_of(rules.agent(first.sender).authority))
            if found is not None:
                member, text = found
                raise _refused(f"{first.sender} may grant less: {member} {text}", f"/metadata/authority/{member}")
        _check_classification(message)

    def _check_parties(self, judged: _Judged, reading: Request, *, may_hold: bool) -> NeedsApproval | None:
        message, rules = judged.message, judged.rules
        sender = message.metadata.sender.id if self._is_proven(message) else None
        self._require(self._request("publish", sender, judged), judged)
        self._check_reply_to(message, rules)
        _check_query(message)
        links = message.verification.proof_chain or ()
        successors = [*(link.statement for link in links[1:]), message.statement]
        for link, successor in zip(links, successors, strict=False):
            self._check_step(link.statement, successor, judged)
        if sender is not None and rules.agent(sender).interpreter:
            self._check_interpreter(judged)
        if may_hold and isinstance(decision := decide_request(rules, reading), NeedsApproval):
            return decision
        self._require(reading, judged)
        return None

    def _check_reply_to(self, message: Message, rules: PolicyRules) -> None:
        """Check that the reply address is the sender itself (security S36), or the mailbox of a group assigned to
        it."""
        reply_to, sender = message.routing.reply_to, message.metadata.sender.id or ""
        if reply_to is None or reply_to == reply_topic(message.metadata.namespace, sender):
            return
        name = read_topic(reply_to)
        if (
            name is None
            or name.kind != "mail"
            or name.group not in {group_of_agent(sender), *rules.agent(sender).groups}
        ):
            raise _refused(f"{sender} asks for answers at {reply_to}, which is not its own", "/routing/reply_to")

    def _check_step(self, link: Statement, successor: Statement, judged: _Judged) -> None:
        """Check the sender that continues after a link to a role or without recipient (security S2)."""
        if successor.sender == link.sender or (link.recipient is not None and link.recipient.id is not None):
            return
        if (link.message_type, successor.message_type) == ("approval.request", _DECISION):
            # Who may decide is asked where the decision is counted.
            return
        rules, location = judged.rules, "/verification/proof_chain"
        goes_on = f"{successor.sender} goes on after {link.message_type}"
        if link.recipient is not None and link.recipient.role not in rules.agent(successor.sender).roles:
            role = link.recipient.role
            raise _refused(
                f"{goes_on}, which was for the role {role}, and the policy does not give it that role", location
            )
        request = self._request_of_link("handle", successor.sender, link, judged.labels)
        if not isinstance(decide_request(rules, request), Allow | NeedsApproval):
            raise _refused(f"{goes_on}, which the policy does not let it handle", location)

    def _check_interpreter(self, judged: _Judged) -> None:
        """Check that every sender in the chain may publish what an interpreter publishes for them (security S22)."""
        links = judged.message.verification.proof_chain
        if not links:
            if judged.kind is None or judged.kind.risk != "low":
                raise _refused("an interpreter acts for other agents, so its message needs a chain")
            return
        for sender in dict.fromkeys(link.statement.sender for link in links):
            if not isinstance(decide_request(judged.rules, self._request("publish", sender, judged)), Allow):
                raise _refused(f"an interpreter sends it on behalf of {sender}, who may not publish it")

    def _directive_facts(
        self, message: Message, kind: PayloadType | None, payload: object, *, how: str, has_threshold: bool
    ) -> DirectiveFacts:
        declared = (
            DirectiveFacts(has_threshold=has_threshold)
            if kind is None
            else declared_facts(
                kind.terms,
                payload,
                side_effect=kind.side_effect,
                risk=raised_risk(kind, self._high_risk),
                has_threshold=has_threshold,
            )
        )
        return msgspec.structs.replace(
            declared,
            message_says=message.metadata.performative,
            has_reply_to=message.routing.reply_to is not None,
            is_answer=how in _ANSWERING,
        )

    def _require(self, request: Request, judged: _Judged) -> None:
        decision: PolicyDecision = decide_request(judged.rules, request)
        if isinstance(decision, Allow):
            return
        if (
            isinstance(decision, Deny)
            and (decision.rule == _NO_MATCH or (judged.lenient and decision.rule == _INTERPRETER))
            and (judged.lenient or _is_report(judged.message) or _is_decision(judged.message))
        ):
            # Whoever may handle a request may say that it died: nobody waits in silence. A deny rule still counts.
            return
        action, actor = request.action, request.actor
        differing = () if isinstance(decision, NeedsApproval) else decision.differing
        self._deny(
            judged.message,
            decision.rule,
            action=action,
            actor=actor,
            how=judged.how,
            rules=judged.rules,
            differing=differing,
        )
        who = actor or "an unverified sender"
        if isinstance(decision, NeedsApproval):
            text = f"{who} may {action} {request.message_type} only with an approval by {decision.by}"
        else:
            why = f" ({', '.join(differing)})" if differing else ""
            text = f"{who} may not {action} {request.message_type}{why}"
        raise _refused(f"{text}: rule {decision.rule}")

    def _deny(
        self,
        message: Message,
        rule: str,
        *,
        action: str,
        actor: str | None,
        how: str,
        rules: PolicyRules | None,
        differing: tuple[str, ...] = (),
        reason: str = "unauthorized",
    ) -> None:
        if how == FAST_PATH:
            return
        self._note(
            Denial(
                rule=rule,
                action=action,
                how=how,
                sender=message.metadata.sender.id or "",
                actor=actor,
                message_type=message.message_type,
                message_id=message.message_id,
                group=self._party.group,
                reason=reason,
                differing=differing,
                policy=None if rules is None else rules.sha256,
            )
        )

    def _is_proven(self, message: Message) -> bool:
        """Return whether the sender is verified: its signature passed gate `authenticity`."""
        return self._verifier is not None and message.verification.signature is not None

    def _label_rules(self, rules: PolicyRules | None) -> LabelRules:
        if rules is None:
            return _OPEN if self._verifier is None else LabelRules(has_keys=True)
        return LabelRules(
            has_keys=self._verifier is not None,
            ceiling_of=lambda sender: rules.agent(sender).trust_ceiling,
            floor_of=lambda sender: rules.agent(sender).classification_floor,
            may_lift=lambda stated, before, to: self._may_lift(rules, stated, before, to),
        )

    def _may_lift(self, rules: PolicyRules, stated: Statement, before: str, to: str) -> bool:
        labels = EffectiveLabels(level=before)
        request = msgspec.structs.replace(self._request_of_link("lift", stated.sender, stated, labels), lift_to=to)
        return isinstance(decide_request(rules, request), Allow)

    def _request(self, action: str, actor: str | None, judged: _Judged, *, is_signed: bool | None = None) -> Request:
        """Return the policy request about a message; *is_signed* None: take the result of its verification."""
        message, kind, payload, labels = judged.message, judged.kind, judged.payload, judged.labels
        metadata, links = message.metadata, message.verification.proof_chain or ()
        via = dict.fromkeys(link.statement.sender for link in links)
        if action != "publish":
            via[metadata.sender.id or ""] = None
        signed = self._is_proven(message) if is_signed is None else is_signed
        oldest = links[0].statement if links else message.statement
        return Request(
            action=action,
            actor=actor,
            message_type=message.message_type,
            major=int(metadata.schema_version.partition(".")[0]),
            namespace=metadata.namespace,
            group=None if action == "publish" else self._party.group,
            resource=_resource(kind, payload),
            side_effect=None if kind is None else kind.side_effect,
            level=labels.level,
            classification=labels.classification,
            tags=labels.tags,
            signed=signed,
            algorithm=_algorithm(message.verification.signature) if signed else None,
            via=tuple(via),
            via_complete=oldest.parents is None,
            first=metadata.hops == 0,
            performative=metadata.performative or _performative_of(kind, payload),
            lift_to=None,
            now_ms=self._now_ms(),
            risk=None if kind is None else kind.risk,
        )

    def _request_of_link(self, action: str, actor: str, link: Statement, labels: EffectiveLabels) -> Request:
        """Return the request about a link, of which only the statement is at hand."""
        return Request(
            action=action,
            actor=actor,
            message_type=link.message_type,
            major=1,
            namespace=link.namespace,
            group=None,
            side_effect=None,
            level=labels.level,
            classification=labels.classification,
            tags=labels.tags,
            signed=self._verifier is not None,
            algorithm="asymmetric" if self._verifier is not None else None,
            via=(link.sender,),
            via_complete=link.parents is None,
            first=link.hops == 0,
            performative=None,
            lift_to=None,
            now_ms=self._now_ms(),
        )


def is_stricter(instructions_from: str | None) -> bool:
    """Tell whether a handler's threshold asks for more than the level that a user's first message has."""
    return instructions_from is not None and rank_of_level(instructions_from) < rank_of_level(INSTRUCTING)


def _is_decision(message: Message) -> bool:
    """Return whether *message* decides about an approval: the action `approve` is checked where decisions are
    counted."""
    return message.message_type == _DECISION and message.metadata.correlation_id is not None


def _is_from_bus(message: Message, payload: object) -> bool:
    """Return whether the bus itself sends *message*: about a message that waits for approval, or an agent's
    presence."""
    if message.message_type == "status.update":
        return getattr(payload, "approval_id", None) is not None
    if message.message_type in _PRESENCE or message.message_type == _DUE:
        return message.metadata.hops == 0
    if message.message_type == _CANCEL:
        # It takes back what its sender has asked, and nobody else's: whoever works on it looks at who says so.
        return message.metadata.hops == 0
    return message.message_type in ("approval.request", "approval.closed") and message.metadata.hops > 0


def _is_report(message: Message) -> bool:
    """Return whether *message* reports to an agent that its own message was dead-lettered."""
    metadata = message.metadata
    return metadata.message_type == _REPORT and metadata.correlation_id is not None and metadata.recipient is not None


def _check_classification(message: Message) -> None:
    """Security S3: along a chain the classification only rises."""
    highest, above = 0, ""
    for link in (*(link.statement for link in message.verification.proof_chain or ()), message.statement):
        if link.data_classification is None:
            continue
        rank = rank_of_classification(link.data_classification)
        if rank < highest:
            raise _refused(
                f"{link.message_type} {link.message_id} is {link.data_classification}, and rests on what is {above}",
                "/metadata/security/data_classification",
            )
        highest, above = rank, link.data_classification


def _check_query(message: Message) -> None:
    authority = message.metadata.authority
    acts = authority is not None and bool(authority.can_write or authority.can_execute)
    if acts and message.metadata.performative == "query":
        raise _refused("a query reads, and this one's authority does more", "/metadata/authority")


def _resource(kind: PayloadType | None, payload: object) -> str:
    return "" if kind is None or payload is None else kind.resource_of(payload)


def _performative_of(kind: PayloadType | None, payload: object) -> str | None:
    return None if kind is None or payload is None else kind.terms.spoken(payload)


def _algorithm(signature: str | None) -> Literal["asymmetric", "shared"] | None:
    named = None if signature is None else signer_named(signature)
    return None if named is None else "shared" if named[0] == HS256 else "asymmetric"


def _refused(text: str, pointer: str = "/metadata/sender") -> ContractError:
    return ContractError(text, pointer, "unauthorized")
