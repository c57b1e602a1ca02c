"""`sealbus trust`: how far a message of the log can be trusted, and what lowered its level.

Owns the options and the output. `bus.gates` judges the message, `bus.trust.admission` says its labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from bus import gates
from bus.clock import SystemClock
from bus.errors import ContractError
from bus.payloads.payload_types import raised_risk
from bus.protocol.identifiers import is_message_id
from bus.protocol.signatures import parse_signature
from bus.telemetry.terminal import printable
from bus.topics.names import read_topic
from bus.trust.admission import Admission, Party
from bus.trust.labels import LEAST_TRUSTED
from bus.trust.opening import keyless, open_trust
from consumers.cli.exit_codes import FAILED
from consumers.cli.interrupts import execute
from consumers.cli.io.printing import print_json
from consumers.cli.io.progress import Progress
from consumers.cli.session import (
    CommandSession,
    app_option,
    jwks_option,
    registry_of,
    whole_log_option,
    with_session,
)
from consumers.operations.lineage.log_search import ORIGINALS, StoredCopy, find_lineage
from consumers.operations.survey.look_up import looked_in_words, moment_of

if TYPE_CHECKING:
    from bus.payloads.payload_types import Registry
    from bus.protocol.sealing import Message
    from bus.settings.schema import Settings
    from bus.trust.opening import Trust

__all__ = ["trust"]


@click.group()
def trust() -> None:
    """Say how far messages can be trusted.

    \b
    Examples:
      sealbus trust explain 019b7a3c-4c00-7000-8000-000000000004
      sealbus trust explain 019b7a3c-4c00-7000-8000-000000000004 --jwks keys/ --policy policy.toml
    """


@trust.command()
@click.argument("message_id", metavar="MESSAGE_ID")
@jwks_option
@click.option(
    "--policy",
    "policy_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The policy with the trust levels of senders.  [default: policy.file]",
)
@whole_log_option
@app_option
@with_session
def explain(
    session: CommandSession,
    *,
    message_id: str,
    jwks: Path | None,
    policy_file: Path | None,
    whole_log: bool,
    targets: tuple[str, ...],
) -> int:
    """Show level, classification, tags and authority of a message, and the steps that lowered its level.

    The message is verified first: its bytes, hashes and seal, its proof chain, and with keys its signature. For an
    invalid message nothing else is shown. If different messages have the same id, each is explained.

    \b
    Examples:
      sealbus trust explain 019b7a3c-4c00-7000-8000-000000000004
      sealbus trust explain 019b7a3c-4c00-7000-8000-000000000004 --jwks keys/ --policy policy.toml --output json

    \b
    Exit codes: 0 it is valid, 1 it is not, 2 there is no such message.
    """
    if not is_message_id(message_id):
        raise click.BadParameter("is not 1 to 128 visible ASCII characters", param_hint="MESSAGE_ID")
    apps = session.apps(targets)
    settings = keyless(session.settings(apps, jwks=jwks, policy=policy_file))
    explainer = _Explainer(settings, registry_of(apps), open_trust(settings, "", clock=SystemClock()))
    namespace = settings.bus.namespace

    async def body(_: object) -> int:
        with Progress(None, unit="records", alone=True) as progress:
            async with session.open(settings) as transport:
                lineage = await find_lineage(
                    transport,
                    namespace,
                    message_id,
                    moment_ms=await moment_of(settings, message_id),
                    whole=whole_log,
                    on_progress=lambda read: progress.show(0, read),
                )
        copies = _distinct([copy for copy in lineage.copies if copy.message_id == message_id])
        if not copies:
            raise click.BadParameter(
                f"there is no message {message_id} in namespace {namespace}: "
                + looked_in_words(lineage.looked, message_id),
                param_hint="MESSAGE_ID",
            )
        found = [explainer.explain(copy) for copy in copies]
        for number, one in enumerate(found):
            if session.as_json:
                print_json(one)
            else:
                _print(one, is_first=number == 0)
        return 0 if all(one["holds"] for one in found) else FAILED

    return execute(body)


def _distinct(copies: Sequence[StoredCopy]) -> list[StoredCopy]:
    """Return one copy of each value, the topics of publishers first: there the append time is the message's own."""
    ordered = sorted(copies, key=lambda copy: copy.kind not in ORIGINALS)
    return list({copy.record.value: copy for copy in reversed(ordered)}.values())[::-1]


class _Explainer:
    """Judges the copies of a message by the keys and the policy of one reader."""

    def __init__(self, settings: Settings, registry: Registry, trusted: Trust) -> None:
        self._settings = settings
        self._registry = registry
        self._trusted = trusted
        party = Party(agent_id="", namespace=settings.bus.namespace, group="")
        now_ms = SystemClock().now_ms
        self._admission = Admission(party, verifier=trusted.verifier, policy=trusted.policy, now_ms=now_ms)
        # Nobody handles it here: what a reader may is not asked.
        self._without_rules = Admission(party, verifier=trusted.verifier, now_ms=now_ms)

    def explain(self, copy: StoredCopy) -> dict[str, Any]:
        """Return the explanation of *copy*."""
        stated = _described(copy) | {
            "signatures_checked": self._admission.has_keys,
            "policy": self._settings.policy.file or None,
        }
        try:
            message = self._judge(copy)
            self._without_rules.admit(
                message, self._registry.get(message.message_type), None, instructions_from=LEAST_TRUSTED
            )
        except ContractError as error:
            return stated | {"holds": False, "reason": error.reason, "detail": error.text, "pointer": error.pointer}
        labels = self._admission.labels(message)
        return stated | {
            "holds": True,
            "level": labels.level,
            "classification": labels.classification,
            "tags": sorted(labels.tags),
            "authority": dict(self._admission.authority(message)),
            "path": list(labels.path),
        }

    def _judge(self, copy: StoredCopy) -> Message:
        """Return the message in *copy*. Raises ContractError for one that no reader would believe."""
        if copy.fault is not None or copy.message is None:
            raise copy.fault or ContractError("is no message")
        topic = read_topic(copy.record.topic)
        typed = topic is not None and topic.kind == "message"
        case = gates.Case(
            record=copy.record,
            expected_type=topic.message_type if topic is not None and typed else msgspec.UNSET,
            key=copy.record.key,
            append_ms=copy.record.timestamp_ms,
            message=copy.message,
        )
        checks = gates.Checks(
            max_message_bytes=self._settings.publish.max_message_bytes,
            namespace=self._settings.bus.namespace,
            risk_of=lambda found: raised_risk(self._registry.get(found.message_type), self._settings.trust.high_risk),
            verifier=self._trusted.verifier,
        )
        verdict = gates.judge(case, checks, first="integrity", until="schema")
        if isinstance(verdict, gates.Failed):
            raise verdict.error
        return copy.message


def _described(copy: StoredCopy) -> dict[str, Any]:
    """Return the fields of *copy*, valid or not."""
    message = copy.message
    text = None if message is None else message.verification.signature
    signature = None if text is None else parse_signature(text)
    return {
        "message_id": copy.message_id,
        "message_type": None if message is None else message.message_type,
        "sender": None if message is None else message.metadata.sender.id,
        "kid": None if signature is None else signature.kid,
        "place": copy.place,
    }


def _print(one: dict[str, Any], *, is_first: bool) -> None:
    if not is_first:
        click.echo("\nanother message under the same id:")
    lines = [
        ("message", f"{one['message_id']}  {one['message_type'] or '-'}"),
        ("sender", one["sender"] or "-"),
        ("signed by", one["kid"] or "nobody"),
        ("place", one["place"]),
    ]
    if one["holds"]:
        authority = "; ".join(f"{name}: {_listed(value)}" for name, value in one["authority"].items())
        lines += [
            ("level", one["level"]),
            ("classification", one["classification"]),
            ("tags", ", ".join(one["tags"]) or "-"),
            ("authority", authority or "says nothing"),
        ]
    else:
        lines.append(("does not hold", f"{one['reason']}: {one['detail']}"))
    for name, text in lines:
        click.echo(f"{name:14}  {printable(str(text))}")
    if one["holds"]:
        click.echo("lowered by" if one["path"] else "nothing lowered its level")
        for number, step in enumerate(one["path"], 1):
            click.echo(f"  {number}. {printable(step)}")
    if not one["signatures_checked"]:
        click.echo("note: no keys were given, so its sender is not verified, and its level is only a claim")


def _listed(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
