"""Claude Code's settings files: writing the hook into one, and what an operator still has to do.

Owns where these files are, and that everything else in one stays.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click
import msgspec

from bus.errors import ConfigurationError
from bus.settings.schema import Settings
from bus.telemetry.terminal import printable
from bus.trust.opening import ALLOW_ALL
from bus.trust.policy.reading import read_policy
from bus.whole_file import write_whole
from consumers.gateway.claude_code import (
    HOOK_PATH,
    HOOK_VARIABLE,
    MODE_VARIABLE,
    READING_TOOLS,
    WrongHookInput,
    hook_entry,
    settings_with,
)
from consumers.gateway.permits import PERMITS_AGENT, PERMITS_POLICY
from consumers.web.listening import is_loopback

__all__ = ["WrittenHook", "check_gateway_url", "managed_file", "steps_left", "write_hook"]

_MANAGED: Final = {
    "darwin": "/Library/Application Support/ClaudeCode/managed-settings.json",
    "win32": r"C:\Program Files\ClaudeCode\managed-settings.json",
}
_MANAGED_ELSEWHERE: Final = "/etc/claude-code/managed-settings.json"
_READABLE: Final = 0o644


class WrittenHook(msgspec.Struct, frozen=True, kw_only=True):
    """The hook as it is in a file of settings."""

    file: str
    url: str
    unasked: tuple[str, ...]
    """Tools that nobody is asked about."""
    is_changed: bool


def managed_file() -> Path:
    """Return the managed settings of this operating system, which Claude Code puts above all others."""
    return Path(_MANAGED.get(sys.platform, _MANAGED_ELSEWHERE))


def check_gateway_url(url: str) -> None:
    """Raise click.UsageError for a *url* to which no token should go."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise click.UsageError("--url is the gateway's address, such as https://bus.example.org")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise click.UsageError(f"--url: the token would go to {printable(parts.hostname)} unencrypted: use https")


def write_hook(file: Path, url: str) -> WrittenHook:
    """Write the hook that asks the gateway at *url* into *file*. Raises ConfigurationError; nothing is changed then."""
    before = _read(file)
    try:
        after = settings_with(before, hook_entry(url))
    except WrongHookInput as wrong:
        raise ConfigurationError(f"{file}: {wrong}") from None
    if after != before:
        _write(file, json.dumps(after, indent=2, ensure_ascii=False) + "\n")
    return WrittenHook(
        file=str(file), url=url.rstrip("/") + HOOK_PATH, unasked=READING_TOOLS, is_changed=after != before
    )


def steps_left(settings: Settings, token_file: Path | None) -> Sequence[str]:
    """Return what an operator does besides: token, keys, policy, topics."""
    token = shlex.quote(str(token_file or "hook.token"))
    add = f"--agent claude@laptop --to {PERMITS_AGENT} --type tool.call --door hook --token-file {token}"
    lines = [
        "",
        "left to do, where the gateway runs:",
        f"  sealbus key new {PERMITS_AGENT}",
        f"  sealbus door add claude-code {add}",
        f"  sealbus topic apply {PERMITS_AGENT}",
        "  sealbus serve gateway",
        "where Claude Code starts:",
        f'  export {HOOK_VARIABLE}="$(cat {token})"',
        f"  export {MODE_VARIABLE}=print          (for `claude -p` alone)",
    ]
    if _lacks_permits(settings):
        file = printable(settings.policy.file or "policy.toml")
        lines += [
            f"in the policy, {file}, beside a person who may approve tool.call:",
            *(f"  {line}" if line else "" for line in PERMITS_POLICY.strip().splitlines()),
        ]
    return lines


def _lacks_permits(settings: Settings) -> bool:
    if settings.policy.file in ("", ALLOW_ALL):
        return True
    try:
        return all(row.id != PERMITS_AGENT for row in read_policy(Path(settings.policy.file)).rows)
    except ConfigurationError:
        return True


def _read(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text("utf-8-sig")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from error
    if not text.strip():
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{file} is not valid JSON, so nothing was written: {error}") from None
    if not isinstance(found, dict):
        raise ConfigurationError(f"{file} must be a JSON object; nothing was written")
    return found


def _write(file: Path, text: str) -> None:
    """Write *text* whole or not at all; a link stays one."""
    target = file.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error.strerror}") from error
    write_whole(target, text.encode(), mode=_READABLE, keeps_rights=True)
