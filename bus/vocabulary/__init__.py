"""The vocabulary: what agents say to each other without defining types of their own.

One module per family; a class with `@payload` in it is a built-in type, and is named after that (`task.request` is
`TaskRequest`). Owns which families there are, and finds types in them: a family is imported when one of its types is
asked for. `VOCABULARY.md` says what all types have in common.

    from sealbus import vocabulary
    await bus.publish(vocabulary.TaskRequest(goal="..."), task_id="t-1")
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bus.payloads.payload_types import PayloadType, Registry, is_payload, payload_type

if TYPE_CHECKING:
    from bus.vocabulary.act import *  # noqa: F403
    from bus.vocabulary.agent import *  # noqa: F403
    from bus.vocabulary.approval import *  # noqa: F403
    from bus.vocabulary.auction import *  # noqa: F403
    from bus.vocabulary.blackboard import *  # noqa: F403
    from bus.vocabulary.bus import *  # noqa: F403
    from bus.vocabulary.error import *  # noqa: F403
    from bus.vocabulary.evidence import *  # noqa: F403
    from bus.vocabulary.handoff import *  # noqa: F403
    from bus.vocabulary.method import *  # noqa: F403
    from bus.vocabulary.operations import *  # noqa: F403
    from bus.vocabulary.parts import *  # noqa: F403
    from bus.vocabulary.review import *  # noqa: F403
    from bus.vocabulary.subscription import *  # noqa: F403
    from bus.vocabulary.swe import *  # noqa: F403
    from bus.vocabulary.task import *  # noqa: F403
    from bus.vocabulary.tool import *  # noqa: F403
    from bus.vocabulary.trust import *  # noqa: F403
    from bus.vocabulary.usage import *  # noqa: F403

__all__ = ["BUILT_IN", "FAMILIES", "Vocabulary", "family_of", "older", "older_types", "types_of"]

FAMILIES: Final[tuple[str, ...]] = (
    "task",
    "handoff",
    "evidence",
    "review",
    "approval",
    "tool",
    "error",
    "agent",
    "method",
    "act",
    "auction",
    "subscription",
    "operations",
    "blackboard",
    "usage",
    "trust",
    "swe",
    "bus",
)
"""The families, each the name of its module here."""

_MODULES: Final = ("parts", *FAMILIES)
_Found = TypeVar("_Found")

# What the modules hold that were imported so far.
_READ: Final[set[str]] = set()
_CLASSES: Final[dict[str, type]] = {}
_TYPES: Final[dict[str, PayloadType]] = {}
_OLDER: Final[dict[tuple[str, str], PayloadType]] = {}
_FAMILY_OF: Final[dict[str, str]] = {}


def family_of(name: str) -> str | None:
    """Return the family of message type *name*; None for a type that is not built in."""
    _find(_TYPES, name, name)
    return _FAMILY_OF.get(name)


def types_of(family: str) -> list[PayloadType]:
    """Return the types of *family* in their newest versions, in the order of its module."""
    _read(family)
    return [_TYPES[name] for name, its in _FAMILY_OF.items() if its == family]


def older(name: str, version: str) -> PayloadType | None:
    """Return the type *name* in a *version* that is read and not written any more; None where there is none."""
    _find(_TYPES, name, name)
    return _OLDER.get((name, version))


def older_types() -> list[PayloadType]:
    """Return every version of a type that is read and not written any more."""
    _read(*FAMILIES)
    return list(_OLDER.values())


class Vocabulary(Registry):
    """Every built-in type in its newest version; a family is imported with its first type."""

    def __iter__(self) -> Iterator[PayloadType]:
        for family in FAMILIES:
            for kind in types_of(family):
                kind.resolve()
                yield kind

    def __contains__(self, name: str) -> bool:
        return _find(_TYPES, name, name) is not None

    def __len__(self) -> int:
        return len(self.names())

    def get(self, name: str) -> PayloadType | None:
        """Return the built-in type *name*."""
        known = self._types.get(name)
        if known is None and (known := _find(_TYPES, name, name)) is not None:
            known.resolve()
            self._types[name] = known
        return known

    def names(self) -> frozenset[str]:
        """Every built-in type; all families are imported for it, and no type is analysed."""
        _read(*FAMILIES)
        return frozenset(_TYPES)


BUILT_IN: Final = Vocabulary()


def _find(table: Mapping[str, _Found], key: str, name: str) -> _Found | None:
    """Return what *table* has of *key*; modules are read until it is there, that which *name* begins with first."""
    if key not in table and len(_READ) < len(_MODULES):
        for module in sorted(_MODULES, key=lambda module: not name.startswith(module)):
            _read(module)
            if key in table:
                break
    return table.get(key)


def _read(*names: str) -> None:
    for family in names:
        if family in _READ:
            continue
        module = import_module(f"{__name__}.{family}")
        for name, cls in vars(module).items():
            if isinstance(cls, type) and cls.__module__ == module.__name__ and not name.startswith("_"):
                _CLASSES[name] = cls
                if is_payload(cls):
                    _add(payload_type(cls), family)
        _READ.add(family)


def _add(kind: PayloadType, family: str) -> None:
    known = _TYPES.get(kind.name, kind)
    newest, other = (kind, known) if kind.major > known.major else (known, kind)
    if newest is not other:
        _OLDER[other.name, other.version] = other
    _TYPES[kind.name] = newest
    _FAMILY_OF[kind.name] = family


def __getattr__(name: str) -> Any:
    """Import a class of the vocabulary when it is asked for."""
    found = _find(_CLASSES, name, name.lower()) if name[:1].isupper() else None
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    _read(*_MODULES)
    return sorted({*globals(), *_CLASSES})
