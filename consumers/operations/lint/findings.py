"""The table of what lint looks for, and one finding of it. Pure."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from consumers.operations.lint.nested_requests import NESTED_REQUEST_CURE as HELD_CURE
from consumers.operations.lint.thresholds import THRESHOLD_CURE

__all__ = ["CHECKS", "AntiPattern", "FindingLevel", "LintFinding", "finding"]

FindingLevel: TypeAlias = Literal["error", "warning", "note"]


class AntiPattern(msgspec.Struct, frozen=True, kw_only=True):
    """One anti-pattern: its description, its harm, and the better alternative."""

    name: str
    level: FindingLevel
    why: str
    cure: str


class LintFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One anti-pattern at one place."""

    check: str
    level: FindingLevel
    place: str
    """`TYPE/field`, `FILE:LINE`, or `TOPIC/PARTITION/OFFSET`."""
    what: str
    why: str
    cure: str
    file: str | None = None
    line: int | None = None


_ALL = (
    AntiPattern(
        name="free-form-status",
        level="warning",
        why="a program compares it, and `done`, `Done` and `finished` are three states to it",
        cure="make it a Literal of the states there are, or a Word with its known values written down",
    ),
    AntiPattern(
        name="error-without-code",
        level="warning",
        why="a program cannot decide from prose whether to retry, to ask a person, or to stop",
        cure="give errors a `code` for programs beside the `message` for people, as vocabulary.ErrorInfo has",
    ),
    AntiPattern(
        name="raw-output",
        level="warning",
        why="whatever an API returns goes into the next agent's context: its size, its secrets and its instructions",
        cure="pass on the few fields that matter, and the rest by a Ref; ToolResult.trimmed(...) trims and masks",
    ),
    AntiPattern(
        name="generic-type",
        level="warning",
        why="no schema, no rule and no policy can tell what a message of it means",
        cure="give each kind of message a type of its own, with the fields it needs",
    ),
    AntiPattern(
        name="approval-without-reason",
        level="error",
        why="a person cannot decide about an action without its purpose",
        cure="require a `reason` of at least one character",
    ),
    AntiPattern(
        name="hash-never-checked",
        level="warning",
        why="data carry a hash or a signature that no gate reads: it protects nothing",
        cure="leave it out: the envelope has content_hash and seal; refer to foreign content by a Ref with sha256",
    ),
    AntiPattern(
        name="verification-off",
        level="warning",
        why="types of high risk are handled, and no keys are configured: senders are not verified",
        cure="set trust.keys and trust.key_file (`sealbus key new`), or give the App a verifier and a signer",
    ),
    AntiPattern(
        name="hard-coded-recipient",
        level="warning",
        why="the agent cannot be replaced, doubled or renamed without changing its senders",
        cure='leave `to` out, or address a role: to=Agent(role="reviewer"); take ids from settings or from the message',
    ),
    AntiPattern(
        name="too-many-fields",
        level="warning",
        why="forty flat fields are hard to distinguish, and most are empty in most messages",
        cure="group what belongs together into parts, or split the type by what its messages are for",
    ),
    AntiPattern(
        name="prose-as-protocol",
        level="note",
        why="the receiver has to guess from a text what it is asked to do",
        cure="put values that a program decides on into fields, and leave the text for people",
    ),
    AntiPattern(
        name="context-dumping",
        level="warning",
        why="whole histories cost tokens, leak what the receiver may not know, and hide what matters",
        cure="pass references and the facts that are needed: `context` of at most 64 KiB, artifacts by Ref",
    ),
    AntiPattern(
        name="no-rejection-path",
        level="note",
        why="a handler that can only succeed does something wrong instead of saying no",
        cure="raise Reject, or return a rejecting type, such as vocabulary.TaskRejected",
    ),
    AntiPattern(
        name="effect-without-key",
        level="warning",
        why="a duplicate cannot be distinguished from a second order, so the effect happens twice",
        cure='@payload(..., required_options=("idempotency_key",))',
    ),
    AntiPattern(
        name="decision-without-rules",
        level="note",
        why="it decides something, and any combination of its fields is accepted",
        cure="declare the conditions between its fields: @payload(..., rules=(...))",
    ),
    AntiPattern(
        name="raw-untrusted-text",
        level="note",
        why="a text from outside leaves its wrapper: in a prompt or a command it is taken for an order",
        cure="show it to a model by .quoted(); keep .raw for storing and comparing, and look at each use",
    ),
    AntiPattern(
        name="no-threshold",
        level="note",
        why="text that an agent has read can bring it about, and no trust level stops it",
        cure=THRESHOLD_CURE,
    ),
    AntiPattern(
        name="asks-undeclared",
        level="error",
        why="the run ends where it asks, and a handler that does not declare that may not ask",
        cure="declare the handler with asks=True: @app.on(..., asks=True)",
    ),
    AntiPattern(
        name="effect-outside-step",
        level="note",
        why="a run that waits for a person begins again from its start: what it did outside a step it does again",
        cure="call it by context.step(...), with once=True where it must not happen twice",
    ),
    AntiPattern(
        name="asks-itself",
        level="warning",
        why="runs that wait for answers of the same workers block each other under load",
        cure=HELD_CURE,
    ),
    AntiPattern(
        name="name-taken-twice",
        level="warning",
        why="messages of the one class are read as the other one, or are refused",
        cure="give one of the classes a name of its own, or remove it and import the other one",
    ),
    AntiPattern(
        name="ref-without-hash",
        level="note",
        why="the referenced content can change after it was used",
        cure="give the Ref its sha256",
    ),
)

CHECKS: Final = {check.name: check for check in _ALL}


def finding(name: str, location: str, what: str, *, file: str | None = None, line: int | None = None) -> LintFinding:
    """Return a finding of check *name* at *location*."""
    check = CHECKS[name]
    return LintFinding(
        check=name, level=check.level, place=location, what=what, why=check.why, cure=check.cure, file=file, line=line
    )
