"""Types of apps and foreign names of types, in every codec that opens with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.dialects import DIALECTS, cloudevents, open_dialect
from bus.dialects.sealing import seal_foreign
from bus.dialects.type_names import TypeNames, type_names_of
from bus.errors import ConfigurationError, ContractError, DialectError
from bus.payloads.payload_types import Registry, payload
from bus.protocol.sealing import Message
from bus.settings.loading import load
from bus.vocabulary.known import known_types

EVENT = {
    "specversion": "1.0",
    "id": "e-1",
    "source": "https://github.com/acme",
    "type": "com.github.pull_request.opened",
    "time": "2026-01-31T12:00:00Z",
    "data": {"number": 1},
}


@payload("github.pull-request-opened", performative="inform")
class Opened(msgspec.Struct, frozen=True, kw_only=True):
    number: int


@payload("order.placed", performative="inform")
class Placed(msgspec.Struct, frozen=True, kw_only=True):
    number: int


TYPES = known_types([Registry([Opened]), Registry([Placed])])
NAMES = TypeNames(
    ["com.example.", "com.example.eu."],
    {"com.github.pull_request.opened": "github.pull-request-opened", "GitHub.PR.1": "github.pull-request-opened"},
)


def sealed(event: dict[str, Any], names: TypeNames = NAMES) -> Message:
    foreign = open_dialect("cloudevents", types=TYPES, names=names).decode(json.dumps(event).encode())
    return seal_foreign(foreign, namespace="agents", types=TYPES)


@pytest.mark.parametrize(
    ("foreign", "own"),
    [
        ("com.github.pull_request.opened", "github.pull-request-opened"),
        ("GitHub.PR.1", "github.pull-request-opened"),
        ("github.pull-request-opened", "github.pull-request-opened"),
        ("com.example.order.placed", "order.placed"),
        ("com.example.eu.order.placed", "order.placed"),
        ("order.placed", "order.placed"),
    ],
)
def test_a_foreign_name_is_read_as_our_type_and_written_as_it_was(foreign: str, own: str) -> None:
    event = EVENT | {"type": foreign}
    message = sealed(event)
    assert message.message_type == own
    assert open_dialect("cloudevents", types=TYPES, names=NAMES).encode(message) == event


def test_a_message_of_ours_is_written_with_its_foreign_name_and_read_back() -> None:
    message = sealed(EVENT | {"type": "github.pull-request-opened"}, TypeNames())
    opened = open_dialect("cloudevents", types=TYPES, names=NAMES)
    event = opened.encode(message)
    assert seal_foreign(opened.decode(event), namespace="agents", types=TYPES).message_type == message.message_type


@pytest.mark.parametrize("carry", [False, True])
@pytest.mark.parametrize("http", [False, True])
def test_every_mode_maps_names(carry: bool, http: bool) -> None:
    message = sealed(EVENT)
    options: dict[str, Any] = {"types": TYPES, "names": NAMES}
    headers, body = cloudevents.encode_binary(message, carry=carry, http=http, **options)
    assert headers["ce-type" if http else "ce_type"] == "com.github.pull_request.opened"
    (batched,) = cloudevents.encode_batch([message], carry=carry, **options)
    assert batched["type"] == "com.github.pull_request.opened"
    (again,) = cloudevents.decode_batch(json.dumps([batched]).encode(), **options)
    for foreign in (cloudevents.decode_record(headers, body, **options), again):
        assert not isinstance(foreign, DialectError)
        found = seal_foreign(foreign, namespace="agents", types=TYPES)
        assert found.message_type == "github.pull-request-opened"
        if carry:
            assert found.value == message.value


def test_a_type_that_would_be_read_as_another_is_not_written() -> None:
    @payload("com.example.order.placed", performative="inform")
    class Shadowed(msgspec.Struct, frozen=True, kw_only=True):
        number: int

    types = known_types([Registry([Shadowed]), TYPES])
    foreign = open_dialect("cloudevents", types=types).decode(EVENT | {"type": "com.example.order.placed"})
    message = seal_foreign(foreign, namespace="agents", types=types)
    with pytest.raises(DialectError) as caught:
        open_dialect("cloudevents", types=types, names=NAMES).encode(
            seal_foreign(msgspec.structs.replace(foreign, data={"number": 1}), namespace="agents", types=types)
        )
    assert caught.value.pointer == "/metadata/message_type"
    assert message.message_type == "com.example.order.placed"


WORDS = st.from_regex(r"[a-z]{1,5}(\.[a-z]{1,5}){0,2}", fullmatch=True)


@given(
    prefixes=st.lists(WORDS.map(lambda word: f"{word}."), max_size=3),
    names=st.dictionaries(st.text("abAB._1", min_size=1, max_size=8), WORDS, max_size=4),
    own=WORDS,
)
def test_what_is_written_is_read_back_or_refused(prefixes: list[str], names: dict[str, str], own: str) -> None:
    found = TypeNames(prefixes, names)
    kind = payload(own, performative="inform")(msgspec.defstruct("Any", [("number", int)]))
    types = known_types([Registry([kind])])
    foreign = open_dialect("cloudevents", types=types).decode(EVENT | {"type": own})
    message = seal_foreign(foreign, namespace="agents", types=types)
    opened = open_dialect("cloudevents", types=types, names=found)
    try:
        event = opened.encode(message)
    except DialectError:
        assert found.read(found.written(own)) != own
        return
    assert seal_foreign(opened.decode(event), namespace="agents", types=types).message_type == own


@pytest.mark.parametrize("name", [name for name in DIALECTS if name != "speech-acts"])
def test_a_type_of_an_app_goes_through_every_dialect_that_can_say_it(name: str) -> None:
    message = sealed(EVENT | {"type": "order.placed", "source": "planner@svc", "subject": "shop@svc"})
    opened = open_dialect(name, types=TYPES, names=NAMES)
    try:
        written = opened.encode(message)
    except ContractError:
        return
    found = seal_foreign(opened.decode(json.dumps(written).encode()), namespace="agents", types=TYPES)
    assert (found.message_type, json.loads(found.data)["number"]) == ("order.placed", 1)


def test_an_unknown_type_names_the_setting() -> None:
    with pytest.raises(DialectError, match=r"dialects\.type_names"):
        open_dialect("cloudevents", types=TYPES).decode(EVENT)


def test_settings_have_the_names(tmp_path: Path) -> None:
    file = tmp_path / "sealbus.toml"
    file.write_text(
        '[dialects]\ntype_prefixes = ["com.example."]\n'
        'type_names = ["com.github.pull_request.opened=github.pull-request-opened", "a=b=c=order.placed"]\n'
    )
    names = type_names_of(load(env={}, file=file).settings)
    assert names.read("com.github.pull_request.opened") == "github.pull-request-opened"
    assert names.read("a=b=c") == "order.placed"
    assert names.read("com.example.order.placed") == "order.placed"
    assert names.written("order.placed") == "a=b=c"
    names.check(TYPES.names())
    with pytest.raises(ConfigurationError, match=r"order\.placed, which is not known here"):
        names.check(["github.pull-request-opened"])


@pytest.mark.parametrize("entry", ["com.github.push", "=order.placed", "a=Order_Placed", "a\nb=order.placed"])
def test_a_wrong_entry_is_refused(tmp_path: Path, entry: str) -> None:
    file = tmp_path / "sealbus.toml"
    file.write_text(f"[dialects]\ntype_names = [{json.dumps(entry)}]\n")
    with pytest.raises(ConfigurationError):
        type_names_of(load(env={}, file=file).settings)


def test_one_name_for_two_types_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "sealbus.toml"
    file.write_text('[dialects]\ntype_names = ["a=order.placed", "a=order.paid"]\n')
    with pytest.raises(ConfigurationError, match="is mapped to"):
        type_names_of(load(env={}, file=file).settings)
