"""CloudEvents 1.0: every mode, and the official Python SDK as the other side."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import unquote

import pytest
from cloudevents.core.bindings import http, kafka
from cloudevents.core.formats.json import JSONFormat

from bus.dialects import cloudevents
from bus.dialects.cloudevents import WRAPPED, decode, decode_batch, decode_binary, decode_record, encode, encode_binary
from bus.dialects.sealing import seal_foreign
from bus.errors import DialectError
from bus.protocol.envelope import Agent, Security
from bus.protocol.sealing import Message
from tests.bus.dialects.foreign_messages import fault_of, message_of

EVENT: dict[str, Any] = {
    "specversion": "1.0",
    "id": "1",
    "source": "sealbus://lab/planner%40svc",
    "type": "task.accepted",
    "time": "2026-01-31T12:00:00Z",
    "data": {"understood_goal": "g"},
}


@pytest.fixture
def message() -> Message:
    """A message with most of what an envelope can have, and texts beyond ASCII."""
    return message_of(
        "task.request",
        1,
        to=Agent(role="prüfer"),
        key='k"%',
        idempotency_key="key ☂",
        priority=7,
        conversation_id="c-1",
        task_id="task-1",
        sequence=12,
        traceparent="00-" + "1" * 32 + "-" + "2" * 16 + "-01",
        security=Security(data_classification="secret", trust_level="user_request"),
    )


def without(name: str) -> dict[str, Any]:
    return {attribute: value for attribute, value in EVENT.items() if attribute != name}


# --- the table --------------------------------------------------------------------------------------------------------


def test_attributes_say_the_envelope(message: Message) -> None:
    event = encode(message)
    assert {name: value for name, value in event.items() if name != "data"} == {
        "specversion": "1.0",
        "id": message.message_id,
        "source": "sealbus://lab/planner-1",
        "type": "task.request",
        "dataschema": "urn:sealbus:schema:task.request:1.0.0",
        "time": "2026-01-01T00:00:00Z",
        "expirytime": "2026-01-01T00:01:30Z",
        "subject": "role:prüfer",
        "sbconversation": "c-1",
        "partitionkey": 'k"%',
        "correlationid": "2fbb2e8b-1c6a-4a53-a2b9-f90d15c7f9f7",
        "sequence": "12",
        "traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01",
        "dataclassification": "secret",
        "sbtask": "task-1",
        "sbkey": "key ☂",
        "sbpriority": 7,
        "sbtrust": "user_request",
        "datacontenttype": "application/json",
    }
    foreign = decode(event)
    assert foreign.options.to == Agent(role="prüfer")
    assert foreign.options.key == 'k"%'
    assert foreign.options.sequence == 12
    assert foreign.claims.namespace == "lab"
    assert foreign.claims.trust_level == "user_request"
    assert foreign.options.security == Security(data_classification="secret")


@pytest.mark.parametrize("name", ["specversion", "id", "source", "type", "data"])
def test_an_event_has_its_required_attributes(name: str) -> None:
    error = fault_of(lambda: decode(without(name)))
    assert (error.pointer, error.found) == (f"/{name}", "nothing")


@pytest.mark.parametrize(
    ("changed", "pointer", "reason"),
    [
        ({"specversion": "0.3"}, "/specversion", "unsupported_version"),
        ({"id": "two words"}, "/id", "malformed"),
        ({"source": ""}, "/source", "malformed"),
        ({"source": "sealbus://lab/%ff"}, "/source", "malformed"),
        ({"type": "no.such"}, "/type", "unknown_type"),
        ({"dataschema": "https://a.example/schema"}, "/dataschema", "malformed"),
        ({"dataschema": "urn:sealbus:schema:task.accepted:9.0.0"}, "/dataschema", "unsupported_version"),
        ({"datacontenttype": "text/xml"}, "/datacontenttype", "malformed"),
        ({"time": "yesterday"}, "/time", "malformed"),
        ({"expirytime": "2026-01-31T12:00:00Z"}, "/expirytime", "malformed"),
        ({"sequence": "seven"}, "/sequence", "malformed"),
        ({"sbpriority": 10}, "/sbpriority", "malformed"),
        ({"Upper": "x"}, "/Upper", "malformed"),
        ({"other": {"a": 1}}, "/other", "malformed"),
        ({"dataref": "https://a.example", "data": {}}, "/dataref", "malformed"),
        ({"data": [1]}, "/data", "malformed"),
        ({"data": None}, "/data", "malformed"),
        ({"data": {"understood_goal": 5}}, "/data/understood_goal", "schema_violation"),
        ({"data": {"understood_goal": "g", "x_dialect": {}}}, "/data/x_dialect", "malformed"),
        ({"data_base64": "e30="}, "/data_base64", "malformed"),
    ],
)
def test_what_an_attribute_may_not_be_is_refused(changed: dict[str, Any], pointer: str, reason: str) -> None:
    error = fault_of(lambda: decode({**EVENT, **changed}))
    assert (error.pointer, error.reason) == (pointer, reason)


def test_a_known_prefix_is_taken_off_the_type() -> None:
    event = {**EVENT, "type": "com.example.task.accepted"}
    assert fault_of(lambda: decode(event)).pointer == "/type"
    foreign = decode(event, prefixes=("com.example.",))
    assert foreign.type == "task.accepted"
    sealed = seal_foreign(foreign, namespace="lab")
    assert encode(sealed, prefixes=("com.example.",)) == event
    # Without the setting, a reader would not know the type.
    assert encode(sealed)["type"] == "task.accepted"


def test_a_level_outside_the_eight_claims_the_least_of_a_model() -> None:
    foreign = decode({**EVENT, "sbtrust": "internal_agent"})
    assert foreign.claims.trust_level == "model_generated"
    assert foreign.data["x_dialect"]["kept"]["/sbtrust"] == "internal_agent"


def test_a_cause_is_a_claim_and_hops_are_ignored() -> None:
    foreign = decode({**EVENT, "causationid": "m-0", "sbhops": 7})
    assert foreign.claims.cause_id == "m-0"
    sealed = seal_foreign(foreign, namespace="lab")
    assert (sealed.metadata.hops, sealed.metadata.causation_id, sealed.metadata.correlation_id) == (0, None, "m-0")


# --- wrapped ----------------------------------------------------------------------------------------------------------


def test_a_wrapped_message_is_the_exact_record(message: Message) -> None:
    event = encode(message, carry=True)
    assert event["datacontenttype"] == WRAPPED
    assert base64.b64decode(event["data_base64"]) == message.value
    foreign = decode(event)
    assert foreign.carried is not None
    assert foreign.carried.value == message.value


@pytest.mark.parametrize(
    "changed",
    [
        {"id": "other"},
        {"source": "sealbus://lab/somebody"},
        {"source": "sealbus://other/planner-1"},
        {"type": "task.result"},
        {"subject": "worker-1"},
        {"time": "2026-01-01T00:00:01Z"},
        {"expirytime": "2027-01-01T00:00:00Z"},
        {"partitionkey": "c-1"},
        {"sbpriority": 8},
        {"sbtrust": "platform_policy"},
        {"causationid": "m-0"},
        {"sbhops": 1},
        {"dataschema": "urn:sealbus:schema:task.request:1.0.1"},
    ],
)
def test_an_attribute_that_contradicts_the_wrapped_message_is_refused(
    message: Message, changed: dict[str, Any]
) -> None:
    error = fault_of(lambda: decode({**encode(message, carry=True), **changed}))
    assert (error.pointer, error.reason) == (f"/{next(iter(changed))}", "x_sealbus_mismatch")


def test_attributes_of_others_and_other_spellings_do_not_contradict(message: Message) -> None:
    event = {**encode(message, carry=True), "time": "2026-01-01T01:00:00.000+01:00", "arrived": "today"}
    del event["sbpriority"]
    assert decode(event).carried is not None


@pytest.mark.parametrize("name", ["specversion", "id", "source", "type", "data_base64"])
def test_a_wrapped_event_has_its_required_attributes(message: Message, name: str) -> None:
    event = encode(message, carry=True)
    del event[name]
    assert fault_of(lambda: decode(event)).pointer == f"/{name}"


def relayed(message: Message, way: str) -> dict[str, Any]:
    """The wrapped *message* as a relay brings it from headers and a body into a structure."""
    headers, body = encode_binary(message, carry=True, http=True)
    event: dict[str, Any] = {
        name.removeprefix("ce-"): text if "undecoded" in way else unquote(text)
        for name, text in headers.items()
        if name.startswith("ce-")
    }
    event["datacontenttype"] = headers["content-type"] + ("; charset=utf-8" if way == "with a charset" else "")
    data: Any = json.loads(body) if way == "as JSON" else body.decode()
    return {**event, "data": json.dumps(json.loads(body)) if way == "as rewritten text" else data}


@pytest.mark.parametrize("way", ["as text", "as JSON", "as rewritten text", "with a charset", "undecoded"])
def test_a_wrapped_message_survives_a_relay_into_a_structure(message: Message, way: str) -> None:
    foreign = decode(json.dumps(relayed(message, way)).encode())
    assert foreign.carried is not None
    assert foreign.carried.value == message.value


def test_a_wrapped_message_survives_a_relay_that_writes_its_json_anew(message: Message) -> None:
    headers, body = encode_binary(message, carry=True)
    foreign = decode_binary(headers, json.dumps(json.loads(body), indent=1).encode())
    assert foreign.carried is not None
    assert foreign.carried.value == message.value


@pytest.mark.parametrize(
    ("changed", "pointer", "reason"),
    [({"sequence": 13}, "/data", "seal_mismatch"), ({"hops": 1.5}, "/data", "malformed")],
)
def test_what_a_relay_has_changed_is_refused(
    message: Message, changed: dict[str, Any], pointer: str, reason: str
) -> None:
    headers, body = encode_binary(message, carry=True)
    tree = json.loads(body)
    tree["metadata"] |= changed
    error = fault_of(lambda: decode_binary(headers, json.dumps(tree).encode()))
    assert (error.pointer, error.reason) == (pointer, reason)


def test_a_rewritten_record_has_every_member_once(message: Message) -> None:
    headers, body = encode_binary(message, carry=True)
    twice = body.replace(b'"hops":0', b'"hops": 0, "hops": 0')
    assert fault_of(lambda: decode_binary(headers, twice)).pointer == "/data/metadata"
    event = {**relayed(message, "as text"), "data_base64": ""}
    assert fault_of(lambda: decode(event)).expected == "data_base64 alone"
    assert fault_of(lambda: decode({**relayed(message, "as text"), "data": 5})).pointer == "/data"
    assert fault_of(lambda: decode({**relayed(message, "as text"), "data": "no JSON"})).reason == "malformed"


def test_a_changed_record_is_refused(message: Message) -> None:
    value = message.value.replace(b'"sequence":12', b'"sequence":13')
    event = {**encode(message, carry=True), "data_base64": base64.b64encode(value).decode()}
    error = fault_of(lambda: decode(event))
    assert (error.pointer, error.reason) == ("/data_base64", "seal_mismatch")


# --- binary, records and batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_http", [False, True])
@pytest.mark.parametrize("carry", [False, True])
def test_binary_mode_says_the_same(message: Message, carry: bool, is_http: bool) -> None:
    headers, body = encode_binary(message, carry=carry, http=is_http)
    if is_http:
        assert all(text.isascii() and " " not in text for text in headers.values())
    foreign = decode_binary({name: text.encode() for name, text in headers.items()}, body)
    sealed = seal_foreign(foreign, namespace="lab")
    assert encode_binary(sealed, carry=carry, http=is_http) == (headers, body)
    if not carry:
        assert encode(sealed) == encode(message)


def test_errors_in_the_body_of_binary_mode_name_the_data(message: Message) -> None:
    headers, _ = encode_binary(message)
    assert fault_of(lambda: decode_binary(headers, b"{")).pointer == "/data"
    assert fault_of(lambda: decode_binary(headers, b'{"a":{"b":1,"b":1}}')).pointer == "/data/a"
    assert fault_of(lambda: decode_binary(headers, b'{"goal":""}')).pointer == "/data/goal"


def test_a_null_value_is_no_event(message: Message) -> None:
    headers, _ = encode_binary(message)
    assert fault_of(lambda: decode_binary(headers, None)).reason == "malformed"
    assert fault_of(lambda: decode_record({"content-type": "application/cloudevents+json"}, None)).reason == "malformed"


def test_a_header_that_is_there_twice_or_no_text_is_refused() -> None:
    pairs = [("ce_id", b"1"), ("CE_ID", b"2")]
    assert fault_of(lambda: decode_binary(pairs, b"{}")).pointer == "/id"
    assert fault_of(lambda: decode_binary([("ce_id", b"\xff")], b"{}")).pointer == "/id"
    assert fault_of(lambda: decode_binary([("ce_id", None)], b"{}")).pointer == "/id"
    assert fault_of(lambda: decode_binary([("ce-id", "%ff")], b"{}")).pointer == "/id"


def test_the_content_type_tells_the_mode(message: Message) -> None:
    structured = {"Content-Type": "application/cloudevents+json; charset=utf-8"}
    assert decode_record(structured, json.dumps(EVENT).encode()).type == "task.accepted"
    headers, body = encode_binary(message)
    assert decode_record(headers.items(), body).type == "task.request"
    batch = {"content-type": "application/cloudevents-batch+json"}
    assert fault_of(lambda: decode_record(batch, b"[]")).expected == "one event: batches come by HTTP alone"


def test_each_event_of_a_batch_is_judged_for_itself() -> None:
    twice = b'{"specversion":"1.0","id":"1","id":"1"}'
    batch = (
        b"[" + b",".join([json.dumps(EVENT).encode(), twice, b"5", json.dumps({**EVENT, "id": "2"}).encode()]) + b"]"
    )
    first, second, third, fourth = decode_batch(batch)
    assert not isinstance(first, DialectError)
    assert not isinstance(fourth, DialectError)
    assert (first.options.message_id, fourth.options.message_id) == ("1", "2")
    assert isinstance(second, DialectError)
    assert isinstance(third, DialectError)
    assert fault_of(lambda: decode_batch(b"{}")).expected == "a JSON list of events"
    assert fault_of(lambda: decode_batch(b"[" * 100_000)).expected == "a JSON list of events"


# --- the official SDK as the other side -------------------------------------------------------------------------------


@pytest.mark.parametrize("carry", [False, True])
def test_the_official_sdk_reads_what_is_written(message: Message, carry: bool) -> None:
    event = encode(message, carry=carry)
    theirs = JSONFormat().read(None, json.dumps(event))
    assert (theirs.get_id(), theirs.get_source(), theirs.get_type()) == (event["id"], event["source"], event["type"])
    assert theirs.get_extension("sbpriority") == 7
    assert theirs.get_data() == (message.value if carry else event["data"])
    headers, body = encode_binary(message, carry=carry)
    record = kafka.KafkaMessage(headers={name: text.encode() for name, text in headers.items()}, key=None, value=body)
    from_kafka = kafka.from_kafka(record, JSONFormat())
    assert from_kafka.get_extension("sbkey") == "key ☂"
    headers, body = encode_binary(message, carry=carry, http=True)
    from_http = http.from_http(http.HTTPMessage(headers=headers, body=body), JSONFormat())
    assert from_http.get_extension("sbkey") == "key ☂"
    assert from_http.get_subject() == "role:prüfer"


@pytest.mark.parametrize("carry", [False, True])
@pytest.mark.parametrize("mode", ["structured", "binary", "http"])
def test_what_the_official_sdk_writes_again_is_read(message: Message, carry: bool, mode: str) -> None:
    theirs = JSONFormat().read(None, json.dumps(encode(message, carry=carry)))
    if mode == "http":
        request = http.to_binary(theirs, JSONFormat())
        foreign = decode_record(request.headers, request.body)
    else:
        to_kafka = kafka.to_binary if mode == "binary" else kafka.to_structured
        record = to_kafka(theirs, JSONFormat())
        foreign = decode_record(record.headers, record.value)
    if carry:
        assert foreign.carried is not None
        assert foreign.carried.value == message.value
    else:
        assert encode(seal_foreign(foreign, namespace="lab")) == encode(message)


def test_the_partition_key_that_the_sdk_adds_is_the_record_key() -> None:
    message = message_of("task.accepted", 1)
    headers, body = encode_binary(message)
    record = kafka.KafkaMessage(
        headers={name: text.encode() for name, text in headers.items()}, key=message.key, value=body
    )
    theirs = kafka.from_binary(record, JSONFormat())
    again = kafka.to_binary(theirs, JSONFormat())
    assert decode_record(again.headers, again.value).options.key is None
    assert cloudevents.encode(message)["partitionkey"] == message.key.decode()


RELAYS = ("http binary", "http structured", "kafka binary", "kafka structured")


def given_to_sdk(message: Message, mode: str) -> Any:
    """The wrapped *message* as the official SDK reads it."""
    headers, body = encode_binary(message, carry=True, http=mode.startswith("http"))
    value = json.dumps(encode(message, carry=True)).encode()
    match mode:
        case "http binary":
            return http.from_binary_event(http.HTTPMessage(headers, body))
        case "http structured":
            return http.from_structured_event(http.HTTPMessage({"content-type": cloudevents.STRUCTURED}, value))
        case "kafka binary":
            sent = {name: text.encode() for name, text in headers.items()}
            return kafka.from_binary_event(kafka.KafkaMessage(sent, None, body))
        case _:
            header = {"content-type": cloudevents.STRUCTURED.encode()}
            return kafka.from_structured_event(kafka.KafkaMessage(header, None, value))


def sent_by_sdk(event: Any, mode: str) -> tuple[Any, bytes]:
    """Headers and body of what the official SDK writes."""
    library = http if mode.startswith("http") else kafka
    written = library.to_binary_event(event) if mode.endswith("binary") else library.to_structured_event(event)
    return list(written.headers.items()), written.body if mode.startswith("http") else written.value


@pytest.mark.parametrize("onwards", RELAYS)
@pytest.mark.parametrize("came", RELAYS)
def test_a_wrapped_message_survives_a_relay_with_the_official_sdk(message: Message, came: str, onwards: str) -> None:
    headers, body = sent_by_sdk(given_to_sdk(message, came), onwards)
    foreign = decode_record(headers, body)
    assert foreign.carried is not None
    assert foreign.carried.value == message.value
    again = sent_by_sdk(given_to_sdk(foreign.carried, onwards), came)
    assert decode_record(*again).carried == foreign.carried
