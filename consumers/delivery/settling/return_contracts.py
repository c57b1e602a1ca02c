"""Return contracts: whether a handler's answer is of the form that its message requires.

Owns checking answers against the `ReturnContract` in a message's field `return_contract` (`task.request`,
`handoff.request`, `auction.award`, and any type that declares such a field). Pure. A breach is the handler's fault and
is treated like every refused output: the message is dead-lettered with reason `rejected`, and the requester gets a
report.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from bus.errors import ContractError
from bus.payloads.known_fields import knows_field
from bus.payloads.payload_types import Registry
from bus.payloads.rules import check_rules
from bus.protocol.sealing import Message
from bus.vocabulary.parts import ReturnContract
from producers.sealing.sealed_record import SealedRecord

__all__ = ["check_answers", "contract_of", "is_in_range"]

_POINTER: Final = "/data/return_contract"
_MARK: Final = b'"return_contract":{'
_SETTLES_NOTHING: Final = frozenset({"reject", "query", "accept", "error"})
"""Answers with these performatives promise, refuse or ask: the result is still to come, or never comes."""
_OUTPUTS: Final = frozenset({"task.result", "auction.result"})
"""Types whose `output` has the form of the contract."""
_RUNS_ON: Final = {"task.result": "status", "handoff.completed": "status", "status.update": "new_status"}
"""Types -> their field of the state; in every state but `completed` no result is due."""


class _Asked(msgspec.Struct):
    return_contract: ReturnContract


def contract_of(message: Message, registry: Registry) -> ReturnContract | None:
    """Return the contract that answers to *message* are judged by; None where there is none.

    A call for proposals has none: its contract is about the result of the bid that wins. A member that the type here
    does not declare is ignored as every unknown member is.
    """
    if _MARK not in message.data or message.metadata.performative == "call_for_proposal":
        return None
    kind = registry.get(message.message_type)
    if kind is None or not knows_field(kind.described, _POINTER):
        return None
    try:
        return msgspec.json.decode(message.data, type=_Asked).return_contract
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # A type of its own may mean something else by the name.
        return None


def check_answers(
    message: Message, registry: Registry, answers: Sequence[SealedRecord], others: Sequence[SealedRecord] = ()
) -> None:
    """Raise ContractError (`semantic_violation`) where *answers* to *message* break its return contract.

    *others* are outputs that the handler queued: the promised message may be among them. No answer breaks nothing: a
    handler may accept now and answer later, and the requester's deadline watches over the rest.
    """
    if not answers or (contract := contract_of(message, registry)) is None:
        return
    if any(_is_promised(contract, sealed) for sealed in (*answers, *others)):
        return
    for sealed in answers:
        answer = sealed.message
        if not (_settles_nothing(answer) or _carries(contract, answer, registry)):
            raise _breach(contract, f"the answer is {answer.message_type} {answer.metadata.schema_version}")


def is_in_range(version: str, schema: str | None) -> bool:
    """Return whether *version* (`x.y.z`) is in the range *schema*: `t@1`, `t@1.2` (1.2 or later) or `t@1.2.3`."""
    if schema is None:
        return True
    provided = version.split(".")
    match schema.partition("@")[2].split("."):
        case [major, minor]:
            # Compared as texts, for int() of a stranger's digits is costly.
            return provided[0] == major and (len(provided[1]), provided[1]) >= (len(minor), minor)
        case exact:
            return provided[: len(exact)] == exact


def _is_promised(contract: ReturnContract, sealed: SealedRecord) -> bool:
    """Return whether *sealed*, in one of the versions it is sent in, is the promised message."""
    if sealed.message_type != contract.expected_message_type:
        return False
    versions = [part.message.metadata.schema_version for part in (sealed, sealed.older) if part is not None]
    return any(is_in_range(version, contract.schema) for version in versions)


def _settles_nothing(answer: Message) -> bool:
    """Return whether *answer* leaves the result open, or states that there is none."""
    if answer.metadata.performative in _SETTLES_NOTHING or answer.message_type == "task.artifact":
        return True
    state = _RUNS_ON.get(answer.message_type)
    return state is not None and _data(answer).get(state) != "completed"


def _carries(contract: ReturnContract, answer: Message, registry: Registry) -> bool:
    """Return whether *answer* carries the promised result, or refers to it. Raises ContractError for a wrong one.

    If the expected type is not registered here, or only in another version, the form of the output is not checked. A
    result given by reference is not opened.
    """
    data = _data(answer)
    if answer.message_type == "handoff.completed":
        # The answer is a message of its own, which this one names by its seal.
        return str((data.get("result_ref") or {}).get("uri", "")).startswith("message:")
    if answer.message_type not in _OUTPUTS:
        return False
    output = data.get("output")
    if output is None:
        return bool(data.get("artifacts"))
    kind = registry.get(contract.expected_message_type)
    if kind is None or not is_in_range(kind.version, contract.schema):
        return True
    text = msgspec.json.encode(output)
    try:
        check_rules(kind.rules, kind.decode(text), text)
    except ContractError as error:
        location = error.pointer.removeprefix("/data")
        raise _breach(contract, f"{answer.message_type} has another output: {location} {error.text}") from error
    return True


def _breach(contract: ReturnContract, found: str) -> ContractError:
    requested = contract.schema or contract.expected_message_type
    return ContractError(f"the return contract asks for {requested}, and {found}", _POINTER, "semantic_violation")


def _data(answer: Message) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.json.decode(answer.data)
    return data
