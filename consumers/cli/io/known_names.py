"""The names that a shell completes besides commands and options: settings, message types, topics and groups.

Owns finding them within a second and in silence: whatever fails completes nothing. Only an embedded log that exists is
read, and no application's code is imported.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import click

if TYPE_CHECKING:
    from bus.settings.schema import Settings
    from bus.transports.base import Transport

__all__ = ["complete_dead_types", "complete_groups", "complete_settings", "complete_topics", "complete_types"]

_SQLITE: Final = "sqlite:///"
_PATIENCE_S: Final = 1.0


def complete_settings(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 - click's
    """Return the names of settings, and of their sections."""

    from bus.settings.loading import SETTING_NAMES

    sections = {name.partition(".")[0] for name in SETTING_NAMES}
    return _beginning(incomplete, sections if "." not in incomplete else SETTING_NAMES)


def complete_types(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 - click's
    """Return message types: the built-in ones, and those of the log."""
    from bus.vocabulary import BUILT_IN

    return _beginning(incomplete, BUILT_IN.names() | _types(ctx, "message"))


def complete_dead_types(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 - click's
    """Return the message types of the log that have a topic for dead letters."""
    return _beginning(incomplete, _types(ctx, "dlq"))


def complete_topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 - click's
    """Return topics and message types of the log."""
    return _beginning(incomplete, _topics(ctx) | _types(ctx, "message"))


def complete_groups(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 - click's
    """Return the groups of the log."""

    async def look(transport: Transport) -> Iterable[str]:
        from bus.topics.namespace_groups import NamespaceGroups

        groups = NamespaceGroups(transport.admin, _settings(ctx).bus.namespace)
        return [group.name for group in await groups.infos()]

    return _beginning(incomplete, _read(ctx, look))


def _topics(ctx: click.Context) -> set[str]:
    async def look(transport: Transport) -> Iterable[str]:
        return await transport.admin.topics()

    return _read(ctx, look)


def _types(ctx: click.Context, kind: str) -> set[str]:
    from bus.topics.names import read_topic

    names = [name for topic in _topics(ctx) if (name := read_topic(topic)) is not None]
    return {name.message_type for name in names if name.kind == kind and name.message_type}


def _read(ctx: click.Context, look: Callable[[Transport], Awaitable[Iterable[str]]]) -> set[str]:
    """Return the result of *look* in the log that the command line names so far; empty if there is none or it is
    slow."""
    try:
        settings = _settings(ctx)
        if not _is_there(settings.bus.url):
            return set()
        return set(asyncio.run(asyncio.wait_for(_opened(settings, look), _PATIENCE_S)))
    except Exception:  # noqa: BLE001 - nothing may come between a user and the prompt
        return set()


def _settings(ctx: click.Context) -> Settings:
    from bus.settings import loading
    from bus.telemetry import logs

    flags = {name: ctx.params.get(name) for name in ("bus", "namespace")}
    settings = loading.load_project(flags=flags, env=os.environ, file=ctx.params.get("config")).settings
    logs.configure("error", settings.log.format)
    return settings


async def _opened(settings: Settings, look: Callable[[Transport], Awaitable[Iterable[str]]]) -> list[str]:
    from bus.transports import open_configured

    transport = open_configured(settings)
    try:
        return [*await look(transport)]
    finally:
        await transport.close()


def _is_there(url: str) -> bool:
    return url.startswith(_SQLITE) and Path(unquote(url.removeprefix(_SQLITE))).is_file()


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete) and name.isprintable() and "," not in name)
