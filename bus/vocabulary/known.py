"""The message types that a program knows: the built-in ones, and before them those of its apps. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from bus.payloads.payload_types import Registry
from bus.vocabulary import BUILT_IN

__all__ = ["known_types"]


def known_types(registries: Iterable[Registry] = ()) -> Registry:
    """Return the types of *registries*, the first of several with one name, and below them the built-in ones."""
    classes = {kind.name: kind.cls for registry in reversed(list(registries)) for kind in registry}
    return Registry(classes.values(), below=BUILT_IN)
