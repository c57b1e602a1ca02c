"""The message types that a tool knows: of apps, of a project's `schemas/`, of agents' cards, the built-in ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bus.clock import SystemClock
from bus.payloads.payload_types import Registry
from bus.schemas.published_types import registry
from bus.settings.schema import Settings
from bus.transports.base import Transport
from bus.trust import opening
from bus.vocabulary import BUILT_IN
from consumers.app.app import App
from producers.directory.card_types import types_of_namespace

__all__ = ["types_of_log", "types_of_project"]


def types_of_project(apps: Sequence[App], folder: str | None) -> Registry:
    """Return the types of *apps*, then those of the schemas in *folder*, then the built-in ones.

    Raises ConfigurationError, ContractError for the folder.
    """
    return Registry(_classes(apps), below=BUILT_IN if folder is None else registry(folder, below=BUILT_IN))


async def types_of_log(apps: Sequence[App], folder: str | None, transport: Transport, settings: Settings) -> Registry:
    """Return the types as `types_of_project` does, and before the built-in ones those on cards. Raises BusError."""
    clock = SystemClock()
    trust = opening.open_trust(opening.keyless(settings), "", clock=clock)
    return await types_of_namespace(
        _classes(apps),
        transport,
        namespace=settings.bus.namespace,
        clock=clock,
        folder=folder,
        verifier=trust.verifier,
        policy=trust.policy,
    )


def _classes(apps: Sequence[App]) -> list[type[Any]]:
    """Return the payload classes of *apps*; of several with one name the first."""
    return list({kind.name: kind.cls for app in reversed(apps) for kind in app.registry}.values())
