"""The checklist of seed 001 section 19, answered for an app: points that the bus covers, and points left to the app.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

from bus.payloads.directives import DIRECTIVE
from bus.payloads.payload_types import PayloadType
from bus.trust.policy.policy import AllowAll
from bus.vocabulary import BUILT_IN
from consumers.delivery.declaration import Declaration
from consumers.operations.lint.findings import LintFinding

__all__ = ["ChecklistAnswer", "checklist"]

_Said: TypeAlias = Literal["yes", "no", "unused"]
_WORK = DIRECTIVE - {"accept"}


class ChecklistAnswer(msgspec.Struct, frozen=True):
    """One question, its answer, and why."""

    question: str
    answer: _Said
    because: str


def checklist(declaration: Declaration, findings: Iterable[LintFinding]) -> tuple[ChecklistAnswer, ...]:
    """ChecklistAnswer the fifteen questions for *declaration*, of which lint has these *findings*."""
    kinds = list(declaration.registry)
    found: dict[str, list[str]] = {}
    for one in findings:
        found.setdefault(one.check, []).append(one.place)
    return (
        ChecklistAnswer("Does every message have a schema version?", "yes", "the bus seals one into each"),
        _tasks(kinds),
        ChecklistAnswer(
            "Are correlation and causation tracked?", "yes", "whatever a handler sends names its cause and rests on it"
        ),
        _none("Are message types enumerable?", found, ("generic-type",), f"{len(kinds)} types, each with a schema"),
        ChecklistAnswer(
            "Are payload schemas validated outside the model?", "yes", "by the gate `schema`, before any handler"
        ),
        _policy(declaration),
        _none(
            "Are untrusted contents marked?", found, ("raw-output", "context-dumping"), "no type passes on raw output"
        ),
        _none(
            "Are tool outputs separated from instructions?",
            found,
            ("raw-output", "prose-as-protocol"),
            "no type is prose or raw output",
        ),
        _none("Are side effects idempotent?", found, ("effect-without-key",), "every type of an effect needs its key"),
        _approvals(kinds),
        _handoffs(kinds),
        _claims(kinds),
        _none("Are errors machine-routable?", found, ("error-without-code",), "every error has a code"),
        ChecklistAnswer(
            "Is protocol versioning defined?",
            "yes",
            "`sealbus check --only types` compares each release with the published",
        ),
        ChecklistAnswer(
            "Can a full run be reconstructed from persisted messages?", "yes", "from the log, as long as it keeps them"
        ),
    )


def _none(question: str, found: dict[str, list[str]], checks: tuple[str, ...], otherwise: str) -> ChecklistAnswer:
    locations = [location for check in checks for location in found.get(check, ())]
    return (
        ChecklistAnswer(question, "no", ", ".join(locations[:3]))
        if locations
        else ChecklistAnswer(question, "yes", otherwise)
    )


def _tasks(kinds: list[PayloadType]) -> ChecklistAnswer:
    question = "Does every message have sender, recipient, run id, task id?"
    loose = [
        kind.name
        for kind in kinds
        if not _WORK.isdisjoint(kind.terms.words) and "task_id" not in kind.terms.required_options
    ]
    if loose:
        return ChecklistAnswer(question, "no", f"the sender is sealed, and no task is needed by {', '.join(loose[:3])}")
    return ChecklistAnswer(question, "yes", "the sender is sealed, and whatever asks for work needs its task")


def _policy(declaration: Declaration) -> ChecklistAnswer:
    question = "Are authority and policy explicit?"
    if isinstance(declaration.policy, AllowAll):
        return ChecklistAnswer(question, "no", "no policy is set: any agent may send any message here")
    return ChecklistAnswer(question, "yes", f"by {type(declaration.policy).__name__}")


def _approvals(kinds: list[PayloadType]) -> ChecklistAnswer:
    question = "Are approval requests tied to immutable action hashes?"
    asking = [kind for kind in kinds if "approval" in kind.name]
    loose = [kind.name for kind in asking if not _has(kind, "action_hash", "approved_action_hash", "approval_id")]
    if not asking:
        return ChecklistAnswer(question, "unused", "no type is about approvals")
    return (
        ChecklistAnswer(question, "no", ", ".join(loose))
        if loose
        else ChecklistAnswer(question, "yes", "the types hold the hash")
    )


def _handoffs(kinds: list[PayloadType]) -> ChecklistAnswer:
    question = "Are handoffs accepted or rejected explicitly?"
    names = {kind.name for kind in kinds}
    if not any("handoff" in name for name in names):
        return ChecklistAnswer(question, "unused", "no type is a handoff")
    says_no = any(kind.terms.performative == "reject" or "reject" in kind.name for kind in kinds)
    if says_no:
        return ChecklistAnswer(question, "yes", "a type says no")
    return ChecklistAnswer(
        question, "no", "no type of this app can reject: handle or return handoff.rejected, task.rejected"
    )


def _claims(kinds: list[PayloadType]) -> ChecklistAnswer:
    question = "Are claims linked to evidence refs?"
    claiming = [kind for kind in kinds if _has(kind, "claim", "verdict", "decision", "findings")]
    loose = [
        kind.name
        for kind in claiming
        if BUILT_IN.get(kind.name) is not kind and not _has(kind, "evidence", "evidence_refs", "limitations")
    ]
    if not claiming:
        return ChecklistAnswer(question, "unused", "no type makes a claim")
    return (
        ChecklistAnswer(question, "no", ", ".join(loose[:3]))
        if loose
        else ChecklistAnswer(question, "yes", "claims have references")
    )


def _has(kind: PayloadType, *names: str) -> bool:
    return any(field.encode_name in names for field in kind.fields)
