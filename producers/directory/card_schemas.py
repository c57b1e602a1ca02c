"""The schemas on agents' cards: which own types an agent handles or sends, for tools that do not load its app.

Owns their form on a card, their limits, and which of several agents' schemas count: if two agents describe one version
of a type in different words, neither counts. A card never describes a built-in type. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from bus.errors import ContractError
from bus.payloads.built_in_names import BUILT_IN_NAMES
from bus.payloads.payload_types import PayloadType, Registry
from bus.vocabulary.parts import AgentCard

__all__ = ["MAX_SCHEMA_BYTES", "CardSchemas", "schema_texts", "without_schemas"]

_MEMBER: Final = "schemas"
MAX_SCHEMA_BYTES: Final = 16_384
"""Maximum bytes of all schemas on one card; types beyond it, by their names, are left out."""
_MAX_KEPT_BYTES: Final = 8 * 1_048_576
_WORDS: Final = frozenset({"description", "$comment", "examples", "$schema", "$id"})
_NAMED: Final = frozenset({"properties", "$defs"})
_VALUES: Final = frozenset({"default", "const", "enum"})


def schema_texts(kinds: Iterable[PayloadType]) -> dict[str, str]:
    """Return by name the schemas of *kinds* as a card has them: types of their own, without words for people."""
    from bus.schemas.json_schema import schema_of

    found, size = dict[str, str](), 0
    for kind in sorted(kinds, key=lambda kind: kind.name):
        if kind.name in BUILT_IN_NAMES:
            continue
        try:
            text = msgspec.json.encode(_without_words(schema_of(kind))).decode()
        except (TypeError, ValueError, NameError, RecursionError, msgspec.MsgspecError):
            # A class of a form that no schema can express: its agent is announced without it.
            continue
        size += len(text.encode())
        if size > MAX_SCHEMA_BYTES:
            break
        found[kind.name] = text
    return found


def without_schemas(card: AgentCard) -> AgentCard:
    """Return *card* as a directory keeps it."""
    if _MEMBER not in card.metadata:
        return card
    return msgspec.structs.replace(card, metadata={k: v for k, v in card.metadata.items() if k != _MEMBER})


class CardSchemas:
    """The schemas of the newest card of each agent, up to 8 MiB."""

    def __init__(self) -> None:
        self._texts: dict[str, tuple[int, Mapping[str, str]]] = {}
        self._bytes = 0
        self.dropped = 0
        """Cards for whose schemas there was no room."""

    def note(self, agent_id: str, card: AgentCard, *, sealed_ms: int) -> None:
        """Note the schemas of *card*, which *agent_id* sealed at *sealed_ms*."""
        known_ms, known = self._texts.get(agent_id, (-1, {}))
        if sealed_ms <= known_ms:
            return
        texts = _texts_of(card)
        more = _size(texts) - _size(known)
        if self._bytes + more > _MAX_KEPT_BYTES:
            self.dropped += 1
            return
        self._bytes += more
        self._texts[agent_id] = sealed_ms, texts

    def registry(self, *, below: Registry | None = None) -> Registry:
        """Return the types that cards describe; *below* has the others. What describes no type is left out."""
        from bus.schemas.published_types import registry_of_types, type_of_schema

        described: dict[tuple[str, str], set[str]] = {}
        kinds: dict[str, PayloadType] = {}
        for text in {text for _, texts in self._texts.values() for text in texts.values()}:
            try:
                kind = kinds[text] = type_of_schema(msgspec.json.decode(text, type=dict[str, Any]))
            except (ContractError, msgspec.DecodeError, RecursionError):
                continue
            described.setdefault((kind.name, kind.version), set()).add(text)
        agreed = [kinds[next(iter(texts))] for texts in described.values() if len(texts) == 1]
        return registry_of_types((kind for kind in agreed if kind.name not in BUILT_IN_NAMES), below=below)


def _texts_of(card: AgentCard) -> dict[str, str]:
    found = card.metadata.get(_MEMBER)
    if not isinstance(found, Mapping):
        return {}
    texts = {name: text for name, text in found.items() if isinstance(text, str)}
    return texts if _size(texts) <= MAX_SCHEMA_BYTES else {}


def _size(texts: Mapping[str, str]) -> int:
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts.values())


def _without_words(schema: Any, *, are_names: bool = False) -> Any:
    """Return *schema* without what is for people; the members of *are_names* are names of fields, not words."""
    if isinstance(schema, list):
        return [_without_words(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: item if name in _VALUES else _without_words(item, are_names=name in _NAMED and not are_names)
        for name, item in schema.items()
        if are_names or name not in _WORDS
    }
