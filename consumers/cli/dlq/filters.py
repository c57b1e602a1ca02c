"""The options that select dead letters, shared by the verbs of `sealbus dlq`.

Owns the options and their help; `consumers.deadletters.selection` owns the matching.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from bus.protocol.reasons import REASONS
from consumers.cli.io.known_names import complete_dead_types, complete_groups
from consumers.cli.io.parameter_types import MESSAGE_TYPE, PAST, OneOf
from consumers.deadletters.locations import parse_location
from consumers.deadletters.selection import Selection

__all__ = ["with_selection"]

_R = TypeVar("_R")
_PLAIN: Final = ("message_type", "group", "sender", "pointer", "cause", "since_ms", "until_ms")

_OPTIONS: Final = (
    click.option(
        "--type",
        "message_type",
        type=MESSAGE_TYPE,
        shell_complete=complete_dead_types,
        help="Only of this message type.",
    ),
    click.option("--group", shell_complete=complete_groups, help="Only of this group."),
    click.option(
        "--reason",
        "reasons",
        type=OneOf(sorted(REASONS)),
        metavar="REASON",
        multiple=True,
        help="Only with this reason; may be given more than once.",
    ),
    click.option("--sender", metavar="ID", help="Only from this sender."),
    click.option("--pointer", metavar="POINTER", help="Only where this field was refused, such as /data/cents."),
    click.option("--cause", metavar="ID", help="Only of this cause, as `sealbus dlq list --by cause` names it."),
    click.option(
        "--since",
        "since_ms",
        type=PAST,
        help="Dead since: 2h or 3d (ago), 2026-01-31, 2026-01-31T12:00:00Z.",
    ),
    click.option("--until", "until_ms", type=PAST, help="Dead until."),
    click.option(
        "--state",
        "states",
        type=OneOf(["open", "redriven", "parked", "dismissed"]),
        multiple=True,
        help="Only in this state; may be given more than once.",
    ),
)


def with_selection(function: Callable[..., _R]) -> Callable[..., _R]:
    """Give a command the filter options; it receives them as a Selection named *selection*.

    Arguments named `locations` become part of it.
    """

    @functools.wraps(function)
    def command(
        *args: Any, reasons: tuple[str, ...], states: tuple[str, ...], locations: tuple[str, ...] = (), **options: Any
    ) -> _R:
        chosen = {name: options.pop(name) for name in _PLAIN}
        for location in locations:
            parse_location(location)
        made = Selection(reasons=frozenset(reasons), states=frozenset(states), places=frozenset(locations), **chosen)
        return function(*args, selection=made, **options)

    wrapped: Callable[..., _R] = command
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped
