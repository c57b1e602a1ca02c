"""What `sealbus dev` says first: what to open, what to type, and what is missing. Pure, but for reading the project."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bus.payloads.examples import example_of
from consumers.delivery.declaration import Declaration, HandlerDeclaration

__all__ = ["Surroundings", "first_lines", "unset_variables"]

_EXAMPLE: Final = ".env.example"
_VARIABLE: Final = re.compile(r"(?:export +)?([A-Za-z_][A-Za-z0-9_]{0,99})=(.*)")
_TASK: Final = "task.request"


class Surroundings(NamedTuple):
    """What there is beside the apps."""

    console: str | None
    """The address of the console; empty where it chooses its port, None without one."""
    person: str
    """Who decides in the console; empty without one."""
    people: Sequence[str]
    """Who can decide on this machine."""
    verifies: bool
    """Whether keys and a policy are set: a decision counts only if it is verified."""
    unset: Sequence[str] = ()
    """Variables that the project names and nobody has set."""
    gateway: str | None = None
    """The address of the gateway; None without one."""
    token_file: str = ""
    """Where the token of the gateway is."""
    gateway_lacks: str = ""
    """What keeps the gateway shut."""


def first_lines(apps: Sequence[Declaration], around: Surroundings) -> Iterator[str]:
    """Yield what to open, what to type, and what is missing."""
    if around.console:
        yield f"open:     {around.console}"
    for app in apps:
        if (line := _first_message(app)) is not None:
            yield line
            break
    yield from _gateway_lines(apps, around)
    asks = any(_asks(handler) for app in apps for handler in app.subscriptions.values())
    if asks and around.people:
        where = f"{around.console}approvals as {around.person}" if around.console and around.person else ""
        yield f"decide:   {where}{', or: ' if where else ''}sealbus approval list"
    verifies = around.verifies or all(app.verifier is not None for app in apps)
    yield from (f"missing:  {each}" for each in _missing(around._replace(verifies=verifies), asks=asks))


def _first_message(app: Declaration) -> str | None:
    types = sorted(name for name in app.subscriptions if name != "task.cancel")
    if _TASK in types:
        return f'ask:      sealbus ask {app.agent.id} "your task in words"    (--chat keeps a conversation)'
    return f"send:     sealbus type show {types[0]} -o example | sealbus publish {types[0]}" if types else None


def _gateway_lines(apps: Sequence[Declaration], around: Surroundings) -> Iterator[str]:
    if around.gateway is None:
        return
    body = next((body for app in apps if (body := _first_body(app)) is not None), None)
    if body is not None:
        asked = f"-u :$(cat {around.token_file}) -H 'Prefer: wait=30' -d '{body}'"
        yield f"curl:     curl -s {around.gateway}/tasks {asked}"
    yield (
        f"claude:   claude mcp add sealbus -e SEALBUS_TOKEN_FILE=$PWD/{around.token_file} -- sealbus serve mcp "
        f"--url {around.gateway}"
    )


def _first_body(app: Declaration) -> str | None:
    """Return what `POST /tasks` takes for *app*, as JSON that a shell leaves as it is in single quotes."""
    types = sorted(name for name in app.subscriptions if name != "task.cancel")
    if not types:
        return None
    asked: dict[str, object] = {"to": app.agent.id}
    if _TASK in types:
        asked["goal"] = "your task in words"
    else:
        asked |= {"message_type": types[0], "data": example_of(app.subscriptions[types[0]].kind)}
    return json.dumps(asked).replace("'", "\\u0027")


def _asks(handler: HandlerDeclaration) -> bool:
    return handler.asks or handler.approval is not None


def _missing(around: Surroundings, *, asks: bool) -> Iterator[str]:
    yield from around.unset
    if asks and not around.verifies:
        yield "decisions must be verified: set trust.keys and policy.file, as `sealbus new NAME --with keys` does"
    elif asks and not around.people:
        yield "a person who can decide here: `sealbus key new PERSON`, for a human of the policy"
    if around.console is None:
        yield "the console: pip install 'sealbus[console]'"
    if around.gateway_lacks:
        yield f"the gateway: {around.gateway_lacks}"


def unset_variables(folder: Path, environment: Mapping[str, str]) -> list[str]:
    """Return what is not set of the variables that `.env.example` in *folder* names without a value."""
    wanted = [name for name, value in _variables(folder / _EXAMPLE) if not value and not environment.get(name)]
    given = {name for name, value in _variables(folder / ".env") if value}
    return [
        f"{name} is in .env, which is not loaded: set -a && . ./.env && set +a"
        if name in given
        else f"{name} is not set ({_EXAMPLE})"
        for name in wanted
    ]


def _variables(file: Path) -> Iterator[tuple[str, str]]:
    try:
        text = file.read_text("utf-8", "replace")
    except OSError:
        return
    for line in text.splitlines():
        if (found := _VARIABLE.match(line.strip())) is not None:
            yield found[1], found[2].strip().strip("'\"")
