"""`sealbus types list|show|example|export|check`: message types, their schemas, and how they change.

Owns the verbs and their output. The types are in `bus.vocabulary` and the user's app, examples in
`bus.payloads.examples`, published schemas and what a change asks for in `bus.schemas`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from bus.errors import ContractError, UnknownTypeError
from bus.nearest import nearest
from bus.payloads.envelope_terms import NEEDED, ByField
from bus.payloads.examples import example_of
from bus.payloads.payload_types import PayloadType, Registry
from bus.schemas.field_forms import field_rows
from bus.schemas.json_schema import schema_of
from bus.schemas.review import TypeReview, review_types
from bus.schemas.schema_folder import SchemaFolder
from bus.schemas.versions import SchemaVersion
from bus.vocabulary import family_of, older_types
from consumers.cli.exit_codes import FAILED
from consumers.cli.io.known_names import complete_types
from consumers.cli.io.printing import encode_json, print_json, print_table
from consumers.cli.session import CommandSession, app_option, registry_of, with_session
from consumers.cli.shell import VerbGroup
from consumers.cli.types import recorded as recorded_messages

__all__ = ["types"]

_FLAGS = {
    "task_id": "--task",
    "idempotency_key": "--idempotency-key",
    "key": "--key",
    "correlation_id": "--correlation",
}


@click.group(cls=VerbGroup)
def types() -> None:
    """Show message types, export their schemas, and check how they change.

    The built-in types are always there; --app adds your own.

    \b
    Examples:
      sealbus types list --app agents:app
      sealbus types show task.request
      sealbus types example research.request | sealbus publish research.request
      sealbus types export schemas/ --app agents:app
      sealbus types check --against schemas/ --app agents:app
    """


@types.command("list")
@app_option
@click.option("--family", help="Only the built-in types of one family, such as task or review.")
@with_session
def list_(session: CommandSession, targets: tuple[str, ...], family: str | None) -> int:
    """List message types with version, risk, performative and fields; optional fields have a question mark.

    \b
    Examples:
      sealbus types list
      sealbus types list --family task
      sealbus types list --app agents:app --output json
    """
    registry = registry_of(session.apps(targets))
    names = sorted(name for name in registry.names() if family is None or family_of(name) == family)
    if family is not None and not names:
        families = sorted({found for name in registry.names() if (found := family_of(name)) is not None})
        raise click.BadParameter(
            f"there is no family {family!r}{nearest(family, families)}; there are {', '.join(families)}",
            param_hint="--family",
        )
    kinds = [kind for name in names if (kind := registry.get(name)) is not None]
    if session.as_json:
        for kind in kinds:
            fields = {field.encode_name: field.required for field in kind.fields}
            print_json(
                {
                    "type": kind.name,
                    "version": kind.version,
                    "risk": kind.risk,
                    "performative": _spoken(kind),
                    "needs": list(kind.terms.required_options),
                    "ttl_s": kind.terms.ttl_s,
                    "side_effect": kind.side_effect,
                    "family": family_of(kind.name),
                    "fields": list(fields),
                    "required": [name for name, needed in fields.items() if needed],
                }
            )
    else:
        print_table(
            ("TYPE", "VERSION", "RISK", "PERFORMATIVE", "FIELDS"),
            [(kind.name, kind.version, kind.risk, _spoken(kind) or "-", _listed(kind)) for kind in kinds],
        )
    return 0


@types.command()
@click.argument("name", metavar="TYPE", shell_complete=complete_types)
@app_option
@click.option("--schema", is_flag=True, help="Print the JSON Schema alone.")
@with_session
def show(session: CommandSession, name: str, targets: tuple[str, ...], schema: bool) -> int:
    """Show a message type: what it is for, its fields and rules, and an example of its data.

    \b
    Examples:
      sealbus types show task.request
      sealbus types show task.request --schema > task.request.json
      sealbus types show job.run --app agents:app --output json
    """
    kind = _found(name, registry_of(session.apps(targets)))
    described, example = schema_of(kind), example_of(kind)
    if session.as_json:
        print_json(
            {"type": kind.name, "version": kind.version, "risk": kind.risk, "schema": described, "example": example}
        )
        return 0
    if schema:
        click.echo(msgspec.json.format(encode_json(described), indent=2).decode())
        return 0
    click.echo(f"{kind.name} {kind.version}, risk {kind.risk}: {_doc(kind)}")
    for line in _terms(kind):
        click.echo(f"  {line}")
    click.echo()
    print_table(("FIELD", "FORM", "DEFAULT", "MEANING"), field_rows(kind))
    if kind.rules:
        click.echo("\nRules:")
        for rule in kind.rules:
            click.echo(f"  {rule.text}")
    if example is not None:
        click.echo(f"\nExample:\n  echo '{_shell(encode_json(example).decode())}' | {_publish(kind, targets)}")
    return 0


@types.command("example")
@click.argument("name", metavar="TYPE", shell_complete=complete_types)
@app_option
@with_session
def example_(session: CommandSession, name: str, targets: tuple[str, ...]) -> int:
    """Print one line of JSON that `sealbus publish TYPE` accepts.

    \b
    Examples:
      sealbus types example research.request | sealbus publish research.request
      sealbus types example job.run --app agents:app > job.json
    """
    kind = _found(name, registry_of(session.apps(targets)))
    example = example_of(kind)
    if example is None:
        raise ContractError(f"no example of {name} could be generated: give its class one, as __example__")
    print_json(example)
    return 0


@types.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.argument("names", metavar="[TYPE]...", nargs=-1, shell_complete=complete_types)
@app_option
@click.option("--typescript", is_flag=True, help="Write TypeScript types and zod validators as well.")
@with_session
def export(
    session: CommandSession, folder: Path, names: tuple[str, ...], targets: tuple[str, ...], typescript: bool
) -> int:
    """Write the JSON Schema of every type to DIR/TYPE/VERSION.json; published files never change.

    If a version exists with another content, the export is refused: give the type a new version. Without TYPE every
    type is written, the built-in ones, too.

    \b
    Examples:
      sealbus types export schemas/ --app agents:app
      sealbus types export schemas/ job.run --app agents:app
      sealbus types export schemas/ --typescript

    \b
    Exit codes: 0 written, 1 a published version would have changed.
    """
    kinds = _selected(names, registry_of(session.apps(targets)), with_older=True)
    registry, refused, fresh = SchemaFolder(folder), 0, 0
    for kind in kinds:
        try:
            is_new = registry.publish(kind.name, SchemaVersion.of(kind.version), schema_of(kind))
        except ContractError as error:
            refused += 1
            click.echo(f"error: {error}", err=True)
            continue
        fresh += is_new
        if session.as_json:
            print_json({"type": kind.name, "version": kind.version, "written": is_new})
    if typescript:
        from bus.schemas.typescript import write_package

        write_package(kinds, folder)
    click.echo(f"{fresh} written to {folder}, {len(kinds) - fresh - refused} as they were, {refused} refused", err=True)
    return FAILED if refused else 0


@types.command()
@click.argument("names", metavar="[TYPE]...", nargs=-1, shell_complete=complete_types)
@click.option(
    "--against",
    metavar="DIR",
    default="schemas",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder that `types export` writes.",
)
@click.option("--reviewed", metavar="REASON", help="New enum values were looked at: take them as minor changes.")
@click.option(
    "--recorded",
    metavar="BUS",
    help="Also check the messages of these types in a log, such as sqlite:///bus.db.",
)
@app_option
@with_session
def check(
    session: CommandSession,
    *,
    names: tuple[str, ...],
    against: Path,
    reviewed: str | None,
    recorded: str | None,
    targets: tuple[str, ...],
) -> int:
    """Compare types with their published schemas, and show the version that each change requires.

    A new optional field is minor. A field that is removed, renamed, newly required or of another type is major. A new
    value of an enumeration has to be reviewed. A version that is too low is an error.

    \b
    Examples:
      sealbus types check --app agents:app
      sealbus types check --against schemas/ --reviewed "both readers map unknown values" --app agents:app
      sealbus types check --recorded kafka://localhost:9092 --app agents:app

    \b
    Exit codes: 0 every change has the version it requires, 1 at least one has not, or a recorded message is refused.
    """
    if not against.is_dir():
        raise click.BadParameter(
            f"there is no folder {against}: `sealbus types export {against}` writes it, once for each release",
            param_hint="--against",
        )
    apps = session.apps(targets)
    kinds = _selected(names, registry_of(apps))
    today = datetime.now(UTC).date()
    findings = review_types(kinds, SchemaFolder(against), today=today, reviewed=reviewed is not None)
    _print_findings(session, findings)
    failed = any(finding.verdict in ("broken", "review") for finding in findings)
    if recorded is not None:
        subscriptions = {name: each for app in reversed(apps) for name, each in app.subscriptions.items()}
        failed = recorded_messages.check_recorded(session, recorded, kinds, subscriptions) or failed
    return FAILED if failed else 0


def _print_findings(session: CommandSession, findings: tuple[TypeReview, ...]) -> None:
    if session.as_json:
        for finding in findings:
            print_json(msgspec.to_builtins(finding))
        return
    listed = [finding for finding in findings if finding.verdict != "ok" or finding.changes]
    rows: list[tuple[str, ...]] = []
    for finding in listed:
        versions = f"{finding.published or '-'} -> {finding.version}"
        changes = finding.changes or (None,)
        for location, change in enumerate(changes):
            head = (finding.type, versions) if location == 0 else ("", "")
            what = ("-", "-", "-") if change is None else (change.kind, change.pointer or "/", change.bump)
            rows.append((*head, *what, finding.verdict if location == 0 else ""))
    if rows:
        print_table(("TYPE", "VERSIONS", "CHANGE", "FIELD", "ASKS FOR", "VERDICT"), rows)
    for finding in listed:
        for change in finding.changes:
            if change.advice:
                click.echo(f"{finding.type}: advice: {change.advice}")
        if finding.verdict != "ok" or finding.reason.startswith("but"):
            click.echo(f"{finding.type}: {finding.reason}")
    counts = {
        verdict: sum(finding.verdict == verdict for finding in findings)
        for verdict in ("ok", "new", "review", "broken")
    }
    click.echo(", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count), err=True)


def _found(name: str, registry: Registry) -> PayloadType:
    kind = registry.get(name)
    if kind is None:
        raise UnknownTypeError(f"there is no type {name!r}{nearest(name, registry.names())}")
    return kind


def _selected(names: tuple[str, ...], registry: Registry, *, with_older: bool = False) -> list[PayloadType]:
    if names:
        return [_found(name, registry) for name in names]
    kinds = sorted(registry, key=lambda kind: kind.name)
    if with_older:
        kinds += older_types()
    return kinds


def _listed(kind: PayloadType) -> str:
    return " ".join(field.encode_name + ("" if field.required else "?") for field in kind.fields)


def _spoken(kind: PayloadType) -> str | None:
    stated = kind.terms.performative
    return "/".join(stated.words) if isinstance(stated, ByField) else stated


def _doc(kind: PayloadType) -> str:
    return (kind.cls.__doc__ or "").strip().partition("\n")[0]


def _terms(kind: PayloadType) -> list[str]:
    terms = kind.terms
    lines = []
    if (stated := _spoken(kind)) is not None:
        lines.append(f"performative {stated}")
    if terms.required_options:
        lines.append("needs " + ", ".join(NEEDED[name] for name in terms.required_options))
    if terms.ttl_s is not None:
        lines.append(f"lives {terms.ttl_s:g} s unless its publisher sets a lifetime")
    lines += [
        f"{option} comes from {field} unless its publisher sets it" for option, field in terms.options_from.items()
    ]
    if kind.side_effect is not None:
        lines.append(f"side effect {kind.side_effect}")
    if kind.resource:
        lines.append(f"what it touches is named at /data{kind.resource}")
    if terms.critical:
        lines.append("must be known by its receivers where they are set: " + ", ".join(terms.critical))
    lines += [
        f"{pointer} agrees with {location} where both are there" for pointer, location in terms.must_match.items()
    ]
    return lines


def _publish(kind: PayloadType, targets: tuple[str, ...]) -> str:
    app = "".join(f" --app {target}" for target in targets)
    flags = "".join(
        f" {_FLAGS[name]} {name.partition('_')[0]}-1" for name in kind.terms.required_options if name in _FLAGS
    )
    return f"sealbus publish {kind.name}{app}{flags}"


def _shell(text: str) -> str:
    """Escape *text* for a single-quoted shell string."""
    return text.replace("'", "'\\''")
