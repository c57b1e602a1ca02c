"""`sealbus type upcaster` writes the upcaster that heals letters whose sender has another idea of a type."""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.payloads.payload_types import payload_type
from consumers.deadletters.adapter import adapter_of
from sealbus import payload

WRITERS = """
import msgspec
from sealbus import App, payload

@payload("order.placed", version="1.0.0")
class Order(msgspec.Struct, frozen=True, kw_only=True):
    quantity: str
    curency: str
    colour: str = ""

app = App("writer@svc", types=[Order])
"""
READER = """
import msgspec
from sealbus import App, payload
{upcaster}

@payload("order.placed", version="{version}"{upcasters})
class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    quantity: int
    currency: str
    note: str = ""

app = App("stock@svc")

@app.on(Order)
async def take(order: Order) -> None:
    with open("handled.txt", "a") as out:
        out.write(f"{{order.quantity}} {{order.currency}}\\n")
"""


@pytest.mark.medium
def test_a_generated_upcaster_heals_letters_of_a_sender_with_other_names(folder: Any) -> None:
    sys.modules.pop("writers", None)
    (folder.path / "writers.py").write_text(WRITERS)
    (folder.path / "agents.py").write_text(READER.format(upcaster="", version="1.0.0", upcasters=""))
    worker = folder.worker()
    orders = "\n".join(json.dumps({"quantity": str(n), "curency": "EUR", "colour": "red"}) for n in range(5))
    assert folder.call("publish", "order.placed", "--app", "writers:app", stdin=orders).exit_code == 0
    listed = lambda: folder.objects(folder.call("dlq", "list", "-o", "json").stdout)  # noqa: E731
    folder.wait_until(lambda: len(listed()) == 5)
    folder.end(worker)
    sys.modules.pop("agents", None)
    made = folder.call("type", "upcaster", listed()[0]["location"], "--app", "agents:app")
    assert made.exit_code == 0, made.stdout + made.stderr
    assert 'version="2.0.0", upcasters={1: from_1}' in made.stderr
    text = READER.format(upcaster=made.stdout, version="2.0.0", upcasters=", upcasters={1: from_1}")
    (folder.path / "agents.py").write_text(text)
    folder.worker()
    redriven = folder.call("dlq", "redrive", "--type", "order.placed", "--yes", "--why", "healed", "--wait")
    assert redriven.exit_code == 0, redriven.stdout + redriven.stderr
    assert sorted(folder.handled()) == [[str(n), "EUR"] for n in range(5)]


def test_what_cannot_be_guessed_raises_in_the_code_and_is_counted(folder: Any) -> None:
    (folder.path / "others.py").write_text(WRITERS.replace("curency: str", "owner: str"))
    reader = READER.format(upcaster="", version="1.0.0", upcasters="").replace(
        "note: str", "due_day: int\n    note: str"
    )
    (folder.path / "agents.py").write_text(reader)
    folder.worker()
    order = '{"quantity": "1", "owner": "me"}'
    sent = folder.call("publish", "order.placed", "--app", "others:app", stdin=order)
    assert sent.exit_code == 0, sent.output
    listed = lambda: folder.objects(folder.call("dlq", "list", "-o", "json").stdout)  # noqa: E731
    folder.wait_until(lambda: len(listed()) == 1)
    made = folder.call("type", "upcaster", listed()[0]["location"], "--app", "agents:app")
    assert made.exit_code == 1
    assert "raise NotImplementedError('due_day is required: what stands for it?')" in made.stdout


@payload("adapted.wanted", version="1.0.0")
class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    number: int


@given(name=st.text(min_size=1, max_size=30))
def test_a_hostile_name_is_a_literal(name: str) -> None:
    made = adapter_of(payload_type(Wanted), {name: 1}, 1)
    assert made is not None
    compile(made.source, "made", "exec")
    assert made.source.isascii()
