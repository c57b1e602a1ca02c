"""The causes of one message, verified from the first one on: which cause is invalid, and its sender. Pure.

Owns the walk along the causes (hops) and the verdict on each. A hop is compared with its *witnesses*: the later
messages on the line of causes, whose chains contain its statement and whose first parent is its seal. If a stored hop
is valid but no witness knows it, it was replaced. If witnesses agree on a hop that is not stored, it is missing.
Without keys only hashes are compared. A message without effects has no witness, so only the message itself is checked
(PROTOCOL.md: sealed is not signed).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from bus import gates
from bus.errors import ContractError
from bus.payloads.payload_types import RiskClass
from bus.protocol import canonical
from bus.protocol.envelope import Statement
from bus.protocol.envelope_rules import MAX_LINKS
from bus.protocol.proof_chain import encode_statement, find_fault
from bus.protocol.sealing import Message
from bus.protocol.signatures import Verifier, parse_signature
from bus.topics.names import read_topic
from consumers.operations.lineage.log_search import ORIGINALS, KeptTimes, Lineage, StoredCopy

__all__ = ["Ancestry", "Hop", "HopState", "judge_ancestry", "judge_copy"]

HopState: TypeAlias = Literal["valid", "not kept", "invalid"]
_HOPS_LIMIT: Final = 10_000


class Hop(msgspec.Struct, frozen=True, kw_only=True, rename={"place": "location"}):
    """One message of the line of causes. *number* is 0 for the first one, as `hops` counts; None if unknown."""

    number: int | None
    message_id: str
    state: HopState
    kind: str = ""
    """The kind of fault: a reason of PROTOCOL.md section 7, or `replaced`, `missing`, `parent_mismatch`,
    `copies_differ`; empty where there is none.
    """
    detail: str = ""
    message_type: str = ""
    sender: str = ""
    timestamp: str = ""
    kid: str = ""
    """The key id in its signature; empty without a signature."""
    is_verified: bool = False
    """Whether keys were given and its signature is valid."""
    place: str = ""
    """TOPIC/PARTITION/OFFSET; empty without a record."""
    differs: tuple[str, ...] = ()
    """Members of the statement in which the stored message differs from the statement in its successors."""
    notes: tuple[str, ...] = ()


class Ancestry(msgspec.Struct, frozen=True, kw_only=True):
    """The hops from the first known one to the message that was asked about."""

    hops: tuple[Hop, ...]
    unknown: int | None = 0
    """The number of unknown hops before the first known one; None if unknown."""

    @property
    def blamed(self) -> Hop | None:
        """The first hop that does not hold."""
        return next((hop for hop in self.hops if hop.state == "invalid"), None)


class _Evidence(msgspec.Struct, frozen=True):
    """The statement of one witness about a message: its seal and, from a link of the chain, its statement and
    signature."""

    seal: str
    hops: int
    statement: Statement | None = None
    signature: str | None = None


_NOTHING: Final = _Evidence("", 0)


class _Examined:
    """One record, judged when it is asked for."""

    def __init__(self, copy: StoredCopy, judge: Callable[[StoredCopy], ContractError | None]) -> None:
        self.copy = copy
        self._judge = judge

    @functools.cached_property
    def fault(self) -> ContractError | None:
        """The fault of the message itself, independent of the rest of the log."""
        return self._judge(self.copy)

    @property
    def is_sound(self) -> bool:
        return self.fault is None

    @functools.cached_property
    def past(self) -> list[tuple[str, _Evidence]]:
        """Its statements about its causes, nearest first: id ("" if unknown) and evidence."""
        message = self.copy.message
        if message is None:
            return []
        stated = []
        chain = message.verification.proof_chain or ()
        for link in reversed(chain):
            seal = canonical.digest(encode_statement(link.statement))
            evidence = _Evidence(seal, link.statement.hops, link.statement, link.signature)
            stated.append((link.statement.message_id, evidence))
        oldest = chain[0].statement.parents if chain else message.verification.parents
        if oldest:
            name = "" if chain else message.metadata.causation_id or ""
            hops = chain[0].statement.hops if chain else message.metadata.hops
            stated.append((name, _Evidence(oldest[0], hops - 1)))
        return stated


class _Node(msgspec.Struct, kw_only=True, eq=False):
    """One step of the walk, from the message that was asked about upwards."""

    message_id: str
    originals: list[_Examined]
    copies: list[_Examined]
    evidence: list[_Evidence]

    @property
    def stored(self) -> _Examined | None:
        """The record to judge: the one its witnesses confirm, if stored, else the first valid one."""
        seals = {one.seal for one in self.evidence}
        ranked = sorted(self.originals, key=lambda one: (one.copy.seal not in seals, not one.is_sound))
        return ranked[0] if ranked else None

    @property
    def trusted(self) -> _Examined | None:
        """The stored record, or without one a valid copy; None if it is invalid, or if more witnesses contradict it."""
        stored = self.stored or next((one for one in self.copies if one.is_sound), None)
        return stored if stored is not None and stored.is_sound and _against(self, stored.copy.seal) is None else None


def judge_copy(
    copy: StoredCopy, namespace: str, risk_of: Callable[[str], RiskClass], verifier: Verifier | None = None
) -> ContractError | None:
    """Return the fault of the record *copy* itself, in the words of the gates; None if it is valid.

    Schema and lifetime are not checked. Without a *verifier* signatures are not checked.
    """
    message = copy.message
    if message is None or copy.fault is not None:
        return copy.fault
    name = read_topic(copy.record.topic)
    expected = name.message_type if name is not None and copy.kind == "message" else message.message_type
    risk = risk_of(message.message_type)
    try:
        key = copy.record.key if copy.kind in ORIGINALS else message.key
        case = gates.Case(record=copy.record, expected_type=expected, key=key, message=message)
        checks = gates.Checks(
            max_message_bytes=len(message.value),
            namespace=namespace,
            # Without keys no signature can be judged; the chain is, below.
            risk_of=None if verifier is None else lambda _: risk,
            verifier=verifier,
        )
        verdict = gates.judge(case, checks, first="integrity", until="schema")
        if isinstance(verdict, gates.Failed):
            return verdict.error
        if verifier is not None:
            return None
        if message.verification.proof_chain is not None:
            fault = find_fault(message.statement, message.verification, message.metadata)
            if fault is not None:
                raise ContractError(fault, "/verification/proof_chain", "proof_invalid")
        elif message.verification.parents is not None and risk != "low":
            text = f"rests on parents and carries no chain, and {message.message_type} is of {risk} risk"
            raise ContractError(text, "/verification/proof_chain", "proof_invalid")
    except ContractError as error:
        return error.with_traceback(None)
    return None


def judge_ancestry(
    lineage: Lineage,
    message_id: str,
    *,
    namespace: str,
    risk_of: Callable[[str], RiskClass],
    verifier: Verifier | None = None,
) -> Ancestry | None:
    """Return the judged line of causes of *message_id*; None where the log has nothing of it.

    *risk_of* returns the risk of a message type.
    """
    judge = functools.partial(judge_copy, namespace=namespace, risk_of=risk_of, verifier=verifier)
    walk = _Walk([_Examined(copy, judge) for copy in lineage.copies])
    nodes = walk.nodes(message_id)
    if not nodes:
        return None
    first = _first_number(nodes)
    judged: list[Hop] = []
    for location, node in enumerate(nodes):
        before = nodes[location - 1] if location else None
        holds = bool(judged) and judged[-1].state == "valid"
        hop = _judge(node, None if first is None else first + location, before if holds else None, lineage.retained)
        is_verified = verifier is not None and bool(hop.kid) and hop.state == "valid"
        judged.append(msgspec.structs.replace(hop, is_verified=is_verified))
    return Ancestry(hops=tuple(judged), unknown=first)


class _Walk:
    """Walks from one message to its first cause."""

    def __init__(self, examined: Sequence[_Examined]) -> None:
        self._by_id: dict[str, list[_Examined]] = {}
        self._by_seal: dict[str, list[_Examined]] = {}
        self._by_cause: dict[str, list[_Examined]] = {}
        for one in examined:
            self._by_id.setdefault(one.copy.message_id, []).append(one)
            if _is_original(one):
                self._by_seal.setdefault(one.copy.seal, []).append(one)
                self._by_cause.setdefault(one.copy.causation_id, []).append(one)

    def nodes(self, message_id: str) -> list[_Node]:
        """Return the steps from the first cause to *message_id*; empty if nothing is known of it."""
        outside = self._caused_by(message_id)
        leaf = self._node(message_id, outside)
        if not leaf.originals and not leaf.copies and not leaf.evidence:
            return []
        found, seen, witnesses = [leaf], {message_id}, list[_Examined]()
        while len(found) < _HOPS_LIMIT:
            here = found[-1]
            if (stored := here.trusted) is not None:
                # What its links tell reaches no further.
                witnesses = [*witnesses, stored][-MAX_LINKS - 1 :]
            elif len(found) == 1:
                witnesses = outside
            above = self._above(here, witnesses)
            if above is None:
                break
            name, stated = above
            name = name or self._named(stated)
            if name in seen:
                break
            seen.add(name)
            found.append(self._cause(name, stated, witnesses, [*witnesses, *here.originals]))
        return found[::-1]

    def _above(self, here: _Node, witnesses: Sequence[_Examined]) -> tuple[str, list[_Evidence]] | None:
        """Return id and evidence of the cause of *here*; None for a first message, or if there is no evidence.

        Later messages take precedence, because they cannot have been replaced together with it.
        """
        trusted = here.trusted
        for requested in ([one for one in witnesses if one is not trusted], [] if trusted is None else [trusted]):
            attested = [answer for one in requested if (answer := _told_above(one, here)) is not None]
            if attested:
                (name, seal), _ = Counter((name, one.seal) for name, one in attested).most_common(1)[0]
                if not name and not seal:
                    return None
                return name, [one for other, one in attested if (other, one.seal) == (name, seal)]
        if trusted is None:
            return next(filter(None, map(self._claimed_above, (*here.originals, *here.copies))), None)
        return None

    def _claimed_above(self, one: _Examined) -> tuple[str, list[_Evidence]] | None:
        """Return the statement of *one*, which is not trustworthy, about its cause, as far as it has one."""
        message = one.copy.message
        if message is None:
            return None
        stated = _Evidence((message.verification.parents or ("",))[0], message.metadata.hops - 1)
        by_id = message.metadata.causation_id or ""
        named = [self._named([stated]), by_id if by_id in self._by_id else ""]
        named += [name for name, evidence in one.past if self._named([evidence])]
        return next(((name, []) for name in named if name), None)

    def _cause(
        self, name: str, stated: list[_Evidence], witnesses: Sequence[_Examined], heard: Sequence[_Examined]
    ) -> _Node:
        """Return the step to the cause *name*, with the evidence of all *witnesses*, else with the *stated* one.

        Witnesses that were *heard* before, or are invalid, are skipped.
        """
        node = self._node(name, witnesses)
        if len(node.evidence) <= 1:
            # Whether the one witness or the stored message is wrong, others of its consequences may know.
            beside = [one for one in self._caused_by(name) if one not in heard]
            node.evidence += [evidence for one in beside for other, evidence in one.past[:1] if other == name]
        if not node.evidence:
            node.evidence = stated
        if not node.originals:
            seals = {evidence.seal for evidence in node.evidence if evidence.seal}
            node.originals = [one for seal in sorted(seals) for one in self._by_seal.get(seal, ())]
        return node

    def _node(self, message_id: str, witnesses: Iterable[_Examined]) -> _Node:
        own = self._by_id.get(message_id, []) if message_id else []
        return _Node(
            message_id=message_id,
            originals=[one for one in own if _is_original(one)],
            copies=[one for one in own if not _is_original(one)],
            evidence=[
                evidence for one in witnesses for name, evidence in one.past if name == message_id and message_id
            ],
        )

    def _named(self, stated: Sequence[_Evidence]) -> str:
        """Return the id of the stored message with the *stated* seal; empty if there is none."""
        stored = (one for attested in stated if attested.seal for one in self._by_seal.get(attested.seal, ()))
        return next((one.copy.message_id for one in stored), "")

    def _caused_by(self, message_id: str) -> list[_Examined]:
        """Return the whole messages that name *message_id* as their cause."""
        return [one for one in self._by_cause.get(message_id, ()) if one.is_sound] if message_id else []


def _is_original(one: _Examined) -> bool:
    return one.copy.kind in ORIGINALS


def _told_above(one: _Examined, here: _Node) -> tuple[str, _Evidence] | None:
    """Return id and evidence that *one* gives about the cause of *here*, both empty for a first message; None without
    any."""
    past = one.past
    if one.copy.message_id == here.message_id or one in here.originals or one in here.copies:
        return past[0] if past else ("", _NOTHING)
    for location, (name, evidence) in enumerate(past):
        if name == here.message_id:
            if location + 1 < len(past):
                return past[location + 1]
            is_first = evidence.statement is not None and evidence.statement.parents is None
            return ("", _NOTHING) if is_first else None
    return None


def _first_number(nodes: Sequence[_Node]) -> int | None:
    """Return the number of the first of *nodes*, counted back from the last one whose number is known."""
    for location in range(len(nodes) - 1, -1, -1):
        trusted = nodes[location].trusted
        if trusted is not None and trusted.copy.message is not None:
            return max(0, trusted.copy.message.metadata.hops - location)
        for evidence in nodes[location].evidence:
            return max(0, evidence.hops - location)
    claimed = nodes[-1].stored
    # Nothing else is left to go by.
    message = None if claimed is None else claimed.copy.message
    return None if message is None else max(0, message.metadata.hops - len(nodes) + 1)


def _judge(node: _Node, number: int | None, before: _Node | None, retained: KeptTimes) -> Hop:
    stored = node.stored
    evidence = _max_told(node.evidence)
    if stored is None:
        return _judge_absent(node, number, evidence, retained)
    copy, message = stored.copy, stored.copy.message
    kind, detail, differs = "", "", tuple[str, ...]()
    against = _against(node, copy.seal)
    other = next((one for one in node.copies if one.copy.record.value != copy.record.value and one.is_sound), None)
    if stored.fault is not None:
        kind, detail = stored.fault.reason, _sentence(stored.fault)
    elif evidence is not None and against is not None and message is not None:
        kind = "replaced"
        differs = _differences(against.statement, message.statement)
        detail = f"what rests on it knows {against.seal}, and {copy.seal} is stored"
    elif before is not None and message is not None and (wrong := _parent_fault(message, before)):
        kind, detail = "parent_mismatch", wrong
    elif other is not None and not node.evidence:
        kind, detail = "copies_differ", f"other bytes are at {other.copy.place}"
    about = message.statement if message is not None else None if evidence is None else evidence.statement
    return Hop(
        number=number,
        message_id=node.message_id or copy.message_id,
        state="invalid" if kind else "valid",
        kind=kind,
        detail=detail,
        message_type=about.message_type if about is not None else "",
        sender=about.sender if about is not None else "",
        timestamp=about.timestamp if about is not None else "",
        kid=_kid(message.verification.signature if message is not None else None),
        place=copy.place,
        differs=differs,
        notes=_notes(node, copy),
    )


def _judge_absent(node: _Node, number: int | None, evidence: _Evidence | None, retained: KeptTimes) -> Hop:
    """Return the hop of a message without a record in its topic, by what its witnesses and its copies tell."""
    copied = next((one for one in node.copies if one.is_sound), None)
    statement = evidence.statement if evidence is not None else None
    if statement is None and copied is not None and copied.copy.message is not None:
        statement = copied.copy.message.statement
    is_lost = retained.may_have_lost(statement)
    where = f"; there is a copy at {node.copies[0].copy.place}" if node.copies else ""
    signature = evidence.signature if evidence is not None else None
    if copied is not None and copied.copy.message is not None:
        signature = copied.copy.message.verification.signature
    return Hop(
        number=number,
        message_id=node.message_id,
        state="not kept" if is_lost else "invalid",
        kind="" if is_lost else "missing",
        detail=(
            f"retention has taken its record{where}"
            if is_lost
            else f"it is not in the log, although retention cannot have deleted it{where}"
        ),
        message_type=statement.message_type if statement is not None else "",
        sender=statement.sender if statement is not None else "",
        timestamp=statement.timestamp if statement is not None else "",
        kid=_kid(signature),
    )


def _max_told(evidence: Sequence[_Evidence]) -> _Evidence | None:
    """Return the evidence that most witnesses share, one with the statement if possible."""
    attested = [one for one in evidence if one.seal]
    if not attested:
        return None
    seal = Counter(one.seal for one in attested).most_common(1)[0][0]
    return min((one for one in attested if one.seal == seal), key=lambda one: one.statement is None)


def _against(node: _Node, seal: str) -> _Evidence | None:
    """Return the evidence for another seal than *seal*, if more witnesses have it than confirm *seal*; else None.

    In a tie the stored message is right, and the differing witnesses are at fault.
    """
    attested = Counter(one.seal for one in node.evidence if one.seal)
    known = attested.pop(seal, 0)
    if not attested:
        return None
    other, count = attested.most_common(1)[0]
    if count <= known:
        return None
    return _max_told([one for one in node.evidence if one.seal == other])


def _parent_fault(message: Message, before: _Node) -> str:
    """Return how *message* does not follow the stored message *before* it; empty where it does."""
    cause = before.stored.copy.message if before.stored is not None else None
    if cause is None:
        return ""
    metadata, parents = message.metadata, message.verification.parents or ("",)
    if parents[0] != cause.seal:
        return f"its first parent is {parents[0] or 'none'}, and its cause is stored as {cause.seal}"
    if metadata.causation_id != cause.message_id:
        return f"it names {metadata.causation_id} as its cause and rests on {cause.message_id}"
    if metadata.hops != cause.metadata.hops + 1:
        return f"it has {metadata.hops} hops, and its cause {cause.metadata.hops}"
    return ""


def _differences(known: Statement | None, stored: Statement) -> tuple[str, ...]:
    if known is None:
        return ()
    return tuple(name for name in Statement.__struct_fields__ if getattr(known, name) != getattr(stored, name))


def _notes(node: _Node, copy: StoredCopy) -> tuple[str, ...]:
    beside = [
        f"there is another message with this id at {one.copy.place}"
        + (f" ({one.fault.reason})" if one.fault is not None else "")
        for one in node.originals
        if one.copy.record.value != copy.record.value
    ]
    unlike = [
        f"the copy at {one.copy.place} has other bytes"
        for one in node.copies
        if one.copy.record.value != copy.record.value
    ]
    return (*beside, *unlike)


def _kid(signature: str | None) -> str:
    found = parse_signature(signature) if signature is not None else None
    return "" if found is None else found.kid


def _sentence(error: ContractError) -> str:
    return f"{error.pointer}: {error.text}" if error.pointer else error.text
