"""Any union of models: a value is read as it was written, or refused, when it is marked or published."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Annotated, Any, Literal, Union

import pydantic
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from bus.errors import ContractError
from bus.payloads.payload_types import encode_payload, payload, payload_type
from bus.protocol import canonical
from bus.schemas.json_schema import schema_of

FIELDS: dict[str, Any] = {
    "text": (str, ...),
    "number": (int, ...),
    "ratio": (float, 0.5),
    "word": (Literal["a"], "a"),
    "other": (Literal["b"], "b"),
    "flag": (bool, False),
    "at": (dt.datetime, ...),
    "identity": (uuid.UUID | None, None),
    "price": (Decimal | str, "1"),
    "open": (Any, None),
}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "text": st.sampled_from(["", "a", "b"]),
    "number": st.integers(-5, 5),
    "ratio": st.sampled_from([0.5, 2.0]),
    "word": st.just("a"),
    "other": st.just("b"),
    "flag": st.booleans(),
    "at": st.sampled_from([dt.datetime(2026, 1, 31, tzinfo=dt.UTC)]),
    "identity": st.sampled_from([None, uuid.UUID(int=1)]),
    "price": st.sampled_from(["1", "x", Decimal("1.5")]),
    "open": st.sampled_from([None, 1, "a", {"text": "a"}, [1]]),
}
SHAPES = st.dictionaries(st.sampled_from(["one", "two", "kind"]), st.sampled_from(sorted(FIELDS)), max_size=3)


@st.composite
def unions(draw: st.DrawFn) -> tuple[Any, Any]:
    """An annotation, and a value of it."""
    shapes = draw(st.lists(SHAPES, min_size=2, max_size=3))
    extras: list[Any] = [draw(st.sampled_from([None, None, "allow", "forbid"])) for _ in shapes]
    classes = [
        pydantic.create_model(
            f"Shape{number}",
            __config__=pydantic.ConfigDict(extra=extra) if extra else None,
            **{name: FIELDS[field] for name, field in shape.items()},
        )
        for number, (shape, extra) in enumerate(zip(shapes, extras, strict=True))
    ]
    others = draw(st.sampled_from([(), (str,), (None,), (int, None)]))
    annotation: Any = Union[(*classes, *others)]
    if draw(st.booleans()) and all(shape.get("kind") in ("word", "other") for shape in shapes) and not others:
        annotation = Annotated[annotation, Field(discriminator="kind")]
    chosen = draw(st.integers(0, len(classes) - 1))
    given_fields = {name: draw(VALUES[field]) for name, field in shapes[chosen].items()}
    return annotation, classes[chosen](**given_fields)


@settings(max_examples=300, deadline=None)
@given(unions(), st.sampled_from(["alone", "list", "map"]))
def test_a_value_of_any_union_is_read_as_it_was_or_refused(union: tuple[Any, Any], place: str) -> None:
    annotation, value = union
    wrapped: Any = {"alone": annotation, "list": list.__class_getitem__(annotation)}.get(
        place, dict.__class_getitem__((str, annotation))
    )
    put: Any = {"alone": value, "list": [value, value], "map": {"a": value}}[place]
    try:
        holder = pydantic.create_model("Holder", x=(wrapped, ...))
    except TypeError:  # pydantic itself refuses equal tags
        return
    try:
        kind = payload_type(payload("any.union")(holder))
        kind.resolve()
    except (TypeError, ContractError):
        return
    schema_of(kind)
    subject = holder.model_construct(x=put)
    try:
        data = encode_payload(subject)
    except ContractError:
        return
    assert canonical.is_canonical(data, canonical.parse_canonical(data))
    assert kind.decode(data) == subject
