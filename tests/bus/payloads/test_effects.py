"""What a type says of its effect: for policies, and for readers that do not know a field that narrows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

import msgspec
import pytest

from bus.errors import ContractError
from bus.payloads.envelope_terms import SideEffect
from bus.payloads.payload_types import payload, payload_type
from bus.schemas.json_schema import schema_of
from bus.trust.labels import SIDE_EFFECTS
from bus.vocabulary import BUILT_IN
from producers.sealing.seal_request import SealRequest
from sealbus import App, Outgoing, connect


@payload("cleanup.request", side_effect="irreversible", resource="/target/path")
class Unmarked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a reader of an older version knows."""

    target: dict[str, str]


@payload(
    "cleanup.request",
    version="1.1.0",
    side_effect="irreversible",
    resource="/target/path",
    critical=("dry_run", "max_files", "only", "keep"),
)
class Cleanup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    target: dict[str, str]
    dry_run: bool = False
    max_files: int | None = None
    only: tuple[str, ...] = ()
    keep: int = 3


@payload("clean.data", critical=("dry_run",))
@dataclass(frozen=True, kw_only=True)
class AsDataclass:
    dry_run: bool = False


@payload("clean.dict", critical=("dry_run",))
class AsDict(TypedDict):
    dry_run: NotRequired[bool]


@payload("clean.renamed", critical=("dryRun",))
class Renamed(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    dry_run: bool = True


class TestMarks:
    def test_a_type_without_a_declared_effect_has_an_unknown_one(self) -> None:
        kind = payload_type(AsDataclass)
        assert (kind.side_effect, kind.resource, kind.resource_of(AsDataclass())) == (None, "", "")

    def test_a_type_has_the_effect_it_names(self) -> None:
        assert payload_type(Cleanup).side_effect == "irreversible"

    def test_the_words_are_those_that_policies_order(self) -> None:
        assert SideEffect.__args__ == SIDE_EFFECTS  # type: ignore[attr-defined]

    @pytest.mark.parametrize(
        ("subject", "expected"),
        [
            (Cleanup(target={"path": "/tmp/x"}), "/tmp/x"),  # noqa: S108 - a name
            ({"target": {"path": "p"}}, "p"),
            ({"target": {"path": 7}}, ""),
            ({"target": {}}, ""),
            ({}, ""),
        ],
    )
    def test_a_resource_is_the_text_at_its_pointer(self, subject: Any, expected: str) -> None:
        assert payload_type(Cleanup).resource_of(subject) == expected

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"side_effect": "Write"}, "side_effect 'Write' is none of none, read"),
            ({"resource": "name"}, "not a pointer into data"),
            ({"resource": "/nothing"}, "names no field"),
            ({"critical": "dry_run"}, "a tuple of field names"),
            ({"critical": ("dryrun",)}, "names no field.*dry_run"),
            ({"critical": ("name",)}, "is required"),
        ],
    )
    def test_wrong_marks_are_refused(self, options: Any, text: str) -> None:
        cls = msgspec.defstruct("Wrong", [("name", str), ("dry_run", bool, False)], kw_only=True)
        with pytest.raises(ContractError, match=text):
            payload("wrong.marks", **options)(cls)

    def test_schemas_show_them(self) -> None:
        shown = schema_of(payload_type(Cleanup))["x-sealbus"]
        assert shown["side_effect"] == "irreversible"
        assert shown["resource"] == "/target/path"
        assert shown["critical"] == ["dry_run", "max_files", "only", "keep"]


async def critical_of(subject: Any, **options: Any) -> tuple[str, ...] | None:
    """The critical fields of *subject* as it is sealed, by every way there is."""
    async with connect("memory://", agent="a@svc") as bus:
        sealer = bus.publisher.sealer
        # Twice: a template is made at the second use of its options.
        made = [sealer.seal(Outgoing(subject, **options)).message for _ in range(3)]
        if not options:
            made += [sealer.seal_plain(subject).message for _ in range(3)]
        cause = made[0]
        made += [sealer.seal(Outgoing(subject, **options), SealRequest(cause=cause)).message for _ in range(3)]
        run, _, _ = sealer.seal_run([Outgoing(subject, **options)] * 3, 0, max_count=3, room=1_000_000)
        made += [sealed.message for sealed in run]
    (found,) = {message.metadata.critical_fields for message in made}
    return found


TARGET = {"path": "p"}


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (Cleanup(target=TARGET), ("/data/keep",)),
        (Cleanup(target=TARGET, dry_run=True), ("/data/dry_run", "/data/keep")),
        (Cleanup(target=TARGET, max_files=0, keep=0), ("/data/max_files", "/data/keep")),
        (Cleanup(target=TARGET, only=("a",)), ("/data/only", "/data/keep")),
        (AsDataclass(), None),
        (AsDataclass(dry_run=True), ("/data/dry_run",)),
        (AsDict(), None),
        (AsDict(dry_run=True), ("/data/dry_run",)),
        (Renamed(), None),
        (Renamed(dry_run=False), ("/data/dryRun",)),
    ],
)
async def test_a_field_that_narrows_is_critical_where_it_is_set(subject: Any, expected: Any) -> None:
    assert await critical_of(subject) == expected


async def test_an_effect_named_by_the_publisher_is_used() -> None:
    subject = Cleanup(target=TARGET, dry_run=True)
    found = await critical_of(subject, critical_fields=("/data/target", "/data/dry_run"))
    assert found == ("/data/target", "/data/dry_run", "/data/keep")


async def test_options_of_a_template_change_nothing() -> None:
    assert await critical_of(AsDataclass(dry_run=True), priority=7, intent="i") == ("/data/dry_run",)


async def test_a_reader_that_does_not_know_the_field_refuses_the_message() -> None:
    app, ran = App("cleaner@svc", group="clean"), []

    @app.on(Unmarked)
    async def clean(request: Unmarked) -> None:
        ran.append(request)

    async with app.test() as bus:
        await bus.publish(Cleanup(target=TARGET, dry_run=True))
        await bus.settle()
        (letter,) = bus.dead_letters
    assert (letter.reason, letter.pointer) == ("critical_field", "/metadata/critical_fields")
    assert ran == []


async def test_a_queued_payload_is_checked_as_it_was_when_queued() -> None:
    @payload("clean.mutable", critical=("dry_run",))
    class Mutable(msgspec.Struct, kw_only=True):
        dry_run: bool = False

    app = App("cleaner@svc", group="clean", types=[Mutable])

    @app.on(Unmarked)
    async def clean(request: Unmarked, context: Any) -> None:
        queued = Mutable(dry_run=True)
        context.send(queued)
        queued.dry_run = False

    async with app.test() as bus:
        await bus.publish(Unmarked(target=TARGET))
        await bus.settle()
        bus.assert_all_handled()
        (message,) = bus.messages(Mutable)
    assert message.metadata.critical_fields == ("/data/dry_run",)


class TestTheVocabulary:
    def test_tools_and_commands_reach_outside(self) -> None:
        found = {kind.name for kind in BUILT_IN if kind.side_effect == "external"}
        assert {"tool.call", "command.request", "pr.create.request"} <= found

    def test_an_informing_type_has_no_side_effect(self) -> None:
        for kind in BUILT_IN:
            if kind.terms.performative in ("inform", "confirm", "error", "reject") and kind.risk != "high":
                assert kind.side_effect == "none", kind.name

    def test_built_in_types_for_any_kind_of_work_have_an_unknown_effect(self) -> None:
        unknown = {kind.name for kind in BUILT_IN if kind.side_effect is None}
        assert {"task.request", "task.handoff", "handoff.request", "method.request", "act.request"} <= unknown

    def test_a_call_names_its_tool(self) -> None:
        kind = BUILT_IN.get("tool.call")
        assert kind is not None
        assert kind.resource_of({"tool_name": "browser"}) == "browser"
