"""Records of failed messages: dead letters, their stubs, and retries. Pure.

Owns their headers: which are added, copied unchanged, or removed. Appending them is in
`consumers.delivery.settling.durable_append`, listing them in `consumers.deadletters.letters`.
"""

from __future__ import annotations

import hashlib
import traceback
from pathlib import Path
from typing import Final

import msgspec

from bus.errors import NameRefusedError, Reject, text_of, trace_of
from bus.protocol import canonical
from bus.protocol.reasons import gate_of
from bus.protocol.timestamps import format_ms
from bus.redaction import MAX_LENGTH, cut, names_secret, redacted
from bus.topics.names import dead_letter_topic, read_topic
from bus.transports.base import Headers, NewRecord, Record, check_topic_name

__all__ = [
    "CONTROL_HEADERS",
    "Control",
    "Failure",
    "dead_letter_record",
    "end_id",
    "is_origin",
    "read_control",
    "reappend",
    "stub",
]

CONTROL_HEADERS: Final = frozenset(
    (
        "sb-attempt",
        "sb-not-before",
        "sb-origin-topic",
        "sb-origin-partition",
        "sb-origin-offset",
        "sb-first-failed-at",
        "sb-error",
        "sb-extend-until",
        "sb-redrive-count",
        "sb-redrive-order",
        "sb-early-since",
        "sb-early-count",
    )
)
_MAX_DETAILS = 8_192
_MAX_REJECT: Final = 240
# A pointer names a sender's field, which may be as long as the record.
_MAX_POINTER = 1_024
_MAX_WHERE: Final = 120
_OURS: Final = ("sb-", "__dlq.")
_NEVER_MS: Final = 10**15
_FIRST_REASON: Final = "__dlq.errors.topic"


class Control(msgspec.Struct, frozen=True):
    """The control headers of a retry or redrive record.

    On any other topic they are ignored, and the defaults apply.
    """

    origin_topic: str
    origin_partition: int
    origin_offset: int
    attempt: int = 0
    not_before_ms: int = 0
    first_failed_at_ms: int = 0
    error: str = ""
    extend_until_ms: int = 0
    redrive_count: int = 0
    order: bytes = b""
    """The sealed `redrive.ordered` that *extend_until_ms* rests on."""
    early_since_ms: int = 0
    """When it was first looked at before its process had come; 0: never."""
    early_count: int = 0
    """How often it was put back for that."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a record dies.

    *reason* of the closed set, *error* as class name, *pointer* to the field where there is one.
    """

    reason: str
    error: str
    text: str = ""
    pointer: str = ""
    exception: BaseException | None = None


def read_control(record: Record) -> Control:
    """Read the control headers of *record*, which came from a retry or redrive topic.

    Unreadable headers count as absent.
    """
    headers = dict(record.headers)
    origin = headers.get("sb-origin-topic", b"").decode("utf-8", "replace")
    location = record.topic, record.partition, record.offset
    if is_origin(origin, record.topic):
        location = (
            origin,
            _number(headers, "sb-origin-partition", record.partition),
            _number(headers, "sb-origin-offset", record.offset),
        )
    return Control(
        *location,
        attempt=_number(headers, "sb-attempt", 0),
        not_before_ms=_moment_ms(headers, "sb-not-before"),
        first_failed_at_ms=_number(headers, "sb-first-failed-at", 0),
        error=headers.get("sb-error", b"").decode("utf-8", "replace"),
        extend_until_ms=_number(headers, "sb-extend-until", 0),
        redrive_count=_number(headers, "sb-redrive-count", 0),
        order=headers.get("sb-redrive-order", b""),
        early_since_ms=_number(headers, "sb-early-since", 0),
        early_count=_number(headers, "sb-early-count", 0),
    )


def is_origin(topic: str, beside: str) -> bool:
    """Return whether a message of *beside* can have come from *topic*.

    An illegal name, or one of another namespace, takes no dead letters.
    """
    try:
        check_topic_name(dead_letter_topic(topic))
    except NameRefusedError:
        return False
    named, here = read_topic(topic), read_topic(beside)
    return named is not None and (here is None or here.namespace == named.namespace)


def reappend(record: Record, control: Control, topic: str) -> NewRecord:
    """Return *record* for *topic*: key, value and own headers unchanged, control headers from *control*."""
    control_headers: Headers = (
        ("sb-attempt", b"%d" % control.attempt),
        ("sb-not-before", b"%d" % control.not_before_ms),
        ("sb-origin-topic", control.origin_topic.encode()),
        ("sb-origin-partition", b"%d" % control.origin_partition),
        ("sb-origin-offset", b"%d" % control.origin_offset),
        ("sb-first-failed-at", b"%d" % control.first_failed_at_ms),
        ("sb-error", control.error.encode()),
    )
    if control.extend_until_ms:
        control_headers += (("sb-extend-until", b"%d" % control.extend_until_ms),)
    if control.order:
        control_headers += (("sb-redrive-order", control.order),)
    if control.early_count:
        control_headers += (
            ("sb-early-since", b"%d" % control.early_since_ms),
            ("sb-early-count", b"%d" % control.early_count),
        )
    if control.redrive_count:
        control_headers += (("sb-redrive-count", b"%d" % control.redrive_count),)
    return NewRecord(topic, record.key, record.value, _own_headers(record) + control_headers)


def dead_letter_record(
    record: Record,
    control: Control,
    failure: Failure,
    *,
    group: str,
    now_ms: int,
    honoured: bool,
    details: bool,
    seal: str | None = None,
) -> NewRecord:
    """Return the dead letter of *record*.

    *honoured*: it came from a retry or redrive topic, whose control headers are not the sender's. *seal* is that of its
    message, None where there is none.
    """
    headers_kept = _own_headers(record) if honoured else record.headers
    identity = end_id(seal or canonical.digest(record.value or b""), group, control.redrive_count)
    return NewRecord(
        dead_letter_topic(control.origin_topic),
        record.key,
        record.value,
        _without_secrets(headers_kept) + _reasons(control, failure, group, now_ms, identity, details=details),
    )


def _without_secrets(headers: Headers) -> Headers:
    """Return *headers* with secret-looking values masked: more people read dead letters than messages."""
    return tuple((name, value if name.startswith(_OURS) else _masked(name, value)) for name, value in headers)


def _masked(name: str, value: bytes) -> bytes:
    if names_secret(name):
        return b"***"
    # Latin-1 has a character for each byte; what is longer than the patterns look at is no known form of a secret.
    text = value.decode("latin-1")
    return value if redacted(text) == text[:MAX_LENGTH] else redacted(text).encode("latin-1")


def stub(record: Record, letter: NewRecord, failure: Failure) -> NewRecord:
    """Return the stub of a record too large to store: hash, size and reason. The headers have its location."""
    value = canonical.encode(
        {"reason": failure.reason, "sha256": canonical.digest(record.value or b""), "size": len(record.value or b"")}
    )
    names = [name for name, _ in letter.headers]
    # The bus's headers come last: a sender's headers of the same names are left out.
    added = letter.headers[len(names) - 1 - names[::-1].index(_FIRST_REASON) :]
    return NewRecord(letter.topic, None, value, (*added, ("sb-dlq-stub", b"1")))


def end_id(seal: str, group: str, redrive_count: int, what: str = "letter") -> str:
    """Return the id for the end of a message in *group*; repeating the same end gives the same id.

    *seal* is that of the message, or the hash of a record that is not a message. *what* distinguishes the dead letter
    from the error report.
    """
    return hashlib.sha256(canonical.encode([what, seal, group, str(redrive_count)])).hexdigest()[:32]


def _reasons(control: Control, failure: Failure, group: str, now_ms: int, identity: str, *, details: bool) -> Headers:
    headers: Headers = (
        (_FIRST_REASON, control.origin_topic.encode()),
        ("__dlq.errors.partition", b"%d" % control.origin_partition),
        ("__dlq.errors.offset", b"%d" % control.origin_offset),
        ("__dlq.errors.group", group.encode()),
        ("__dlq.errors.delivery.count", b"%d" % max(1, control.attempt)),
        ("__dlq.errors.message", failure.reason.encode()),
        ("sb-dlq-id", identity.encode()),
        ("sb-dlq-reason", failure.reason.encode()),
        ("sb-dlq-gate", gate_of(failure.reason).encode()),
        ("sb-dlq-error", _describe(failure, details=details)),
        ("sb-dlq-failed-at", format_ms(now_ms).encode()),
        ("sb-redrive-count", b"%d" % control.redrive_count),
    )
    if failure.pointer:
        headers = (*headers, ("sb-dlq-pointer", failure.pointer.encode("utf-8", "replace")[:_MAX_POINTER]))
    frame = None if failure.exception is None else _last_frame(failure.exception)
    if frame is not None:
        headers = (*headers, ("sb-dlq-where", f"{frame[0]}:{frame[1]}".encode("utf-8", "replace")[:_MAX_WHERE]))
    return headers


def _describe(failure: Failure, *, details: bool) -> bytes:
    """Describe the failure: its class, and the text of a `Reject` or the place in the code where it was raised.

    Texts of other errors, and traces, can hold secrets: they are there with *details* only.
    """
    if not details:
        return _named(failure).encode("utf-8", "replace")[:_MAX_DETAILS]
    text = f"{failure.error}: {redacted(failure.text)}"
    if failure.exception is not None:
        text += "\n" + trace_of(failure.exception)
    return text.encode("utf-8", "replace")[:_MAX_DETAILS]


def _named(failure: Failure) -> str:
    error = failure.exception
    if isinstance(error, Reject):
        return f"{failure.error}: {cut(text_of(error), _MAX_REJECT)}"
    frame = None if error is None else _last_frame(error)
    return failure.error if frame is None else f'{failure.error}\n  File "{frame[0]}", line {frame[1]}'


def _last_frame(error: BaseException) -> tuple[str, int] | None:
    """Return the file and the line where *error* was raised; None if it has no traceback."""
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames:
        return None
    # The name of the file alone: the rest tells how a machine is set up.
    frame, line = frames[-1]
    return Path(frame.f_code.co_filename).name, line


def _own_headers(record: Record) -> Headers:
    return tuple(header for header in record.headers if header[0] not in CONTROL_HEADERS)


def _moment_ms(headers: dict[str, bytes], name: str) -> int:
    """Return a time; one that is too large counts as the latest possible, for 0 would run at once."""
    text = headers.get(name, b"")
    return _number(headers, name, _NEVER_MS) if text.isdigit() else 0


def _number(headers: dict[str, bytes], name: str, default: int) -> int:
    text = headers.get(name, b"")
    # Longer is beyond any time in milliseconds.
    return int(text) if text.isdigit() and len(text) <= 15 else default  # noqa: PLR2004
