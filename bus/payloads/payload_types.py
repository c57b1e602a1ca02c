"""Payload types: the `@payload` mark, encoding and decoding under it, and the registry of those an application knows.

Owns the link between a class and (message type, schema version), and the schema gate's decisions. Nothing is registered
at import: the mark stays on the class, and a `Registry` is built from classes by the application.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import inspect

from bus import native
from bus.errors import ContractError, UnknownTypeError, text_of
from bus.nearest import nearest
from bus.payloads.built_in_names import check_name
from bus.payloads.class_forms import ClassForm, form_of, struct_form
from bus.payloads.code_of_users import runs_code_of_users
from bus.payloads.costly_types import find_costly
from bus.payloads.decoded_size import MAX_COMPARISONS, MAX_DECODED_BYTES, Weight, weight_of
from bus.payloads.deprecations import Deprecation, deprecations_of
from bus.payloads.described_types import default_of, fields_of
from bus.payloads.directives import check_acting
from bus.payloads.dual_write import DualWrite
from bus.payloads.encoding import Encoder
from bus.payloads.envelope_terms import (
    NO_TERMS,
    EnvelopeTerms,
    SideEffect,
    Spoken,
    check_side_effect,
    make_terms,
)
from bus.payloads.exact_values import exactness_check
from bus.payloads.known_fields import knows_field
from bus.payloads.no_payload import name_missing, not_marked
from bus.payloads.reading import read_untyped
from bus.payloads.rules import Rule, check_rules, value_at, value_of
from bus.payloads.safe_integers import has_open_integers, integers_checked
from bus.payloads.unreadable_types import unreadable, unresolved
from bus.payloads.upcasters import AnyUpcaster, Upcaster, converting
from bus.protocol.envelope import DATA_ROOM, Metadata, Routing
from bus.protocol.fast_parse import ShortReader
from bus.protocol.identifiers import is_message_type, is_schema_version
from bus.protocol.sealing import Message
from bus.protocol.validation_errors import translate

__all__ = [
    "PayloadType",
    "Registry",
    "RiskClass",
    "encode_payload",
    "is_payload",
    "payload",
    "payload_type",
    "raised_risk",
    "untyped",
]

RiskClass = Literal["low", "medium", "high"]


def raised_risk(kind: PayloadType | None, high: Collection[str]) -> RiskClass:
    """Return the risk of *kind*, None being an unknown type; the types in *high* always have high risk."""
    return "medium" if kind is None else "high" if kind.name in high else kind.risk


_MARK = "__sealbus_payload__"
_MAX_MAJOR_DIGITS = 9
_LONG = 16_384
_RESOURCE = re.compile(r"(?:/[^/~]+)+\Z")
_UNTYPED = Weight()
_FIELDS: Final = (Iterable, 'a tuple of names, such as ("task_id",)')
_KINDS: Final[Mapping[str, tuple[Any, str]]] = {
    "version": (str, 'a text such as "1.0.0"'),
    "upcasters": (Mapping | None, "a dict of older majors, such as {1: Upcaster(Older, function)}"),
    "required_options": _FIELDS,
    "must_match": (Mapping | None, 'a dict such as {"/task_id": "/metadata/task_id"}'),
    "options_from": (Mapping | None, 'a dict such as {"priority": "priority"}'),
    "rules": (Iterable, "a tuple of rules, such as (when(...),)"),
    "deprecated": (Mapping | None, 'a dict such as {"name": ("2027-03-01", "use full_name")}'),
    "resource": (str, 'a pointer into data, such as "/repository"'),
    "critical": _FIELDS,
}
"""The arguments of `@payload` whose kind is checked first: kind, and the words for it."""
_Class = TypeVar("_Class", bound=type[Any])


class PayloadType:
    """One registered type: its name, version, risk, and how its data is decoded."""

    __slots__ = (
        "_decode",
        "_described",
        "_quiet",
        "_read_long",
        "_refused",
        "_resolved",
        "_unweighed_bytes",
        "cls",
        "deprecated",
        "dual_write",
        "encoder",
        "form",
        "major",
        "name",
        "resource",
        "risk",
        "rules",
        "runs_code",
        "short",
        "side_effect",
        "sign",
        "small_bytes",
        "terms",
        "upcasters",
        "version",
        "weight",
    )

    def __init__(
        self,
        form: ClassForm,
        name: str,
        version: str,
        risk: RiskClass,
        *,
        sign: bool,
        upcasters: Mapping[int, AnyUpcaster],
        terms: EnvelopeTerms = NO_TERMS,
        rules: tuple[Rule, ...] = (),
        dual_write: DualWrite[Any] | None = None,
        effect: tuple[SideEffect | None, str] = (None, ""),
    ) -> None:
        self.form = form
        self.cls = form.cls
        """The class of every payload."""
        self.name = name
        self.version = version
        self.major = _major(version)
        self.risk = risk
        self.sign = sign
        self.upcasters = dict(upcasters)
        self.terms = terms
        self.rules = rules
        self.dual_write = dual_write
        self.side_effect, self.resource = effect
        """The side effect that a message asks for (None: unknown), and the pointer into data to the affected resource
        (empty: none)."""
        self.runs_code = True
        """Whether reading a payload may run code of the type's author."""
        self.short: ShortReader | None = None
        """Reads what is neither long nor runs code of the author."""
        self._quiet: dict[str, Any] = {}
        """Critical field -> the default value that counts as absent."""
        self.deprecated: Mapping[str, Deprecation] = {}
        self._resolved = False
        self._described: type[Any] | None = None
        self.weight = Weight()
        self._unweighed_bytes = _LONG
        self.small_bytes = 0
        """Texts up to this length are not weighed: decoding them is cheap."""
        self._decode: Callable[[bytes], Any] = self._decode_first
        self._read_long: Callable[[bytes], Any] = self._decode_first
        self._refused: tuple[int, bytes, ContractError] | None = None
        self.encoder = Encoder(form, self.decode)
        if not getattr(form.cls, "__deferred__", False):
            self.resolve_by_now()

    @property
    def described(self) -> type[Any]:
        """The type that msgspec can describe: the class, or a Struct with the fields of a Pydantic model.

        Raises NameError where an annotation names nothing yet.
        """
        if self._described is None:
            self._described = self.form.describe()
        return self._described

    @property
    def fields(self) -> tuple[Any, ...]:
        """The fields of data, as msgspec describes them. Raises NameError as `described` does."""
        return fields_of(inspect.type_info(self.described))

    @property
    def is_judged_each(self) -> bool:
        """Whether a payload that fits the class can still be refused, by a rule or beside its envelope, or is written
        twice.
        """
        return bool(self.rules) or self.terms.differs_by_payload or self.dual_write is not None

    def reads(self, version: str) -> bool:
        """Whether data of *version* can be read here: of the own major, or of an older one with all its upcasters."""
        major = _major(version)
        return major == self.major or self._first_missing(major) is None

    def older(self, major: int) -> PayloadType | None:
        """Return the type in the older *major*, by which its data are judged; None where an upcaster names no class."""
        upcaster = self.upcasters.get(major)
        if isinstance(upcaster, Upcaster):
            return payload_type(upcaster.older)
        dual_write = None if self.dual_write is None else payload_type(self.dual_write.older)
        return dual_write if dual_write is not None and dual_write.major == major else None

    def _first_missing(self, major: int) -> int | None:
        """Return the first major without the upcaster that leads from *major* to the own one; None where none lacks."""
        if major > self.major:
            return major
        return next((step for step in range(major, self.major) if step not in self.upcasters), None)

    def check(self, payload: Any, data: bytes, metadata: Metadata, routing: Routing) -> None:
        """Raise ContractError where *payload*, read from *data*, breaks a rule, or the type's terms of its envelope.

        Reasons: `schema_violation` (terms), `semantic_violation` (rules).
        """
        if self.terms is not NO_TERMS:
            self.terms.check(metadata, routing, payload)
        check_rules(self.rules, payload, data)

    def resolve_by_now(self) -> None:
        """Run `resolve` as far as it can be done now.

        A class that refers to itself, or to one further down, is marked before that name is there.
        """
        with contextlib.suppress(NameError):
            self._resolve_once()

    def resolve(self) -> None:
        """Make, once, what follows from the annotations.

        Raises ContractError where one names nothing, or can't be evaluated or decoded.
        """
        try:
            self._resolve_once()
        except NameError as error:
            raise ContractError(unresolved(self.cls, self.name, error), reason="schema_violation") from error
        except TypeError as error:
            raise ContractError(str(error), reason="schema_violation") from error

    def _resolve_once(self) -> None:
        if self._resolved:
            return
        try:
            self._resolve()
        except (ContractError, NameError):
            raise
        except RecursionError:
            raise ContractError(f"@payload({self.name!r}): its annotations nest deeper than messages may") from None
        except TypeError as error:
            if str(error).startswith("@payload"):
                raise
            raise TypeError(unreadable(self.cls, self.name, error)) from error
        except Exception as error:
            # An annotation in quotes is code of the author, which may raise anything.
            raise TypeError(unresolved(self.cls, self.name, error)) from error

    def _resolve(self) -> None:
        described = self.described
        if (fault := find_costly(described)) is not None:
            raise ContractError(f"@payload({self.name!r}): {fault}")
        if self.resource and not knows_field(described, f"/data{self.resource}"):
            raise ContractError(f"@payload({self.name!r}): resource={self.resource!r} names no field")
        if self.terms.critical:
            self._quiet = _quiet_defaults(self.name, self.terms.critical, fields_of(inspect.type_info(described)))
        self.weight = weight_of(described, as_models=described is not self.cls)
        self._unweighed_bytes = min(_LONG, self.weight.light_bytes)
        self.small_bytes = self.weight.small_bytes
        self.runs_code = described is not self.cls or runs_code_of_users(described)
        reader = self.form.reader(described)
        self._decode = reader.read
        self._read_long = reader.read_long
        is_open = has_open_integers(described)
        if not self.runs_code:
            self.short = reader.read, self._unweighed_bytes, is_open
        if is_open:
            self._decode = integers_checked(reader.read, described)
            self._read_long = integers_checked(reader.read_long, described)
        self.encoder = Encoder(self.form, self.decode, reader.read, exactness_check(described))
        self._resolved = True

    def _decode_first(self, data: bytes) -> Any:
        self.resolve()
        return self._decode(data)

    def encode(self, subject: Any) -> bytes:
        """Canonical data of *subject*; raises ContractError naming the field that a receiver could not accept."""
        if not self._resolved:
            self.resolve_by_now()
        data = self.encoder.encode(subject)
        if len(data) > self._unweighed_bytes:
            self._check_weight(data)
        return data

    def _typed(self, data: bytes) -> Any:
        if len(data) > self._unweighed_bytes:
            return self._typed_long(data)
        return self._decode(data)

    def _typed_long(self, data: bytes) -> Any:
        self._check_weight(data)
        if (refused := self._refused) is not None and refused[:2] == (len(data), _digest(data, refused[0])):
            raise _again(refused[2])
        try:
            with _uncollected():
                return self._read_long(data)
        except msgspec.ValidationError as error:
            if error.__cause__ is not None:
                # A type's own code said so, which may say something else the next time.
                raise
            refusal = translate(error, base="/data", reason="schema_violation")
        # A record is judged by several readers, and a refusal can take as long as a message.
        self._refused = (len(data), _digest(data, len(data)), refusal)
        raise _again(refusal)

    def _check_weight(self, data: bytes) -> None:
        _check_weight(self.weight, data)
        if (count := self.weight.comparisons(data)) > MAX_COMPARISONS:
            text = (
                f"has too many members for a type of {self.weight.fields} fields: {count // self.weight.fields}, "
                f"at most {MAX_COMPARISONS // self.weight.fields} are taken"
            )
            raise ContractError(text, "/data", "schema_violation")

    def prove(self, data: bytes) -> Any:
        """Return the payload in *data* if compiled code proves that they are the canonical form of an object.

        None is no verdict: the caller then takes the exact path.
        """
        if not native.is_canonical_object(data, DATA_ROOM):
            return None
        return self.read(data)

    def read(self, data: bytes) -> Any:
        """Read the payload in canonical *data*; None is no verdict: `decode` then finds the fault."""
        try:
            return self._decode(data) if len(data) <= self._unweighed_bytes else self._typed_long(data)
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 - a type's own __post_init__ may raise anything
            return None

    def decode(self, data: bytes) -> Any:
        """The payload in canonical *data*; raises ContractError (`schema_violation`) with the pointer of the field."""
        try:
            return self._typed(data)
        except ContractError:
            raise
        except msgspec.ValidationError as error:
            raise translate(error, base="/data", reason="schema_violation") from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise ContractError(
                f"{self.name} could not be built: {type(error).__name__}", "/data", "schema_violation"
            ) from error

    def open(self, message: Message) -> Any:
        """The payload of *message*, upcast from an older major where a way is known.

        Raises ContractError: `unsupported_version`, `schema_violation`, `semantic_violation`, `critical_field`.
        """
        metadata = message.metadata
        if metadata.schema_version != self.version and (major := _major(metadata.schema_version)) != self.major:
            return self._open_older(message, major)
        proven = message.payload
        data = message.data
        opened = proven if proven is not None and proven.__class__ is self.cls else self.decode(data)
        if self.rules or self.terms is not NO_TERMS:
            self.check(opened, data, metadata, message.routing)
        if metadata.critical_fields is not None:
            self.check_critical(metadata.critical_fields)
        return opened

    def _open_older(self, message: Message, major: int) -> Any:
        """Return the payload of *message*, which its own version has judged, upcast to this one."""
        metadata, data = message.metadata, message.data
        self._check_reads(major, metadata.schema_version)
        older = self.older(major)
        if older is None:
            opened = self.decode(upcast := self._upcast(data, major, metadata.schema_version))
            self.check(opened, upcast, metadata, message.routing)
            if metadata.critical_fields is not None:
                self.check_critical(metadata.critical_fields)
            return opened
        judged = older.decode(data)
        older.check(judged, data, metadata, message.routing)
        if metadata.critical_fields is not None:
            older.check_critical(metadata.critical_fields)
        # Of what its version does not know, the next one might take a part for something else.
        opened = self.decode(upcast := self._upcast(older.encode(judged), major, metadata.schema_version))
        check_rules(self.rules, opened, upcast)
        return opened

    def _check_reads(self, major: int, version: str) -> None:
        # Checked first: no object is built from data that no upcaster here understands.
        if (missing := self._first_missing(major)) is not None:
            text = f"version {version} of {self.name} is not understood here ({self.version}): "
            text += (
                "upgrade this reader first"
                if major > self.major
                else f"no upcaster leads from {missing} to {missing + 1}: @payload(..., upcasters={{{missing}: ...}})"
            )
            raise ContractError(text, "/metadata/schema_version", "unsupported_version")

    def _upcast(self, data: bytes, major: int, version: str) -> bytes:
        _check_weight(_UNTYPED, data)
        with _uncollected():
            content = read_untyped(data)
        for step in range(major, self.major):
            try:
                content = converting(self.upcasters[step])(content)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                text = f"{self.name} could not be upcast from {version}: {type(error).__name__}"
                raise ContractError(text, "/data", "schema_violation") from error
        try:
            return msgspec.json.encode(content)
        except (TypeError, ValueError, RecursionError) as error:
            raise ContractError(
                f"{self.name} was upcast to data that are not JSON: {text_of(error)}", "/data", "schema_violation"
            ) from error

    def resource_of(self, payload: Any) -> str:
        """The name of what *payload*, or its decoded data, would touch; empty where it names nothing."""
        found = value_at(payload, self.resource) if self.resource else None
        return found if isinstance(found, str) else ""

    def critical_of(self, payload: Any) -> tuple[str, ...]:
        """Return the pointers of the critical fields that *payload* sets.

        None, `msgspec.UNSET`, the default of a flag, and an empty default count as unset.
        """
        if not self.terms.critical:
            return ()
        self.resolve()
        return tuple(_pointer_to(field) for field in self.terms.critical if self._sets(payload, field))

    def _sets(self, payload: Any, field: str) -> bool:
        value, quiet = value_of(payload, field), self._quiet.get(field)
        return not (value is None or value is msgspec.UNSET or (type(value) is type(quiet) and value == quiet))

    def check_critical(self, pointers: tuple[str, ...]) -> None:
        """Raise ContractError (`critical_field`) unless every one of *pointers* names a known field.

        Known are those of this type and of the envelope.
        """
        for pointer in pointers:
            if not knows_field(self.described, pointer):
                raise ContractError(
                    f"{pointer!r} must be understood and is not known here",
                    "/metadata/critical_fields",
                    "critical_field",
                )


def payload(
    name: str,
    *,
    version: str = "1.0.0",
    risk: RiskClass = "medium",
    sign: bool = True,
    upcasters: Mapping[int, AnyUpcaster] | None = None,
    performative: Spoken | None = None,
    required_options: tuple[str, ...] = (),
    ttl_s: float | None = None,
    must_match: Mapping[str, str] | None = None,
    options_from: Mapping[str, str] | None = None,
    rules: tuple[Rule, ...] = (),
    dual_write: DualWrite[Any] | None = None,
    deprecated: Mapping[str, tuple[str, str]] | None = None,
    side_effect: SideEffect | None = None,
    resource: str = "",
    critical: tuple[str, ...] = (),
    overrides: bool = False,
) -> Callable[[_Class], _Class]:
    """Mark a class as the payload of message type *name* in schema *version*.

        @payload("desk.question", version="1.2.0")
        class Question(msgspec.Struct, frozen=True, kw_only=True):
            text: str
            max_sources: int = 5

    The class is a msgspec Struct, which is fastest, a dataclass (`@payload` stands above `@dataclass`), a TypedDict
    (`Order(sku="tea")` then makes a dict that can be published) or a Pydantic model. All four give the same bytes for
    the same values and the same error texts, so agents need not agree on one.

    *name* is lower-case segments joined by dots; each type has a topic of its own. The name of a built-in type
    (`sealbus.vocabulary`) is refused, unless *overrides* says that the class replaces it in this process.

    Workers refuse a *version* with another major number, unless *upcasters* maps an older major to an
    `Upcaster(Older, function)`. The class validates the data of its version, and the function converts them (a dict) to
    the next version. A function alone gets unvalidated data.

    *risk* is the proof that receivers require: "low" (no history), "medium" (the chain of causes), "high" (a signature
    as well, which needs a signer). With *sign* False, messages of low risk are not signed although there is a signer.

    Requirements on the envelope, which publishers write and receivers check:

    - *performative*: the speech act; a message that says another one is refused. Write "request" for what asks its
      reader to act, "inform" for what only tells. A type without one is guarded by less (`bus.payloads.directives`).
    - *required_options*: envelope members that must be there, such as `("idempotency_key", "task_id")`.
    - *ttl_s*: the lifetime in seconds where the publisher gives none; never above the namespace's largest.
    - *must_match*: fields that repeat the envelope and must agree with it: `{"/task_id": "/metadata/task_id"}`.
    - *options_from*: options that data give where the publisher does not: `{"priority": "priority"}`.
    - *critical*: optional fields whose absence widens the effect, such as `("dry_run", "max_files")`. Where one is set,
      `critical_fields` names it, and a receiver whose version of the type does not know it refuses the message.

    For policies: *side_effect* is the change that a message asks for ("none", "read", "write", "external",
    "irreversible"; None is unknown), *resource* the pointer to the name of the affected resource, such as
    "/repository". A type that only informs cannot ask for a change: "inform" with "write" is refused.

    *dual_write*: an older version that publishers send as well while readers are upgraded
    (`bus.payloads.dual_write.DualWrite`).

    *deprecated*: fields that will be removed, `{"name": ("2027-03-01", "use full_name")}`. Workers warn once about each
    sender that still uses one, and `sealbus check --only types` checks the date.

    *rules* are conditions between fields (`bus.payloads.rules`). Publishers and receivers refuse a payload that breaks
    one, with `semantic_violation`.

    The class need not be frozen; the values at the time of publishing are sent. Raises ContractError for an illegal
    name, version or risk, TypeError for an unsupported class.
    """
    if not isinstance(name, str):
        raise TypeError(name_missing(name))
    _check_kinds(
        name,
        version=version,
        upcasters=upcasters,
        required_options=required_options,
        must_match=must_match,
        options_from=options_from,
        rules=rules,
        deprecated=deprecated,
        resource=resource,
        critical=critical,
    )
    rules = _listed_rules(name, rules)
    if not is_message_type(name):
        raise ContractError(
            f"{name!r} is not a valid message type: use lower-case segments joined by dots, at most 120, last one not "
            "`dlq`"
        )
    if not is_schema_version(version):
        raise ContractError(f"{version!r} is not a valid schema version: use x.y.z without leading zeros")
    if risk not in ("low", "medium", "high"):
        raise ContractError(f"risk {risk!r} must be low, medium or high")

    terms = make_terms(
        name,
        performative=performative,
        required_options=required_options,
        must_match=must_match or {},
        ttl_s=ttl_s,
        options_from=options_from or {},
        critical=critical,
    )
    check_side_effect(name, side_effect)
    check_acting(name, terms, side_effect)
    if resource and _RESOURCE.match(resource) is None:
        raise ContractError(
            f"@payload({name!r}): resource={resource!r} is not a pointer into data; write for example '/repository'"
        )

    leaving = deprecations_of(name, deprecated or {})
    if dual_write is not None:
        _check_dual_write(dual_write, name, version)
    for step, upcaster in (upcasters or {}).items():
        _check_upcaster(upcaster, step, name)

    def mark(cls: _Class) -> _Class:
        form = form_of(cls, name)
        check_name(name, cls, overrides=overrides)
        kind = PayloadType(
            form,
            name,
            version,
            risk,
            sign=sign,
            upcasters=upcasters or {},
            terms=terms,
            rules=rules,
            dual_write=dual_write,
            effect=(side_effect, resource),
        )
        kind.deprecated = leaving
        setattr(kind.cls, _MARK, kind)
        # Of a TypedDict it is a class that makes its payloads.
        return kind.cls  # type: ignore[return-value]

    return mark


def _check_kinds(name: str, **arguments: object) -> None:
    """Raise TypeError for one of the *arguments* of `@payload(name)` that is of another kind than it takes."""
    for argument, value in arguments.items():
        kind, words = _KINDS[argument]
        if not isinstance(value, kind):
            raise TypeError(f"@payload({name!r}): {argument} is {words}, not {type(value).__name__}")


def _listed_rules(name: str, rules: Iterable[object]) -> tuple[Rule, ...]:
    found = []
    for rule in rules:
        if not isinstance(rule, Rule):
            raise TypeError(f"@payload({name!r}): rules is {_KINDS['rules'][1]}, and holds {type(rule).__name__}")
        found.append(rule)
    return tuple(found)


def _check_dual_write(dual_write: DualWrite[Any], name: str, version: str) -> None:
    if not isinstance(dual_write, DualWrite):
        raise ContractError(f"@payload({name!r}): dual_write={dual_write!r:.80} must be a DualWrite(Older, to_older)")
    older = payload_type(dual_write.older)
    if older.name != name or older.major >= _major(version):
        raise ContractError(
            f"@payload({name!r}): dual_write names {older.name} {older.version}, not an older major of {name} {version}"
        )


def _check_upcaster(upcaster: object, step: object, name: str) -> None:
    if not isinstance(step, int) or not (callable(upcaster) or isinstance(upcaster, Upcaster)):
        raise TypeError(
            f"@payload({name!r}): upcasters is {_KINDS['upcasters'][1]}, and holds {step!r}: {upcaster!r:.80}"
        )
    if not isinstance(upcaster, Upcaster):
        return
    older = payload_type(upcaster.older)
    if older.name != name or older.major != step:
        raise ContractError(
            f"@payload({name!r}): upcasters[{step}] reads {older.name} {older.version}, not {step}.x.y of {name}"
        )


def payload_type(subject: object) -> PayloadType:
    """The mark of a payload or payload class; raises UnknownTypeError where there is none of its own."""
    cls = subject if isinstance(subject, type) else type(subject)
    mark = cls.__dict__.get(_MARK)
    if not isinstance(mark, PayloadType):
        raise UnknownTypeError(not_marked(subject, _MARK))
    return mark


def is_payload(subject: object) -> bool:
    """Whether *subject* is a payload, or a class, marked with `@payload`."""
    try:
        payload_type(subject)
    except UnknownTypeError:
        return False
    return True


def encode_payload(subject: Any) -> bytes:
    """Canonical data of a payload; raises ContractError naming the field, UnknownTypeError."""
    return payload_type(subject).encode(subject)


class Registry:
    """The payload types of an application, by message type; immutable.

    Types that it lacks are looked up in *below*. Raises ContractError for a class with an undefined annotation.
    """

    def __init__(self, classes: Iterable[type[Any]] = (), *, below: Registry | None = None) -> None:
        self._types: dict[str, PayloadType] = {}
        self._below = below
        for cls in classes:
            kind = payload_type(cls)
            # An annotation that names nothing must not become a dead letter of each message.
            kind.resolve()
            known = self._types.setdefault(kind.name, kind)
            if known.cls is not cls:
                raise ContractError(f"{kind.name} is claimed by {_located(known.cls)} and by {_located(cls)}")

    def __iter__(self) -> Iterator[PayloadType]:
        yield from self._types.values()
        if self._below is not None:
            yield from (kind for kind in self._below if kind.name not in self._types)

    def __contains__(self, name: str) -> bool:
        return name in self._types or (self._below is not None and name in self._below)

    def names(self) -> frozenset[str]:
        """Every message type that is known."""
        return frozenset(self._types) | (self._below.names() if self._below is not None else frozenset())

    def get(self, name: str) -> PayloadType | None:
        """The type registered for *name*."""
        known = self._types.get(name)
        return known if known is not None or self._below is None else self._below.get(name)

    def prove(self, name: str, data: bytes) -> Any:
        """`PayloadType.prove` of the type registered for *name*."""
        kind = self.get(name)
        return kind.prove(data) if kind is not None else None

    def label(self, name: str) -> str:
        """Return *name* if it is registered, else `other`, as a metric label."""
        return name if name in self else "other"


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Keep the garbage collector from walking what grows, again and again: what is read has no cycles."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _check_weight(weight: Weight, data: bytes) -> None:
    if (size := weight.of(data)) > MAX_DECODED_BYTES:
        text = (
            f"takes about {size >> 20} MiB decoded, at most {MAX_DECODED_BYTES >> 20} are taken: "
            "large content travels by reference"
        )
        raise ContractError(text, "/data", "schema_violation")


def _digest(data: bytes, length: int) -> bytes:
    """Return the digest of *data* if they have that *length*."""
    return hashlib.sha256(data).digest() if len(data) == length else b""


def _again(refusal: ContractError) -> ContractError:
    """Return a copy of *refusal* to raise: an exception that was raised keeps its frames alive."""
    return ContractError(refusal.text, refusal.pointer, refusal.reason)


def _quiet_defaults(name: str, critical: tuple[str, ...], fields: tuple[Any, ...]) -> dict[str, Any]:
    """The defaults by which *critical* fields of type *name* say nothing. Raises ContractError for a wrong name.

    An older reader does as if the field were absent. A flag at its default, or an empty list, asks for just that; a
    limit asks for more, at its default, too.
    """
    known = {field.encode_name: field for field in fields}
    quiet = {}
    for field in critical:
        if field not in known:
            raise ContractError(f"@payload({name!r}): critical={field!r} names no field{nearest(field, known)}")
        if known[field].required:
            raise ContractError(
                f"@payload({name!r}): critical={field!r} is required: a reader that does not know it is another major"
            )
        default = default_of(known[field])
        if isinstance(default, bool) or default in ("", (), [], {}):
            quiet[field] = default
    return quiet


def _located(cls: type[Any]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _pointer_to(field: str) -> str:
    return "/data/" + field.replace("~", "~0").replace("/", "~1")


def _major(version: str) -> int:
    digits = version.partition(".")[0]
    # No type here is that far; longer ones, which only a hostile record has, are not even read.
    return int(digits) if len(digits) <= _MAX_MAJOR_DIGITS else 10**_MAX_MAJOR_DIGITS


def untyped(name: str, version: str) -> PayloadType:
    """A type known by name only: its data is sealed as it is and judged by its receivers."""
    return PayloadType(struct_form(_Untyped), name, version, "medium", sign=True, upcasters={})


class _Untyped(msgspec.Struct):
    """Stands in for a payload class that is not at hand."""
