"""`sealbus type list|show|export|upcaster`: message types and their schemas.

The types are in `bus.vocabulary` and the user's apps, examples in `bus.payloads.examples`, exports in `bus.schemas`.
"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from bus.errors import BusError, ContractError, UnknownTypeError
from bus.nearest import nearest
from bus.payloads.examples import example_of
from bus.payloads.payload_types import PayloadType, Registry
from bus.schemas.field_forms import field_rows
from bus.schemas.json_schema import schema_of
from bus.schemas.schema_folder import SchemaFolder
from bus.schemas.type_rows import ExportedType, TypeDetails, TypeRow, performative_of, terms_of
from bus.schemas.versions import SchemaVersion
from bus.telemetry.terminal_json import encode_json
from bus.vocabulary import BUILT_IN, family_of, older_types
from consumers.cli.exit_codes import FAILED
from consumers.cli.io.known_names import complete_types
from consumers.cli.io.output import Detail, Listing, VerbResult
from consumers.cli.io.parameter_types import OneOf
from consumers.cli.io.printing import print_json, print_table
from consumers.cli.session import CommandSession, app_option, verb
from consumers.cli.shell import VerbGroup
from consumers.deadletters.adapter import adapter_of
from consumers.deadletters.letters import read_dead_letter
from consumers.deadletters.locations import find_letter

__all__ = ["type_"]

_FLAGS = {
    "task_id": "--task",
    "idempotency_key": "--idempotency-key",
    "key": "--key",
    "correlation_id": "--correlation",
}
_ALL_FAMILIES = "all"


class WrittenUpcaster(msgspec.Struct, frozen=True, kw_only=True):
    """An upcaster: the source of a function, to be reviewed."""

    name: str
    source: str
    next_version: str
    open_questions: int


@click.group("type", cls=VerbGroup)
def type_() -> None:
    """Show message types, and export their schemas. `sealbus check` finds changes that break readers.

    \b
    Examples:
      sealbus type list
      sealbus type show desk.question
      sealbus type show desk.question -o example | sealbus publish desk.question
      sealbus type export schemas/
      sealbus type upcaster desk.question/0/3 >> upcasters.py
    """


@type_.command("list")
@app_option
@click.option(
    "--builtin",
    metavar="[FAMILY]",
    is_flag=False,
    flag_value=_ALL_FAMILIES,
    help="List the built-in types instead, or those of one family, such as task.",
)
@verb(TypeRow)
def list_(session: CommandSession, *, targets: tuple[str, ...], builtin: str | None) -> VerbResult:
    """List the message types of your apps with version, risk and fields; optional fields have a question mark.

    \b
    Examples:
      sealbus type list
      sealbus type list --builtin
      sealbus type list --builtin task -o json
    """
    registry = BUILT_IN if builtin is not None else session.types(session.apps(targets))
    families = sorted({found for name in BUILT_IN.names() if (found := family_of(name)) is not None})
    if builtin not in (None, _ALL_FAMILIES, *families):
        raise click.BadParameter(
            f"no family {builtin!r}{nearest(builtin or '', families)}; there are {', '.join(families)}",
            param_hint="--builtin",
        )
    kinds = [
        kind
        for name in sorted(registry.names())
        if (kind := registry.get(name)) is not None
        if (BUILT_IN.get(name) is not kind if builtin is None else builtin in (_ALL_FAMILIES, family_of(name)))
    ]
    return Listing(
        [
            TypeRow(
                type=kind.name,
                version=kind.version,
                risk=kind.risk,
                performative=performative_of(kind),
                required_options=tuple(kind.terms.required_options),
                ttl_s=kind.terms.ttl_s,
                side_effect=kind.side_effect,
                family=family_of(kind.name),
                fields=tuple(field.encode_name for field in kind.fields),
                required=tuple(field.encode_name for field in kind.fields if field.required),
            )
            for kind in kinds
        ],
        {
            "TYPE": "type",
            "VERSION": "version",
            "RISK": "risk",
            "FIELDS": lambda row: " ".join(name + ("" if name in row.required else "?") for name in row.fields),
        },
        empty="your apps declare no types; --builtin lists the built-in ones, --app MODULE:APP names an app",
    )


@type_.command()
@click.argument("name", metavar="TYPE", shell_complete=complete_types)
@app_option
@verb(TypeDetails, forms=("json-schema", "example"))
def show(session: CommandSession, *, name: str, targets: tuple[str, ...]) -> VerbResult | int:
    """Show a message type: what it is for, its fields and rules, and an example of its data.

    -o json-schema prints the schema alone, -o example one line that `sealbus publish TYPE` accepts.

    \b
    Examples:
      sealbus type show task.request
      sealbus type show task.request -o json-schema > task.request.json
      sealbus type show desk.question -o example | sealbus publish desk.question
    """
    kind = _found(name, session.types(session.apps(targets)))
    schema, example = schema_of(kind), example_of(kind)
    if session.form == "json-schema":
        click.echo(msgspec.json.format(encode_json(schema), indent=2).decode())
        return 0
    if session.form == "example":
        if example is None:
            raise ContractError(f"no example of {name} can be generated: give its class one, as __example__")
        print_json(example)
        return 0
    shown = TypeDetails(type=kind.name, version=kind.version, risk=kind.risk, schema=schema, example=example)
    if session.as_json:
        return Detail(shown, ())
    about = (kind.cls.__doc__ or "").strip().partition("\n")[0]
    click.echo(f"{kind.name} {kind.version}, risk {kind.risk}{f': {about}' if about else ''}")
    for line in terms_of(kind):
        click.echo(f"  {line}")
    click.echo()
    print_table(("FIELD", "FORM", "DEFAULT", "MEANING"), field_rows(kind))
    if kind.rules:
        click.echo("\nRules:")
        for rule in kind.rules:
            click.echo(f"  {rule.text}")
    if example is not None:
        quoted = encode_json(example).decode().replace("'", "'\\''")
        click.echo(f"\nExample:\n  echo '{quoted}' | {_publish(kind, targets)}")
    return 0


@type_.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.argument("names", metavar="[TYPE]...", nargs=-1, shell_complete=complete_types)
@app_option
@click.option(
    "--format",
    "form",
    type=OneOf(["json-schema", "typescript", "asyncapi"]),
    default="json-schema",
    show_default=True,
    help="typescript: types and zod validators beside the schemas. asyncapi: one document about one app.",
)
@verb(ExportedType)
def export(
    session: CommandSession, *, folder: Path, names: tuple[str, ...], targets: tuple[str, ...], form: str
) -> VerbResult:
    """Write the schemas of your apps' types to DIR/TYPE/VERSION.json; published files never change.

    If a version exists with another content, the export is refused: give the type a new version. With TYPE these types
    are written, built-in ones, too. AsyncAPI is written to DIR/asyncapi.json: topics, messages, and the types that the
    app receives and sends.

    \b
    Examples:
      sealbus type export schemas/
      sealbus type export schemas/ task.request task.result
      sealbus type export schemas/ --format typescript
      sealbus type export docs/ --format asyncapi

    \b
    Exit codes: 0 written, 1 a published version would have changed.
    """
    apps = session.apps(targets)
    if form == "asyncapi":
        if len(apps) != 1:
            raise click.UsageError(f"the document is about one app, and there are {len(apps)}: --app MODULE:APP")
        from consumers.agents.asyncapi_file import write_asyncapi

        file = write_asyncapi(apps[0].declaration, session.settings(apps), folder)
        return Listing([], {}, notes=[f"{file} written"])
    registry = session.types(apps)
    kinds = [_found(name, registry) for name in names] or [
        kind for kind in sorted(registry, key=lambda kind: kind.name) if not apps or BUILT_IN.get(kind.name) is not kind
    ]
    kinds += [] if names or apps else older_types()
    schemas, refused, rows = SchemaFolder(folder), [], []
    for kind in kinds:
        try:
            is_new = schemas.publish(kind.name, SchemaVersion.of(kind.version), schema_of(kind))
        except ContractError as error:
            refused.append(f"error: {error}")
            continue
        rows.append(ExportedType(type=kind.name, version=kind.version, written=is_new))
    if form == "typescript":
        from bus.schemas.typescript import write_package

        write_package(kinds, folder)
    fresh = sum(row.written for row in rows)
    ending = f"{fresh} written to {folder}, {len(rows) - fresh} unchanged, {len(refused)} refused"
    return Listing(rows if session.as_json else [], {}, notes=[*refused, ending], code=FAILED if refused else 0)


@type_.command()
@click.argument("which", metavar="LOCATION|MESSAGE_ID")
@app_option
@verb(WrittenUpcaster)
async def upcaster(session: CommandSession, *, which: str, targets: tuple[str, ...]) -> VerbResult:
    """Write an upcaster that would make a dead message valid, for you to review: similar names, converted values.

    For dead letters whose data the current type refuses (schema_violation, unsupported_version). Give the type the
    printed version, with the function among its upcasters; then redrive the cause.

    \b
    Examples:
      sealbus type upcaster desk.question/0/3 >> upcasters.py
      sealbus type upcaster agents.desk.question.dlq/0/3 -o json

    \b
    Exit codes: 0 written, 1 written with open questions (they raise), or nothing can be compared.
    """
    apps = session.apps(targets)
    settings = session.settings(apps)
    async with session.open(settings) as transport:
        message = read_dead_letter(await find_letter(transport, settings, which)).message
        types = await session.types_in(transport, settings, apps)
    kind = None if message is None else types.get(message.message_type)
    if message is None or kind is None:
        raise BusError("the type of this message is unknown: name its app with --app MODULE:APP")
    data, major = msgspec.json.decode(message.data), int(message.metadata.schema_version.partition(".")[0])
    made = adapter_of(kind, data, major) if isinstance(data, dict) else None
    if made is None:
        raise BusError("the data, or the class of its type, has no fields that could be compared")
    shown = WrittenUpcaster(
        name=made.name, source=made.source, next_version=made.next_version, open_questions=made.open_questions
    )
    hint = (
        f'hint: @payload("{kind.name}", version="{made.next_version}", upcasters={{{major}: {made.name}}}), then '
        "`sealbus dlq redrive --cause ID --wait`"
    )
    return Detail(shown, [made.source.rstrip("\n")], notes=[hint], code=FAILED if made.open_questions else 0)


def _found(name: str, registry: Registry) -> PayloadType:
    kind = registry.get(name)
    if kind is None:
        raise UnknownTypeError(f"unknown type {name!r}{nearest(name, registry.names())}")
    return kind


def _publish(kind: PayloadType, targets: tuple[str, ...]) -> str:
    app = "".join(f" --app {target}" for target in targets)
    flags = "".join(
        f" {_FLAGS[name]} {name.partition('_')[0]}-1" for name in kind.terms.required_options if name in _FLAGS
    )
    return f"sealbus publish {kind.name}{app}{flags}"
