"""Prepared templates: what one publisher has ready for the next message like those before.

Owns which templates there are, each with what its records have in common and its compiled sealer, and that they stay few whatever options come.
Does not own the envelope (`producers.template`) or the choice of a way (`producers.sealer`).
"""

from __future__ import annotations

import msgspec

from bus import native
from bus.envelope import Agent
from bus.errors import ContractError
from bus.payloads import PayloadType, payload_type
from bus.topics import message_topic
from bus.transports.base import Headers, NewRecord
from producers.draft import Draft, Origin
from producers.sealed import CONTENT_TYPE, Sealed
from producers.template import Template, template_options

__all__ = ["Prepared", "PreparedTemplates"]

_MOST_TEMPLATES = 512


class Prepared(Template):
    """A template with what its records have in common."""

    __slots__ = ("encode", "further_headers", "headers", "message_type", "sealer", "topic")

    def __init__(self, kind: PayloadType, origin: Origin, max_message_bytes: int, draft: Draft | None) -> None:
        super().__init__(kind, origin, draft)
        kind.resolve_by_now()
        self.encode = kind.encode
        self.message_type = kind.name
        self.topic = message_topic(origin.namespace, kind.name)
        self.headers: Headers = (("content-type", CONTENT_TYPE), ("sb-type", kind.name.encode()))
        self.further_headers: Headers = () if draft is None or draft.to is None else (("sb-to", _addressee(draft.to)),)
        self.sealer = None
        if native.core is not None and (compiled := kind.encoder.compiled) is not None:
            lifetimes, names = (self.ttl_ms, self.max_ttl_s), (self.message_type, self.topic, self.headers, self.further_headers)
            drafts = Draft, template_options(draft), draft is None
            # Beyond that the general way looks whether it is too heavy.
            most = min(max_message_bytes, kind.weight.light_bytes)
            self.sealer = native.core.Sealer(compiled, self.frame, lifetimes, most, names, (Sealed, NewRecord), drafts)


class PreparedTemplates:
    """The templates of one publisher, by class of payload and `shared_options`."""

    def __init__(self, origin: Origin, max_message_bytes: int) -> None:
        self.plain: dict[type, Prepared] = {}
        """Those without options, which are asked for most."""
        self._origin = origin
        self._max_message_bytes = max_message_bytes
        self._templates: dict[tuple[type, tuple[object, ...]], Prepared] = {}
        self._glimpsed: set[tuple[type, tuple[object, ...]]] = set()

    def __len__(self) -> int:
        return len(self.plain) + len(self._templates) + len(self._glimpsed)

    def known(self, cls: type, options: tuple[object, ...]) -> Prepared | None:
        """The template of payloads of *cls* with these *options*, if it is there."""
        return self._templates.get((cls, options)) if options else self.plain.get(cls)

    def of(self, payload: msgspec.Struct, options: tuple[object, ...] = (), draft: Draft | None = None) -> Prepared | None:
        """The same, made where it is worth it: without options at once, with those of *draft* at second sight.

        Options that differ from message to message would fill the memory with a template each. None also where there can't be one.
        """
        if (template := self.known(payload.__class__, options)) is not None:
            return template
        # All classes are of one class.
        if isinstance(payload, type):
            return None
        like = payload.__class__, options
        if options and like not in self._glimpsed:
            if len(self._glimpsed) >= _MOST_TEMPLATES:
                self._glimpsed.clear()
            self._glimpsed.add(like)
            return None
        try:
            kind = payload_type(payload)
            template = None if kind.risk == "high" else Prepared(kind, self._origin, self._max_message_bytes, draft if options else None)
        except (ContractError, UnicodeEncodeError):
            # The general way says what is wrong.
            return None
        if template is not None:
            if len(self.plain) + len(self._templates) >= _MOST_TEMPLATES:
                self.plain.clear()
                self._templates.clear()
            if options:
                self._templates[like] = template
            else:
                self.plain[payload.__class__] = template
        return template


def _addressee(to: str | Agent) -> bytes:
    return (to if isinstance(to, str) else to.id or to.role or "").encode()
