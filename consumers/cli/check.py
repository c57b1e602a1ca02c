"""`sealbus check [MODULE:APP]...`: find mistakes before a deployment. `consumers.operations.checks` judges."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from bus.clock import SystemClock
from bus.nearest import nearest
from bus.settings import loading
from bus.telemetry.terminal import printable
from bus.trust.keys.trusted_directory import trusted_directory
from bus.trust.opening import ALLOW_ALL
from bus.trust.policy.check import FINDING_CODES
from bus.trust.policy.reading import read_policy
from consumers.cli.exit_codes import FAILED
from consumers.cli.io.output import Listing, VerbResult
from consumers.cli.io.parameter_types import OneOf
from consumers.cli.io.printing import print_json
from consumers.cli.io.progress import Progress
from consumers.cli.session import CommandSession, gathered, verb
from consumers.cli.shell import Command
from consumers.operations.checks.files import findings_of_files
from consumers.operations.checks.findings import AREAS, GRAVITIES, OTHER_CHECKS, CheckFinding
from consumers.operations.checks.gathering import (
    counted,
    is_own,
    lint_findings,
    own_types,
)
from consumers.operations.checks.recorded import findings_of_recorded
from consumers.operations.checks.sarif import sarif_of
from consumers.operations.checks.type_findings import schema_findings
from consumers.operations.lint.app_checks import lint_app
from consumers.operations.lint.checklist import ChecklistAnswer, checklist
from consumers.operations.lint.findings import CHECKS

if TYPE_CHECKING:
    from bus.settings.schema import Settings
    from consumers.app.app import App

__all__ = ["check"]

_SCHEMAS: Final = "schemas"


class _CheckOptions(msgspec.Struct, frozen=True, kw_only=True):
    targets: tuple[str, ...]
    only: tuple[str, ...]
    ignore: tuple[str, ...]
    fail_on: str
    recorded: bool
    accept_new_values: str | None
    schemas: Path | None
    checklist: bool


def _areas(ctx: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    kind = OneOf(AREAS)
    return tuple(kind.convert(name, parameter, ctx) for text in value for name in text.split(",") if name)


@click.command(cls=Command)
@click.argument("targets", metavar="[MODULE:APP]...", nargs=-1)
@click.option("--only", multiple=True, metavar="AREA,...", callback=_areas, help=f"Only these: {', '.join(AREAS)}.")
@click.option("--ignore", metavar="CHECK", multiple=True, help="Leave out findings of this check; repeatable.")
@click.option(
    "--fail-on",
    type=OneOf(["error", "warning", "note", "never"]),
    default="warning",
    show_default=True,
    help="The least grave level that gives exit code 1.",
)
@click.option("--recorded", is_flag=True, help="Also judge the messages that are in the log by the types of now.")
@click.option(
    "--accept-new-values", metavar="WHY", help="Take new enum values as minor changes: you checked the readers."
)
@click.option(
    "--schemas",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="The folder of `sealbus type export`.  [default: schemas, beside sealbus.toml]",
)
@click.option("--checklist", is_flag=True, help="Answer the fifteen questions of a protocol instead.")
@verb(CheckFinding, ChecklistAnswer, forms=("sarif",))
@gathered(_CheckOptions)
async def check(session: CommandSession, options: _CheckOptions) -> VerbResult | int:
    """Find mistakes in code, schemas, settings, policy, keys and workflow files. Needs no bus.

    It finds everything itself: the apps, policy and keys of sealbus.toml, and beside it schemas/ and workflows/*.json.
    What is not there is not looked at, and the last line says so. Each finding has its location, its harm and its fix;
    `-o sarif` is for code hosts and editors.

    \b
    types      a changed schema without the version it requires; --recorded: messages that would be refused
    lint       what goes wrong between agents although messages are valid: free-form status, hard-coded recipients,
               effects without a key, untrusted text used as it is, ...
    policy     rules with no effect, contradictions, unknown names
    keys       files, rights and dates
    doors      the gateway's credentials beside keys, policy, retention and apps

    \b
    Examples:
      sealbus check
      sealbus check desk.agent:app --only types,lint
      sealbus check --recorded --bus kafka://kafka:9092
      sealbus check --accept-new-values "both readers map unknown values"
      sealbus check -o sarif > check.sarif

    \b
    Exit codes: 0 no finding of --fail-on or worse, 1 some, 78 settings, keys or a policy that cannot be read.
    """
    loaded = session.load()
    apps = session.apps(options.targets)
    settings = session.settings(apps)
    from consumers.gateway.door_findings import DOOR_CHECKS

    known_checks = {*CHECKS, *FINDING_CODES, *OTHER_CHECKS, *DOOR_CHECKS}
    for name in options.ignore:
        if name not in known_checks:
            hint = nearest(name, known_checks) or f"; there are {', '.join(sorted(known_checks))}"
            raise click.BadParameter(f"no check {name!r}{hint}", param_hint="--ignore")
    if options.checklist:
        return _checklist(settings, apps)
    looked: list[str] = []
    found: list[CheckFinding] = []
    areas = options.only or AREAS
    if "settings" in areas:
        looked.append(f"{len(loading.describe(loaded))} settings")
    if "types" in areas:
        kinds = own_types(apps)
        schemas = _home(session) / _SCHEMAS if options.schemas is None else options.schemas
        accepted = options.accept_new_values is not None
        found += schema_findings(kinds, schemas, today=datetime.now(UTC).date(), accept_new_values=accepted)
        looked.append(f"{len(kinds)} types")
    found += lint_findings(settings, apps) if "lint" in areas else ()
    if options.recorded:
        found += await _recorded(session, settings, apps, looked, areas)
    for findings, what in findings_of_files(
        settings, apps, session.types(apps), _home(session), areas, clock=SystemClock()
    ):
        looked.append(what)
        found += findings
    if "doors" in areas:
        found += _of_doors(session, settings, apps, looked, is_asked="doors" in options.only)
    known = sorted(
        (one for one in found if one.check not in options.ignore),
        key=lambda one: (-GRAVITIES.index(one.level), one.area, one.location),
    )
    _print(session, known)
    session.note(
        f"{counted(known)}; looked at {', '.join([*looked, f'{len(apps)} apps'])}{_not_looked(settings, areas)}"
    )
    if options.fail_on == "never":
        return 0
    worst = GRAVITIES.index(options.fail_on)
    return FAILED if any(GRAVITIES.index(one.level) >= worst for one in known) else 0


def _home(session: CommandSession) -> Path:
    """Return the folder of sealbus.toml, without one the current folder."""
    file = session.load().file
    return Path.cwd() if file is None else file.parent


def _not_looked(settings: Settings, areas: Sequence[str]) -> str:
    missing = []
    if "policy" in areas and not settings.policy.file:
        missing.append("policy (policy.file is not set)")
    if "keys" in areas and not settings.trust.keys:
        missing.append("trusted keys (trust.keys is not set)")
    return f"; not looked at: {', '.join(missing)}" if missing else ""


def _of_doors(
    session: CommandSession, settings: Settings, apps: Sequence[App], looked: list[str], *, is_asked: bool
) -> list[CheckFinding]:
    """Judge the credentials of the gateway; without --only doors not where there is no file of them."""
    from consumers.gateway.door_findings import DoorSurroundings, door_findings
    from consumers.gateway.doors import doors_file

    file = doors_file(None, _home(session))
    if not is_asked and not file.exists():
        return []
    has_policy = settings.policy.file not in ("", ALLOW_ALL)
    around = DoorSurroundings(
        settings=settings,
        keys=trusted_directory(settings, None) if settings.trust.keys else None,
        rules=read_policy(Path(settings.policy.file)) if has_policy else None,
        apps=apps,
        now_ms=SystemClock().now_ms(),
    )
    found, count = door_findings(file, around)
    looked.append(f"{count} credentials of {file.name}")
    return [
        CheckFinding(
            area="doors", check=each.check, level=each.level, location=each.location, what=each.what, fix=each.fix
        )
        for each in found
    ]


async def _recorded(
    session: CommandSession, settings: Settings, apps: Sequence[App], looked: list[str], areas: Sequence[str]
) -> list[CheckFinding]:
    async with session.open(settings) as transport:
        with Progress(None, unit="messages", alone=True) as progress:
            read, types, traffic = await findings_of_recorded(
                transport, settings, apps, session.types(apps), on_progress=lambda count, _: progress.show(0, count)
            )
    looked.append(f"{read} recorded messages")
    return [*(types if "types" in areas else ()), *(traffic if "lint" in areas else ())]


def _print(session: CommandSession, found: Sequence[CheckFinding]) -> None:
    if session.form == "sarif":
        click.echo(msgspec.json.format(msgspec.json.encode(sarif_of(found)), indent=2).decode())
        return
    for one in found:
        if session.as_json:
            print_json(one)
            continue
        click.echo(f"{one.level}: {printable(one.location)}: {printable(one.what)}  [{one.check}]")
        for heading, text in (("why", one.why), ("fix", one.fix)):
            if text:
                click.echo(f"    {heading}: {printable(text)}")


def _checklist(settings: Settings, apps: Sequence[App]) -> VerbResult:
    """Return the answers to fifteen questions about a protocol."""
    if not apps:
        raise click.UsageError("the checklist is about an app: name it, MODULE:APP")
    answers = [
        answer
        for app in apps
        for answer in checklist(
            app.declaration,
            lint_app(app.declaration, own=is_own, high_risk=settings.trust.high_risk, worker=settings.worker),
        )
    ]
    wrong = any(each.answer == "no" for each in answers)
    columns = {"": "answer", "QUESTION": "question", "BECAUSE": "because"}
    return Listing(answers, columns, code=FAILED if wrong else 0)
