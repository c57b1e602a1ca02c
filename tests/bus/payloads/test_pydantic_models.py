"""Pydantic models as payloads: what pydantic adds works, and what other languages would read otherwise is refused."""

from __future__ import annotations

import collections
import dataclasses
import ipaddress
import math
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NewType, TypeVar

import msgspec
import pydantic
import pytest
import typing_extensions
from msgspec import inspect
from pydantic import BaseModel, ConfigDict, Field

from bus.errors import ContractError
from bus.payloads.examples import example_of
from bus.payloads.field_docs import field_docs
from bus.payloads.payload_types import PayloadType, encode_payload, payload, payload_type
from bus.payloads.rules import AtMost, Bytes, Has, Rule
from bus.schemas.json_schema import schema_of
from sealbus import App, Context, RequestFailed


def marked(cls: type[BaseModel], **options: Any) -> PayloadType:
    return payload_type(payload("model.type", **options)(cls))


def refused(kind: PayloadType, data: bytes) -> ContractError:
    with pytest.raises(ContractError) as caught:
        kind.decode(data)
    return caught.value


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = Field(9, ge=0)


class Bird(BaseModel):
    kind: Literal["duck", "swan"] = "duck"
    wings: int = 2


@payload("quote.request")
class QuoteRequest(BaseModel):
    sku: str
    count: int = 1

    @pydantic.field_validator("sku")
    @classmethod
    def is_sold(cls, sku: str) -> str:
        if sku == "gold":
            raise ValueError("gold is not sold here")
        return sku


@payload("quote.given")
class Quote(BaseModel):
    cents: int = Field(ge=0)


# --- validators -------------------------------------------------------------------------------------------------------


class Event(BaseModel):
    at: datetime
    until: datetime | None = None
    names: list[str] = []

    @pydantic.model_validator(mode="before")
    @classmethod
    def hands_on(cls, data: Any) -> Any:
        return data

    @pydantic.field_validator("names")
    @classmethod
    def are_short(cls, names: list[str]) -> list[str]:
        assert all(len(name) < 5 for name in names), "a name is too long"
        if "fail" in names:
            raise ZeroDivisionError
        return names

    @pydantic.model_validator(mode="after")
    def ends_after_it_begins(self) -> Event:
        if self.until is not None and self.until < self.at:
            raise ValueError("it ends before it begins")
        return self


EVENT = marked(Event)


def test_validators_before_fields_do_not_make_the_fields_strict() -> None:
    assert EVENT.decode(b'{"at":"2026-01-31T12:00:00Z"}') == Event(at=datetime(2026, 1, 31, 12, tzinfo=UTC))


@pytest.mark.parametrize(
    ("data", "pointer", "text"),
    [
        (b'{"at":"2026-01-31T12:00:00Z","until":"2025-01-31T12:00:00Z"}', "/data", "it ends before it begins"),
        (b'{"at":"2026-01-31T12:00:00Z","names":["a","longer"]}', "/data/names", "a name is too long"),
        (b'{"at":"2026-01-31T12:00:00Z","names":["fail"]}', "/data", "could not be built: ZeroDivisionError"),
    ],
)
def test_an_error_of_a_validator_is_a_schema_violation(data: bytes, pointer: str, text: str) -> None:
    error = refused(EVENT, data)
    assert (error.reason, error.pointer) == ("schema_violation", pointer)
    assert text in error.text


def test_a_validator_refuses_what_is_published_too() -> None:
    event = Event(at=datetime(2026, 1, 31, tzinfo=UTC))
    event.until = datetime(2025, 1, 31, tzinfo=UTC)
    with pytest.raises(ContractError, match="it ends before it begins"):
        encode_payload(event)


def test_no_validator_sees_data_of_a_wrong_type() -> None:
    seen = []

    class Watched(BaseModel):
        n: int

        @pydantic.field_validator("n", mode="before")
        @classmethod
        def watch(cls, n: Any) -> Any:
            seen.append(n)
            return int(n)

    kind = marked(Watched)
    assert refused(kind, b'{"n":"5"}').pointer == "/data/n"
    assert seen == []
    assert kind.decode(b'{"n":5}') == Watched(n=5)


def test_a_limit_known_only_to_pydantic_is_enforced() -> None:
    class Priced(BaseModel):
        price: Annotated[Decimal, Field(max_digits=3)]
        step: float = Field(1.0, multiple_of=0.5)
        lines: list[Annotated[str, Field(pattern=r"^\p{Lu}")]] = []

    kind = marked(Priced)
    assert refused(kind, b'{"price":"1.2345"}').pointer == "/data/price"
    assert refused(kind, b'{"price":"1","step":0.7}').pointer == "/data/step"
    assert refused(kind, b'{"lines":["A","b"],"price":"1"}').pointer == "/data/lines/1"


def test_a_validation_error_does_not_reveal_other_fields() -> None:
    class Login(BaseModel):
        token: str

        @pydantic.model_validator(mode="after")
        def never(self) -> Login:
            raise ValueError("no")

    error = refused(marked(Login), b'{"token":"hunter2"}')
    assert "hunter2" not in str(error)
    assert error.__cause__ is None


# --- names and members ------------------------------------------------------------------------------------------------


class Named(BaseModel):
    model_config = ConfigDict(alias_generator=lambda name: name.title(), populate_by_name=True)

    count: int = 1
    limit: int = Field(10, alias="a/b~c")
    line: Cat | None = None


def test_data_have_the_aliases() -> None:
    kind = marked(Named)
    assert encode_payload(Named(count=2)) == b'{"Count":2,"Line":null,"a/b~c":10}'
    assert kind.decode(b'{"Count":2,"count":3}').count == 2


def test_a_pointer_names_the_alias() -> None:
    class Aliased(BaseModel):
        value: Annotated[float, Field(multiple_of=2)] = Field(2, alias="a/b~c")

    assert refused(marked(Aliased), b'{"a/b~c":3}').pointer == "/data/a~1b~0c"


def test_rules_name_fields_as_data_do() -> None:
    rules = (Rule("within", "/Count", AtMost("Count", "a/b~c")), Rule("small", "/Line", Bytes("Line", 40)))
    kind = marked(Named, rules=rules)
    within, beyond = Named(count=5), Named(count=11)
    layers: Any = (None, None)
    kind.check(within, b"{}", *layers)
    kind.check(Named(line=Cat()), b"{}", *layers)
    with pytest.raises(ContractError, match="within"):
        kind.check(beyond, b"{}", *layers)


def test_rules_name_fields_of_renamed_structs_as_data_do() -> None:
    @payload("renamed.type", rules=(Rule("named", "/firstName", Has("firstName")),))
    class Renamed(msgspec.Struct, rename="camel"):
        first_name: str | None = None

    layers: Any = (None, None)
    payload_type(Renamed).check(Renamed("a"), b"{}", *layers)
    with pytest.raises(ContractError, match="named"):
        payload_type(Renamed).check(Renamed(), b"{}", *layers)


def test_a_field_that_is_written_and_read_under_two_names_is_refused() -> None:
    class Twofold(BaseModel):
        x: int = Field(validation_alias="a", serialization_alias="b")

    with pytest.raises(TypeError, match=r"Twofold\.x is written as 'b' and read as 'a'"):
        marked(Twofold)


def test_one_of_several_names_to_be_read_is_enough() -> None:
    class Several(BaseModel):
        x: int = Field(validation_alias=pydantic.AliasChoices("a", "b"), serialization_alias="b")

    kind = marked(Several)
    assert encode_payload(Several(a=1)) == b'{"b":1}'
    assert kind.decode(b'{"b":1}').x == 1


def test_a_model_that_forbids_others_refuses_them_as_a_struct_does() -> None:
    class Shut(BaseModel):
        model_config = ConfigDict(extra="forbid")

        a: int = 1

    error = refused(marked(Shut), b'{"a":1,"b":2}')
    assert (error.pointer, error.text) == ("/data/b", "object contains unknown field `b`")


def test_a_model_that_allows_others_keeps_and_writes_them() -> None:
    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")

        a: int = 1

    kind = marked(Open)
    read = kind.decode(b'{"a":1,"b":{"c":[1]}}')
    assert read.b == {"c": [1]}
    assert encode_payload(read) == b'{"a":1,"b":{"c":[1]}}'
    read.b = math.nan
    with pytest.raises(ContractError) as caught:
        encode_payload(read)
    assert caught.value.pointer == "/data/b"


def test_computed_fields_are_not_written_and_excluded_ones_neither() -> None:
    class Area(BaseModel):
        model_config = ConfigDict(extra="forbid")

        side: int
        note: str = Field("mine", exclude=True)

        @pydantic.computed_field
        @property
        def area(self) -> int:
            return self.side**2

    kind = marked(Area)
    assert encode_payload(Area(side=3)) == b'{"side":3}'
    assert kind.decode(b'{"side":3}').area == 9


# --- types ------------------------------------------------------------------------------------------------------------

Number = NewType("Number", int)
Item = TypeVar("Item")


class Page(BaseModel, Generic[Item]):
    items: list[Item]


@dataclasses.dataclass
class Owner:
    cat: Cat
    name: str = "?"


class Place(typing_extensions.TypedDict, total=False):
    town: typing_extensions.Required[str]
    cat: Cat


class Many(BaseModel):
    url: pydantic.HttpUrl = pydantic.HttpUrl("http://example.org/")
    path: Path = Path("/tmp")  # noqa: S108 - any path
    address: ipaddress.IPv4Address = ipaddress.IPv4Address("127.0.0.1")
    when: pydantic.AwareDatetime | None = None
    year: timedelta = timedelta(days=365)
    raw: pydantic.Base64Bytes = pydantic.Field(b"", validate_default=False)
    text: pydantic.Json[list[int]] = pydantic.Field(default_factory=list)
    free: pydantic.JsonValue = None
    numbers: Sequence[Number] = (1, 2)
    queue: collections.deque[int] = collections.deque()
    days: dict[date, int] = {}
    either: uuid.UUID | int = 1
    counted: collections.Counter[str] = collections.Counter()
    owner: Owner | None = None
    place: Place | None = None
    page: Page[Cat] | None = None
    pets: list[Annotated[Cat | Bird, Field(discriminator="kind")]] = []


MANY = marked(Many)


def test_the_types_that_pydantic_knows_are_written_and_read_back() -> None:
    many = Many(
        when=datetime(2026, 1, 31, tzinfo=UTC),
        text="[1,2]",
        free={"a": [1, None]},
        queue=collections.deque([1]),
        days={date(2026, 1, 31): 1},
        either=uuid.UUID(int=5),
        counted=collections.Counter("aab"),
        owner=Owner(Cat(lives=3)),
        place={"town": "Ulm", "cat": Cat()},
        page=Page[Cat](items=[Cat()]),
        pets=[Bird(kind="swan"), Cat()],
    )
    data = encode_payload(many)
    assert b'"text":"[1,2]"' in data
    # 365 days are `P1Y` for pydantic, and for few others.
    assert b'"year":"P365D"' in data
    assert encode_payload(MANY.decode(data)) == data
    assert MANY.decode(data).pets == many.pets


@pytest.mark.parametrize(
    ("data", "pointer"),
    [
        (b'{"url":"no url"}', "/data/url"),
        (b'{"owner":{"cat":{"lives":"9"}}}', "/data/owner/cat/lives"),
        (b'{"place":{"cat":{}}}', "/data/place/town"),
        (b'{"page":{"items":[{},{"lives":-1}]}}', "/data/page/items/1/lives"),
        (b'{"pets":[{"kind":"swan","wings":"two"}]}', "/data/pets/0/wings"),
        (b'{"pets":[{"kind":"dog"}]}', "/data/pets/0/kind"),
        (b'{"when":"2026-01-31T12:00:00"}', "/data/when"),
        (b'{"text":"no json"}', "/data/text"),
        (b'{"either":0.5}', "/data/either"),
    ],
)
def test_a_fault_in_a_part_has_its_pointer(data: bytes, pointer: str) -> None:
    assert refused(MANY, data).pointer == pointer


def test_a_user_serializer_decides_what_is_written() -> None:
    class Stamped(BaseModel):
        at: datetime
        code: Annotated[int, pydantic.PlainSerializer(hex, return_type=str), pydantic.BeforeValidator(from_hex)] = 1

        @pydantic.field_serializer("at", when_used="json")
        def write(self, at: datetime) -> float:
            return at.timestamp()

    kind = marked(Stamped)
    stamped = Stamped(at=datetime(2026, 1, 31, tzinfo=UTC), code=255)
    assert encode_payload(stamped) == b'{"at":1769817600,"code":"0xff"}'
    assert kind.decode(encode_payload(stamped)) == stamped


def from_hex(value: int | str) -> int:
    return int(value, 16) if isinstance(value, str) else value


class Node(BaseModel):
    value: int
    children: list[Node] = []


def test_a_model_may_contain_itself() -> None:
    kind = marked(Node)
    tree = Node(value=1, children=[Node(value=2)])
    assert kind.decode(encode_payload(tree)) == tree
    assert refused(kind, b'{"children":[{"children":[{"value":"x"}],"value":1}],"value":1}').pointer == (
        "/data/children/0/children/0/value"
    )


def test_a_model_may_name_what_comes_later() -> None:
    kind = marked(Early)
    globals()["Late"] = pydantic.create_model("Late", n=(int, ...))
    assert kind.decode(b'{"late":{"n":1}}').late.n == 1


class Early(BaseModel):
    late: Late  # type: ignore[name-defined]  # noqa: F821 - on purpose


def unmarkable(annotation: Any, **options: Any) -> type[BaseModel]:
    return pydantic.create_model("Unmarkable", x=(annotation, Field(**options)))


@pytest.mark.parametrize(
    ("annotation", "options", "words"),
    [
        (pydantic.SecretStr, {}, "a secret is written as asterisks"),
        (bytes, {}, "write Base64Bytes"),
        (list[bytes], {}, "write Base64Bytes"),
        (Cat | pydantic.create_model("Double", __base__=Cat), {}, "needs a member that distinguishes them"),
        (dict[str, Any] | Cat, {}, "needs a member that distinguishes them"),
        (list[int] | list[str], {}, "one list of a union"),
        (Callable[[], int], {}, "has no form in JSON"),
    ],
)
def test_ambiguously_encoded_models_are_refused_when_marked(
    annotation: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(TypeError, match=words) as caught:
        marked(unmarkable(annotation))
    assert "Unmarkable.x" in str(caught.value)


# --- what is read from the class --------------------------------------------------------------------------------------


class Described(BaseModel):
    """What it is."""

    count: int = Field(1, description="How many.", gt=0, lt=10)
    word: Annotated[str, Field(pattern="^[a-z]+$", max_length=8)]
    pair: tuple[int, str] = (1, "a")
    cat: Cat = Cat()
    made: uuid.UUID = Field(default_factory=uuid.uuid4)


@pytest.mark.medium
def test_a_model_has_a_schema_an_example_and_words() -> None:
    kind = marked(Described)
    schema = schema_of(kind)
    assert schema["description"] == "What it is."
    assert schema["properties"]["count"] == {
        "type": "integer",
        "description": "How many.",
        "exclusiveMinimum": 0,
        "exclusiveMaximum": 10,
        "default": 1,
    }
    assert schema["required"] == ["word"]
    assert field_docs(Described)["count"] == "How many."
    example = example_of(kind)
    assert example is not None
    assert kind.decode(msgspec.json.encode(example)).word == example["word"]


def test_a_factory_is_asked_once_for_each_payload() -> None:
    asked = []

    class Counted(BaseModel):
        n: int = Field(default_factory=lambda: asked.append(1) or len(asked))

    kind = marked(Counted)
    assert [kind.decode(b"{}").n for _ in range(3)] == [1, 2, 3]


def test_the_weight_of_models_is_more_than_that_of_structs() -> None:
    class Plain(msgspec.Struct):
        a: int = 0

    class Heavy(BaseModel):
        a: int = 0

    light = payload_type(payload("light.type")(Plain)).weight
    assert marked(Heavy).weight.object_bytes > 8 * light.object_bytes


def test_the_struct_that_describes_a_model_is_not_a_payload() -> None:
    assert issubclass(EVENT.described, msgspec.Struct)
    assert [field.name for field in inspect.type_info(EVENT.described).fields] == list(Event.model_fields)  # type: ignore[attr-defined]
    assert EVENT.encoder.compiled is None


def test_pydantic_is_imported_only_with_models() -> None:
    code = "import sys, sealbus, consumers.cli; print(sorted(n for n in sys.modules if n.startswith('pydantic')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# --- end to end -------------------------------------------------------------------------------------------------------


def clerk() -> App:
    app = App("clerk@svc")

    @app.on(QuoteRequest)
    async def quote(request: QuoteRequest, context: Context) -> Quote:
        return Quote(cents=250 * request.count)

    return app


async def test_a_request_with_a_model_is_answered_with_one() -> None:
    async with clerk().test() as bus:
        quote = await bus.request(QuoteRequest(sku="tea", count=2), Quote, timeout_s=5)
        assert quote == Quote(cents=500)
        assert bus.sent(Quote) == [quote]


async def test_a_refusal_by_the_receivers_model_ends_the_request() -> None:
    @payload("quote.request")
    class Unchecked(msgspec.Struct):
        sku: str

    async with clerk().test() as bus:
        with pytest.raises(RequestFailed) as caught:
            await bus.request(Unchecked(sku="gold"), Quote, timeout_s=5)
        (letter,) = bus.dead_letters
    assert caught.value.reason == "schema_violation"
    assert (letter.pointer, letter.reason) == ("/data/sku", "schema_violation")
