"""Anti-patterns in registered types. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from msgspec import inspect

from bus.payloads.described_types import fields_of, walk
from bus.payloads.payload_types import PayloadType
from consumers.operations.lint.findings import LintFinding, finding

__all__ = ["lint_type"]

_MAX_FIELDS: Final = 40
_STATUS: Final = re.compile(r"(?:^|_)(?:status|state|verdict|decision|outcome|severity|priority|level)$")
_OUTPUT: Final = re.compile(r"^(?:output|response|result|results|raw|body|api_response)$|_(?:response|output)$")
_HASH: Final = re.compile(r"(?:^|_)(?:content_hash|checksum|signature|digest|hmac|proof_chain)$")
_CONTEXT: Final = re.compile(r"^(?:context|history|messages|transcript|conversation|chat)(?:_|$)")
_PROSE: Final = re.compile(r"^(?:text|message|content|prompt|instructions?|body|query)$")
_OPEN: Final = re.compile(r"^(?:content|payload|data|body|params|parameters|args|arguments|kwargs)$")
_EFFECT: Final = re.compile(
    r"(?:^|[.-])(?:create|delete|deploy|pay|charge|refund|send|transfer|order|merge|command)(?:[.-]|$)"
)
_DECIDES: Final = re.compile(r"^(?:verdict|decision|approved|accepted)$")


def lint_type(kind: PayloadType) -> Iterator[LintFinding]:
    """Yield the findings about the type *kind*."""
    for check in _CHECKS:
        yield from check(kind)


def _all_fields(kind: PayloadType) -> Iterator[tuple[str, Any, Any]]:
    """Every field of the type and of its parts: pointer, field, and the object that has it."""
    for path, described in walk(inspect.type_info(kind.described)):
        for field in fields_of(described):
            yield f"{path.replace('.', '/')}/{field.encode_name}".lstrip("/"), field, described


def _bare(kind: Any) -> Any:
    """Return what *kind* is without null and without metadata."""
    if isinstance(kind, inspect.Metadata):
        return _bare(kind.type)
    if isinstance(kind, inspect.UnionType):
        rest = [member for member in kind.types if not isinstance(member, inspect.NoneType)]
        return _bare(rest[0]) if len(rest) == 1 else kind
    return kind


def _is_free_text(kind: Any) -> bool:
    bare = _bare(kind)
    return isinstance(bare, inspect.StrType) and bare.pattern is None


def _is_anything(kind: Any) -> bool:
    bare = _bare(kind)
    if isinstance(bare, inspect.DictType):
        return _is_anything(bare.value_type)
    return isinstance(bare, inspect.AnyType)


def _status(kind: PayloadType) -> Iterator[LintFinding]:
    for location, field, _ in _all_fields(kind):
        if _STATUS.search(field.encode_name) and _is_free_text(field.type):
            yield finding("free-form-status", f"{kind.name}/{location}", f"{field.encode_name} is any text")


def _errors(kind: PayloadType) -> Iterator[LintFinding]:
    for location, field, _ in _all_fields(kind):
        if field.encode_name in ("error", "failure", "exception") and _is_free_text(field.type):
            yield finding("error-without-code", f"{kind.name}/{location}", f"{field.encode_name} is a text alone")
    for path, described in walk(inspect.type_info(kind.described)):
        names = {field.encode_name for field in fields_of(described)}
        called = getattr(getattr(described, "cls", None), "__name__", "")
        is_error = called.endswith(("Error", "Failure", "ErrorInfo")) or (not path and ".error" in f".{kind.name}")
        has_code = any(name in ("code", "error", "content") or name.endswith("_code") for name in names)
        if is_error and names and not has_code:
            location = f"{kind.name}/{path.replace('.', '/')}".rstrip("/")
            yield finding("error-without-code", location, f"{called or kind.name} has no code")


def _output(kind: PayloadType) -> Iterator[LintFinding]:
    names = {field.encode_name for field in kind.fields}
    if names & {"is_truncated", "output_ref", "return_contract", "artifacts"}:
        return
    for field in kind.fields:
        if _OUTPUT.search(field.encode_name) and _is_anything(field.type):
            yield finding("raw-output", f"{kind.name}/{field.encode_name}", f"{field.encode_name} takes anything")


def _generic(kind: PayloadType) -> Iterator[LintFinding]:
    fields = kind.fields
    open_ones = [field.encode_name for field in fields if _is_anything(field.type)]
    others = [field for field in fields if not _is_anything(field.type)]
    says_nothing = not others or (
        any(map(_OPEN.search, open_ones)) and all(_is_free_text(field.type) for field in others)
    )
    if open_ones and says_nothing and not kind.rules and kind.terms.performative is None:
        yield finding(
            "generic-type", kind.name, f"{', '.join(open_ones)} accepts any value, without further description"
        )


def _approval(kind: PayloadType) -> Iterator[LintFinding]:
    if "approval" not in kind.name or not kind.name.endswith(("request", "requested", "required", "approval")):
        return
    reasons = [field for field in kind.fields if field.encode_name in ("reason", "justification", "why")]
    if not any(field.required and (getattr(_bare(field.type), "min_length", None) or 0) >= 1 for field in reasons):
        yield finding("approval-without-reason", kind.name, "its reason is missing, optional, or may be empty")


def _hashes(kind: PayloadType) -> Iterator[LintFinding]:
    for location, field, _ in _all_fields(kind):
        if _HASH.search(field.encode_name) and isinstance(_bare(field.type), inspect.StrType):
            yield finding("hash-never-checked", f"{kind.name}/{location}", f"{field.encode_name} is a field of data")


def _width(kind: PayloadType) -> Iterator[LintFinding]:
    if (count := len(kind.fields)) > _MAX_FIELDS:
        yield finding("too-many-fields", kind.name, f"{count} flat fields, more than {_MAX_FIELDS}")


def _prose(kind: PayloadType) -> Iterator[LintFinding]:
    fields = kind.fields
    texts = [field for field in fields if _is_free_text(field.type)]
    needed = [field for field in fields if field.required]
    is_prose = all(field in texts for field in needed) and any(_PROSE.search(field.encode_name) for field in needed)
    if is_prose and (len(texts) == len(fields) or len(needed) == 1):
        names = ", ".join(field.encode_name for field in needed)
        yield finding("prose-as-protocol", kind.name, f"all its content is in {names}")


def _context(kind: PayloadType) -> Iterator[LintFinding]:
    for field in kind.fields:
        bare = _bare(field.type)
        if _CONTEXT.search(field.encode_name) and isinstance(bare, inspect.ListType | inspect.VarTupleType):
            item = _bare(bare.item_type)
            if isinstance(item, inspect.StrType) or _is_anything(item) or _is_turn(item):
                yield finding("context-dumping", f"{kind.name}/{field.encode_name}", "a list of turns without a limit")


def _is_turn(kind: Any) -> bool:
    names = {field.encode_name for field in fields_of(kind)}
    return {"role", "content"} <= names


def _effects(kind: PayloadType) -> Iterator[LintFinding]:
    is_order = kind.terms.performative in (None, "request") and not kind.name.endswith(
        ("result", "created", "sent", "ed")
    )
    if _EFFECT.search(kind.name) and is_order and "idempotency_key" not in kind.terms.required_options:
        yield finding("effect-without-key", kind.name, "its name is that of an effect, and it needs no idempotency_key")


def _decisions(kind: PayloadType) -> Iterator[LintFinding]:
    for field in kind.fields:
        if _DECIDES.search(field.encode_name) and not kind.rules and len(kind.fields) > 1:
            yield finding("decision-without-rules", f"{kind.name}/{field.encode_name}", "it decides, and has no rules")


_CHECKS: Final[tuple[Callable[[PayloadType], Iterator[LintFinding]], ...]] = (
    _status,
    _errors,
    _output,
    _generic,
    _approval,
    _hashes,
    _width,
    _prose,
    _context,
    _effects,
    _decisions,
)
