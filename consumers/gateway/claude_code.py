"""Claude Code's PreToolUse hook: its input, its answer, and the entry of its settings. Pure.

Owns the forms of another program (https://code.claude.com/docs/en/hooks) and which of its tools need nobody's consent.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from bus.protocol import canonical
from bus.redaction import cut
from bus.telemetry.terminal import printable

__all__ = [
    "HOOK_PATH",
    "HOOK_VARIABLE",
    "HookDecision",
    "HookInput",
    "MODE_HEADER",
    "MODE_VARIABLE",
    "READING_TOOLS",
    "SessionMode",
    "WrongHookInput",
    "hook_answer",
    "hook_entry",
    "mode_of",
    "parse_hook_input",
    "quoted_reason",
    "settings_with",
]

HOOK_PATH: Final = "/hooks/claude-code"
MODE_HEADER: Final = "x-sealbus-session"
HOOK_VARIABLE: Final = "SEALBUS_HOOK_TOKEN"
MODE_VARIABLE: Final = "SEALBUS_HOOK_SESSION"
READING_TOOLS: Final = ("Read", "Grep", "Glob", "LS", "NotebookRead", "TodoWrite")
"""Tools that change nothing and send nothing out of the machine. WebSearch and WebFetch send what they are given."""

HookDecision = Literal["allow", "deny", "ask", "defer"]
SessionMode = Literal["terminal", "print"]

_EVENT: Final = "PreToolUse"
_TIMEOUT_S: Final = 60
"""Longer than the gateway takes: 40 s for the person, and what it takes to close an approval."""
_MAX_REASON: Final = 500
_MAX_ANSWER: Final = 1_000
_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_KEEPS_ASKING: Final = frozenset({"default", "plan", "dontAsk"})
"""Permission modes in which a `defer` that Claude Code ignores still runs nothing that its rules do not allow."""


class WrongHookInput(Exception):  # noqa: N818 - a verdict
    """A body is not the input of a PreToolUse hook."""


class HookInput(msgspec.Struct, frozen=True, kw_only=True):
    """What Claude Code sends before it calls a tool; members that nobody here needs are left out."""

    session_id: Annotated[str, Meta(min_length=1, max_length=256)]
    hook_event_name: str
    tool_name: str
    tool_use_id: Annotated[str, Meta(min_length=1, max_length=256)]
    tool_input: dict[str, Any] = {}
    permission_mode: str = "default"

    @property
    def key(self) -> str:
        """The idempotency key of the call."""
        named = canonical.encode([self.session_id, self.tool_use_id])
        return f"hook-{hashlib.sha256(named).hexdigest()[:40]}"

    @property
    def may_be_deferred(self) -> bool:
        """Whether Claude Code still asks its own rules where it ignores a `defer`."""
        return self.permission_mode in _KEEPS_ASKING


def parse_hook_input(body: bytes) -> HookInput:
    """Return the input in *body*. Raises WrongHookInput, whose text has nothing of the body."""
    try:
        found = msgspec.json.decode(body, type=HookInput)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WrongHookInput(printable(cut(str(error), 200))) from None
    if found.hook_event_name != _EVENT:
        raise WrongHookInput(f"hook_event_name must be {_EVENT}")
    if not (found.session_id.isprintable() and found.tool_use_id.isprintable()):
        raise WrongHookInput("session_id and tool_use_id must be printable")
    if _TOOL_NAME.fullmatch(found.tool_name) is None:
        raise WrongHookInput("tool_name must be 1 to 64 of A-Z a-z 0-9 '.' '_' '-'")
    return found


def mode_of(header: str | None) -> SessionMode:
    """Return how the session runs, by the header that the entry writes. Raises WrongHookInput.

    Its input does not tell. A variable that is not set comes empty, or as its own name.
    """
    if not header or header.startswith("$") or header == "terminal":
        return "terminal"
    if header == "print":
        return "print"
    raise WrongHookInput(f"{MODE_VARIABLE} must be terminal or print")


def quoted_reason(text: str) -> str:
    """Return what somebody else wrote, between quotation marks, cut, and without control characters."""
    return '"' + printable(cut(" ".join(text.split()), _MAX_REASON)).replace('"', "'") + '"'


def hook_answer(decision: HookDecision, reason: str) -> bytes:
    """Return the body of the answer. It never changes the input of the tool."""
    said = {
        "hookEventName": _EVENT,
        "permissionDecision": decision,
        "permissionDecisionReason": f"sealbus: {printable(cut(reason, _MAX_ANSWER))}",
    }
    return msgspec.json.encode({"hookSpecificOutput": said})


def hook_entry(url: str) -> dict[str, Any]:
    """Return the entry of PreToolUse that asks the gateway at *url* about every tool but those that only read."""
    return {
        "matcher": f"^(?!(?:{'|'.join(READING_TOOLS)})$).*",
        "hooks": [
            {
                "type": "http",
                "url": url.rstrip("/") + HOOK_PATH,
                "timeout": _TIMEOUT_S,
                "onFailure": "block",
                "headers": {
                    "Authorization": f"Bearer ${HOOK_VARIABLE}",
                    "X-Sealbus-Session": f"${MODE_VARIABLE}",
                },
                "allowedEnvVars": [HOOK_VARIABLE, MODE_VARIABLE],
            }
        ],
    }


def settings_with(settings: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return Claude Code's *settings* with *entry* for PreToolUse, in the place of an earlier one of ours.

    Raises WrongHookInput where they have another form.
    """
    hooks = settings.get("hooks", {})
    if not isinstance(hooks, dict) or not isinstance(before := hooks.get(_EVENT, []), list):
        raise WrongHookInput(f"hooks must be an object, and hooks.{_EVENT} a list")
    after: list[Any] = []
    is_there = False
    for each in before:
        if not _is_ours(each):
            after.append(each)
        elif not is_there:
            after.append(dict(entry))
            is_there = True
    if not is_there:
        after.append(dict(entry))
    return {**settings, "hooks": {**hooks, _EVENT: after}}


def _is_ours(entry: Any) -> bool:
    hooks = entry.get("hooks") if isinstance(entry, dict) else None
    return (
        isinstance(hooks, list)
        and len(hooks) == 1
        and isinstance(hooks[0], dict)
        and hooks[0].get("type") == "http"
        and str(hooks[0].get("url", "")).endswith(HOOK_PATH)
    )
