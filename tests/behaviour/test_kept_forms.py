"""Every form of class in every place that keeps something: it comes back as it was, in the next run and the first.

Forms are a Struct, a dataclass, a TypedDict and a Pydantic model, each with parts of its own kind and of the others,
and what is made of them. Places are the result and the argument of a step, a checkpoint, the state of a saga and the
arguments of a tool.
"""

from __future__ import annotations

import asyncio
import datetime
import decimal
import enum
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict, cast

import msgspec
import pydantic
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bus.payloads.payload_types import encode_payload
from bus.trust.effective_labels import EffectiveLabels
from consumers.delivery.inbox.remembered_steps import RememberedSteps
from consumers.delivery.inbox.step_call import StepCall
from consumers.delivery.inbox.step_identity import step_id
from consumers.processes.sagas.process import Memory, Process, pack, unpack
from consumers.tools.handoff_tool import HandoffTool
from producers.sealing.run_labels import RunLabels
from sealbus import App, Context, Retry, payload
from sealbus.errors import ConfigurationError, ContractError
from sealbus.sagas import Saga, SagaContext, on_answer, on_failure, on_message, on_start, on_timer

NOBODY = uuid.UUID(int=0)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class PartModel(pydantic.BaseModel):
    price: decimal.Decimal = decimal.Decimal(0)
    at: datetime.datetime | None = None
    tags: list[str] = []


@payload("kept.struct")
class AsStruct(msgspec.Struct, kw_only=True):
    name: str = ""
    count: int = 0
    ratio: float = 0.0
    at: datetime.datetime | None = None
    price: decimal.Decimal = decimal.Decimal(0)
    id: uuid.UUID = NOBODY
    colour: Colour = Colour.RED
    notes: dict[str, int] = {}
    parts: list[AsStruct] = []


@payload("kept.dataclass")
@dataclass(kw_only=True)
class AsDataclass:
    name: str = ""
    count: int = 0
    ratio: float = 0.0
    at: datetime.datetime | None = None
    price: decimal.Decimal = decimal.Decimal(0)
    id: uuid.UUID = NOBODY
    colour: Colour = Colour.RED
    notes: dict[str, int] = field(default_factory=dict)
    parts: list[AsDataclass] = field(default_factory=list)


@payload("kept.dict")
class AsDict(TypedDict, total=False):
    name: str
    count: int
    ratio: float
    at: datetime.datetime | None
    price: decimal.Decimal
    id: uuid.UUID
    colour: Colour
    notes: dict[str, int]
    parts: list[AsDict]


@payload("kept.model")
class AsModel(pydantic.BaseModel):
    name: str = ""
    count: int = 0
    ratio: float = 0.0
    at: datetime.datetime | None = None
    price: decimal.Decimal = decimal.Decimal(0)
    id: uuid.UUID = NOBODY
    colour: Colour = Colour.RED
    notes: dict[str, int] = {}
    parts: list[AsModel] = []


class StructOfModels(msgspec.Struct, kw_only=True):
    model: AsModel | None = None
    parts: list[PartModel] = []
    named: dict[str, PartModel] = {}


@dataclass(kw_only=True)
class DataclassOfModels:
    model: AsModel | None = None
    parts: list[PartModel] = field(default_factory=list)


class DictOfModels(TypedDict):
    model: NotRequired[AsModel]
    parts: NotRequired[list[PartModel]]


FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "name": st.text(max_size=9),
    "count": st.integers(-(2**53) + 1, 2**53 - 1),
    "ratio": st.floats(allow_nan=False, allow_infinity=False),
    "at": st.none() | st.datetimes(timezones=st.none() | st.just(datetime.UTC)),
    "price": st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-9999, max_value=9999),
    "id": st.uuids(),
    "colour": st.sampled_from(Colour),
    "notes": st.dictionaries(st.text(max_size=3), st.integers(-9, 9), max_size=3),
}
PART_MODELS = st.builds(PartModel, price=FIELDS["price"], at=FIELDS["at"], tags=st.lists(st.text(max_size=3)))


def of(cls: Any) -> st.SearchStrategy[Any]:
    """Return values of *cls*, with parts of the same class."""
    leaves = st.fixed_dictionaries(FIELDS).map(lambda fields: cls(**fields))
    return st.builds(
        lambda fields, parts: cls(**fields, parts=parts), st.fixed_dictionaries(FIELDS), st.lists(leaves, max_size=2)
    )


MODELS = of(AsModel)
FORMS: dict[Any, st.SearchStrategy[Any]] = {
    AsStruct: of(AsStruct),
    AsDataclass: of(AsDataclass),
    AsDict: of(AsDict),
    AsModel: MODELS,
    StructOfModels: st.builds(
        StructOfModels,
        model=st.none() | MODELS,
        parts=st.lists(PART_MODELS, max_size=2),
        named=st.dictionaries(st.text(max_size=3), PART_MODELS, max_size=2),
    ),
    DataclassOfModels: st.builds(DataclassOfModels, model=st.none() | MODELS, parts=st.lists(PART_MODELS, max_size=2)),
    DictOfModels: st.fixed_dictionaries({}, optional={"model": MODELS, "parts": st.lists(PART_MODELS, max_size=2)}),
}
PLAIN = [bool, int, str, float, datetime.datetime, datetime.date, datetime.time, decimal.Decimal, uuid.UUID, Colour]
PLAIN_VALUES = {
    bool: st.booleans(),
    int: FIELDS["count"],
    str: st.text(max_size=9),
    float: FIELDS["ratio"],
    datetime.datetime: st.datetimes(),
    datetime.date: st.dates(),
    datetime.time: st.times(),
    decimal.Decimal: FIELDS["price"],
    uuid.UUID: st.uuids(),
    Colour: st.sampled_from(Colour),
}
PAYLOADS = [AsStruct, AsDataclass, AsDict, AsModel]


@st.composite
def typed_values(draw: st.DrawFn) -> tuple[Any, Any]:
    """A type that can be kept, and a value of it."""
    base: Any
    base, values = draw(st.sampled_from([*FORMS.items(), *PLAIN_VALUES.items()]))
    return draw(
        st.one_of(
            values.map(lambda value: (base, value)),
            st.lists(values, max_size=3).map(lambda value: (list[base], value)),
            st.dictionaries(st.text(max_size=3), values, max_size=3).map(lambda value: (dict[str, base], value)),
            (st.none() | values).map(lambda value: (base | None, value)),
            st.tuples(values, st.integers(-9, 9)).map(lambda value: (tuple[base, int], value)),
        )
    )


class Rows:
    """The rows of one message."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}

    async def read(self) -> Mapping[str, bytes]:
        return dict(self.data)

    async def write(self, name: str, data: bytes) -> bool:
        self.data[name] = data
        return True


class Labels:
    current = EffectiveLabels()

    def read_at(self, labels: EffectiveLabels) -> None: ...


def run(rows: Rows) -> RememberedSteps:
    return RememberedSteps(rows, cast("RunLabels", Labels()), version="1.0.0")


async def given_back(value: Any) -> Any:
    return value


@given(typed_values())
@settings(deadline=None)
def test_a_result_of_a_step_comes_back_as_it_was(typed: tuple[Any, Any]) -> None:
    kind, value = typed

    async def both() -> list[Any]:
        rows, calls = Rows(), []

        async def work() -> Any:
            calls.append(1)
            return value

        call = StepCall(name="a", function=work, key="key", kind=kind)
        found = [await run(rows).step(call) for _ in range(2)]
        assert calls == [1]
        return found

    assert asyncio.run(both()) == [value, value]


@pytest.mark.medium
@given(typed_values())
@settings(deadline=None)
def test_a_result_without_a_type_is_the_same_in_every_run(typed: tuple[Any, Any]) -> None:
    async def both() -> list[Any]:
        rows = Rows()

        async def work() -> Any:
            return typed[1]

        return [await run(rows).step(StepCall(name="a", function=work, key="key")) for _ in range(2)]

    first, second = asyncio.run(both())
    assert first == second
    assert type(first) in (dict, list, str, int, float, bool, type(None))


@given(typed_values())
@settings(deadline=None)
def test_an_argument_of_a_step_counts_by_its_value(typed: tuple[Any, Any]) -> None:
    _, value = typed

    async def both() -> list[Any]:
        rows = Rows()
        await run(rows).step(StepCall(name="a", function=given_back, arguments=(value,)))
        await run(rows).step(StepCall(name="a", function=given_back, named={"value": value}))
        return [*rows.data]

    assert asyncio.run(both()) == [step_id("a", given_back, (value,))]


@given(typed_values())
@settings(deadline=None)
def test_a_checkpoint_comes_back_as_it_was(typed: tuple[Any, Any]) -> None:
    kind, value = typed

    async def both() -> Any:
        rows = Rows()
        await run(rows).checkpoint(value)
        return await run(rows).resumed(kind)

    assert asyncio.run(both()) == value


def saga_of(state: Any) -> type[Saga[Any]]:
    class Keeping(Saga[Any], state=state, version="1.0.0"):
        @on_start(AsStruct)
        async def begun(self, _: AsStruct, context: SagaContext) -> None: ...

    return Keeping


SAGAS = {cls: saga_of(cls) for cls in FORMS}


@given(st.sampled_from([*FORMS]).flatmap(lambda cls: FORMS[cls].map(lambda value: (cls, value))))
@settings(deadline=None)
def test_a_state_of_a_saga_comes_back_as_it_was(typed: tuple[Any, Any]) -> None:
    cls, value = typed
    rules = SAGAS[cls].rules
    process = Process(
        id=b"",
        namespace="agents",
        group="g",
        saga=rules.name,
        key="k",
        version=1,
        status="open",
        shape=rules.version,
        state=pack(Memory(data=rules.kept_state.plain(value))),
        opener=b"",
        trust="user_request",
    )
    found = unpack(rules, process)
    assert found is not None
    assert found[1] == value


class Asking:
    """A context that answers nothing, and notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def request(self, payload: Any, reply: Any, **options: Any) -> None:
        self.asked.append(payload)


@given(st.sampled_from(PAYLOADS).flatmap(lambda cls: FORMS[cls].map(lambda value: (cls, value))))
@example((AsStruct, AsStruct(ratio=2.0**53)))
@settings(deadline=None)
def test_the_arguments_of_a_tool_become_the_request(typed: tuple[Any, Any]) -> None:
    cls, value = typed
    tool = HandoffTool("ask", cls, cls, to="x@svc", description="", timeout_s=1)
    context = Asking()
    arguments, _ = tool.read(encode_payload(value))
    asyncio.run(tool.function(cast("Context", context))(**arguments))
    assert context.asked == [value]
    assert type(context.asked[0]) is cls


@pytest.mark.parametrize("cls", PAYLOADS)
def test_arguments_that_do_not_fit_are_refused_alike(cls: Any) -> None:
    tool = HandoffTool("ask", cls, cls, to="x@svc", description="", timeout_s=1)
    with pytest.raises(ContractError, match=r"^/count: expected `int`"):
        tool.read({"count": "many"})
    with pytest.raises(ContractError, match="has no form in JSON"):
        tool.read({"count": object()})


@pytest.mark.parametrize("cls", PAYLOADS)
def test_a_tool_of_every_form_has_a_schema(cls: Any) -> None:
    app = App("x@svc")
    app.handoff_tool("ask", cls, cls, to="y@svc")
    (described,) = app.tools.schemas()
    assert {*described["input_schema"]["properties"]} == {*FIELDS, "parts"}


# What cannot be kept is refused when it is declared.


class Opaque(msgspec.Struct):
    what: Any = None
    lock: asyncio.Lock | None = None


class Twin(PartModel):
    pass


class Apart(pydantic.BaseModel):
    pet: Twin | PartModel | None = None


class Needing(pydantic.BaseModel):
    text: str


class Sloppy(msgspec.Struct):
    text: str = None


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (Opaque, "Lock is none of the types that JSON is read as"),
        (Apart, "needs a member that distinguishes them"),
        (Needing, r"a process begins with Needing\(\), so every field needs a default"),
        (Sloppy, r"Sloppy\(\) cannot be stored: /text: expected `str`, got `null`"),
        (list, "the state list is not an object with fields"),
        (str, "the state str is not an object with fields"),
    ],
)
def test_a_state_that_cannot_be_kept_is_refused_when_it_is_declared(state: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        saga_of(state)


class Early(msgspec.Struct):
    later: Later | None = None


EARLY = saga_of(Early)


def test_a_state_that_names_what_comes_later_is_looked_at_again_when_it_is_added() -> None:
    App("x@svc").add(EARLY)


class Later(pydantic.BaseModel):
    text: str = ""


class Nowhere(msgspec.Struct):
    later: Missing | None = None  # type: ignore[name-defined]  # noqa: F821


def test_a_state_that_names_nothing_is_refused_when_it_is_added() -> None:
    saga = saga_of(Nowhere)
    with pytest.raises(ConfigurationError, match="'Missing' is not defined"):
        App("x@svc").add(saga)


# Whole, on a worker.


@payload("kept.asked")
class Asked(pydantic.BaseModel):
    mode: Literal["typed", "untyped", "argument", "checkpoint"] = "typed"


@payload("kept.told")
class Told(pydantic.BaseModel):
    found: dict[str, Any]


PAID: list[str] = []


async def think(about: Any) -> PartModel:
    PAID.append(str(about))
    return PartModel(tags=["a"], price=decimal.Decimal("1.50"))


keeper = App("keeper@svc")


@keeper.on(Asked, retry=Retry(attempts=3, base_s=0.1))
async def keep(asked: Asked, context: Context) -> Told:
    found: Any = None
    if asked.mode == "typed":
        found = (await context.step("think", think, "x", type=PartModel)).model_dump(mode="json")
    elif asked.mode == "untyped":
        found = await context.step("think", think, "x")
    elif asked.mode == "argument":
        found = await context.step("think", think, asked)
    else:
        before = await context.resumed(PartModel)
        await context.checkpoint(await think("x"))
        found = {} if before is None else before.model_dump(mode="json")
    if context.attempt == 1:
        raise RuntimeError("once more")
    return Told(found=found)


@pytest.mark.parametrize("mode", ["typed", "untyped", "argument", "checkpoint"])
async def test_a_model_is_kept_by_a_worker(mode: Any) -> None:
    PAID.clear()
    async with keeper.test() as bus:
        await bus.publish(Asked(mode=mode), idempotency_key="1")
        await bus.advance(20)
        bus.assert_all_handled()
        assert bus.sent(Told) == [Told(found={"price": "1.50", "at": None, "tags": ["a"]})]
        assert len(PAID) == (2 if mode == "checkpoint" else 1)


@payload("kept.opened")
class Opened(pydantic.BaseModel):
    id: str


@payload("kept.changed")
class Changed(pydantic.BaseModel):
    id: str
    part: PartModel
    wrong: bool = False


@payload("kept.question")
class Question(pydantic.BaseModel):
    text: str


@payload("kept.answer")
class Answer(pydantic.BaseModel):
    part: PartModel


class KeepingModel(pydantic.BaseModel):
    opened: Opened | None = None
    parts: list[PartModel] = []


class KeepingStruct(msgspec.Struct):
    opened: Opened | None = None
    parts: list[PartModel] = []


def keeping(state: Any) -> App:
    class Keeping(Saga[Any], state=state, version="1.0.0"):
        @on_start(Opened, key="/data/id")
        async def opened(self, opened: Opened, context: SagaContext) -> None:
            self.state.opened = opened
            context.ask("part", Question(text="which?"), to="answerer@svc", answer_by_s=60)

        @on_answer("part", Answer)
        async def answered(self, answer: Answer, context: SagaContext) -> None:
            self.state.parts.append(answer.part)

        @on_message(Changed, key="/data/id", admits="anyone")
        async def changed(self, changed: Changed, context: SagaContext) -> None:
            self.state.parts.append("wrong" if changed.wrong else changed.part)
            context.timer("end", 1)

        @on_timer("end")
        async def ended(self, context: SagaContext) -> None:
            context.answer(Told(found={"opened": self.state.opened.id, "parts": self.state.parts}))
            context.finish()

        @on_failure("part")
        async def unanswered(self, context: SagaContext) -> None:
            context.finish()

    app = App("keeping@svc", types=[Question, Told])
    app.add(Keeping)
    return app


answerer = App("answerer@svc")


@answerer.on(Question)
async def answer(_: Question) -> Answer:
    return Answer(part=PartModel(tags=["answered"]))


@pytest.mark.parametrize("state", [KeepingModel, KeepingStruct])
async def test_models_live_in_the_state_of_a_process(state: Any) -> None:
    async with keeping(state).test(answerer) as bus:
        await bus.publish(Opened(id="1"))
        await bus.advance(1)
        await bus.publish(Changed(id="1", part=PartModel(tags=["changed"])))
        await bus.advance(120)
        bus.assert_all_handled()
        (told,) = bus.sent(Told)
        assert told.found["opened"] == "1"
        assert [part["tags"] for part in told.found["parts"]] == [["answered"], ["changed"]]


@pytest.mark.parametrize("state", [KeepingModel, KeepingStruct])
async def test_a_state_that_no_later_step_could_read_is_not_written(state: Any) -> None:
    async with keeping(state).test(answerer) as bus:
        await bus.publish(Opened(id="1"))
        await bus.advance(1)
        await bus.publish(Changed(id="1", part=PartModel(), wrong=True))
        await bus.settle()
        assert [letter.reason for letter in bus.dead_letters] == ["rejected"]
        with pytest.raises(AssertionError, match=r"the state of keeping is not a Keeping\w+ that can be stored"):
            bus.assert_all_handled()
        # The process goes on with what it had.
        await bus.publish(Changed(id="1", part=PartModel(tags=["changed"])))
        await bus.advance(120)
        assert [part["tags"] for part in bus.sent(Told)[0].found["parts"]] == [["answered"], ["changed"]]
