"""The registered types are those of `VOCABULARY.md`, block by block."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from bus import vocabulary
from bus.payloads.envelope_terms import ByField
from bus.payloads.payload_types import PayloadType
from bus.vocabulary import BUILT_IN, FAMILIES, OLDER, older, parts

TABLE = (Path(vocabulary.__file__).parent / "VOCABULARY.md").read_text()
LIFETIMES = {"1m": 60, "5m": 300, "10m": 600, "1h": 3600, "24h": 86_400, "7d": 604_800, "35s": 35}
NARROWED = {
    # Where the column of rules bounds the form of its row.
    ("agent.discover", "filters"),
    ("blackboard.read", "history"),
    ("branch.create.request", "head_branch"),
    ("error.reported", "error_class"),
    ("method.request", "method"),
    ("notification.sent", "title"),
    ("pr.create.request", "head_branch"),
    ("pr.create.request", "title"),
    ("redrive.ordered", "seals"),
    ("subscription.open", "lease_s"),
}
CHOSEN_BY_VALUE = {
    "approval.decision": {"accept", "reject", "propose"},
    "tool.result": {"error", "inform"},
    "method.response": {"inform", "error"},
}


class Row(NamedTuple):
    name: str
    form: str
    default: str


class Block(NamedTuple):
    type: str
    version: str
    performative: str
    risk: str
    ttl: str
    needs: tuple[str, ...]
    rows: tuple[Row, ...]


def blocks() -> list[Block]:
    body = TABLE[TABLE.index("## 3. Family task") : TABLE.index("## 17. Error codes")]
    found = []
    for text in re.split(r"^### ", body, flags=re.MULTILINE)[1:]:
        head, _, rest = text.partition("\n")
        names = re.match(r"`([^`]+)` (\d+\.\d+\.\d+)", head)
        assert names is not None
        lines = re.split(r"^## ", rest, flags=re.MULTILINE)[0].strip().split("\n")
        performative, risk, ttl, needs = (part.strip() for part in lines[0].split(" · ")[:4])
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")][2:]
        rows = tuple(Row(name, form.strip("`"), default) for name, form, default, *_ in cells)
        needed = () if needs == "none" else tuple(name.strip() for name in needs.split(","))
        types = [names[1]]
        if names[1] == "act.*":
            types = [f"act.{act}" for act in _acts()]
        found += [Block(name, names[2], performative, risk, ttl, needed, rows) for name in types]
    return found


def _acts() -> list[str]:
    acts = re.search(r"^## 12\. Family act\n(.*?): eleven types", TABLE, re.MULTILINE | re.DOTALL)
    assert acts is not None
    return re.findall(r"`act\.([a-z-]+)`", acts[1])


BLOCKS = blocks()


def kind_of(block: Block) -> PayloadType:
    kind = older(block.type, block.version) or BUILT_IN.get(block.type)
    assert kind is not None
    return kind


def annotation(form: str) -> str:
    """The annotation that *form* of the table stands for."""
    if form == "as new_status" or form.startswith("pending/running/waiting_for_approval"):
        return "TaskStatus"
    if (listed := re.fullmatch(r"\[(.+)\](\+?)", form)) is not None:
        items = f"tuple[{annotation(listed[1])}, ...]"
        return f"Annotated[{items}, Meta(min_length=1)]" if listed[2] else items
    if form == "approved/changes_requested/needs_discussion":
        return "Verdict"
    if "/" in form:
        return "Literal[" + ", ".join(f'"{word}"' for word in form.split("/")) + "]"
    return {"Any": "Any_", "ToolCall": "CalledTool"}.get(form, form)


def plain(text: str) -> str:
    return re.sub(r"\s|,(?=[\])])", "", text.replace("'", '"')).replace(
        'Literal["approved","changes_requested","needs_discussion"]', "Verdict"
    )


def test_the_table_has_every_registered_type_and_no_other() -> None:
    newest = {kind.name: kind.version for kind in BUILT_IN}
    listed = {(block.type, block.version) for block in BLOCKS}
    assert listed == {*newest.items(), *OLDER}
    assert len(listed) == 93


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.type}@{block.version}")
class TestBlock:
    def test_has_the_version_risk_lifetime_and_needs_of_its_class(self, block: Block) -> None:
        kind = kind_of(block)
        assert (kind.name, kind.version, kind.risk) == (block.type, block.version, block.risk)
        assert kind.terms.needs == block.needs
        if block.ttl == "timeout_seconds":
            assert kind.terms.takes["ttl_s"] == "timeout_seconds"
        else:
            assert kind.terms.ttl_s == LIFETIMES[block.ttl]

    def test_has_the_performative_of_its_class(self, block: Block) -> None:
        said = kind_of(block).terms.performative
        if isinstance(said, ByField):
            assert block.performative.startswith("by value")
            assert set(said.words) == CHOSEN_BY_VALUE[block.type]
        elif block.performative.startswith("the type's own"):
            assert said == block.type.removeprefix("act.").replace("-", "_")
        else:
            assert said == block.performative

    def test_has_the_fields_of_its_class(self, block: Block) -> None:
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind_of(block).cls)}
        assert set(fields) == {row.name for row in block.rows}
        for row in block.rows:
            field = fields[row.name]
            assert field.required == (row.default == "R"), row
            if not field.required:
                assert _default(field) == _written(row), row

    def test_has_the_forms_of_its_class(self, block: Block) -> None:
        hints: dict[str, Any] = {}
        for cls in reversed(kind_of(block).cls.__mro__):
            hints.update(inspect.get_annotations(cls))
        for row in block.rows:
            if (block.type, row.name) not in NARROWED:
                optional = row.default == "-" and row.form != "Any"
                expected = annotation(row.form) + (" | None" if optional else "")
                assert plain(hints[row.name]) == plain(expected), row


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return None if field.default is msgspec.UNSET else field.default


def _written(row: Row) -> Any:
    if row.default == "-":
        return None
    value = msgspec.json.decode(row.default)
    return tuple(value) if isinstance(value, list) else value


def test_every_class_is_named_after_its_type() -> None:
    for types in FAMILIES.values():
        for name, cls in types.items():
            assert cls == "".join(word.capitalize() for word in re.split(r"[.-]", name))


PART_ROWS = re.findall(
    r"^\| `([A-Z][A-Za-z]+)` \| (`.*?) \| [^|]*\|$", TABLE[: TABLE.index("## 2. State")], re.MULTILINE
)


@pytest.mark.parametrize(("name", "members"), [row for row in PART_ROWS if ":" in row[1]])
def test_shared_parts_have_the_members_of_the_table(name: str, members: str) -> None:
    cls = getattr(parts, {"ToolCall": "CalledTool"}.get(name, name))
    fields = {field.name: field for field in msgspec.structs.fields(cls)}
    said = {
        match[1]: (match[2] or bool(match[3]))
        for match in re.finditer(r"`([a-z0-9_]+)(\??): [^`=]*?( = [^`]*)?`", members)
    }
    assert set(fields) == set(said)
    assert {name for name, field in fields.items() if not field.required} == {
        n for n, optional in said.items() if optional
    }
