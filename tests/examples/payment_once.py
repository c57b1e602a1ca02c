"""A payment that is booked once, however often its message comes and whenever the worker dies.

The booking and the note that the message is done are one transaction, in the inbox's own database.

    sealbus run payment_once:app
"""

from __future__ import annotations

import msgspec

from sealbus import App, Context, payload


@payload("payment.due")
class PaymentDue(msgspec.Struct, frozen=True, kw_only=True):
    payment: str
    cents: int


@payload("payment.booked")
class PaymentBooked(msgspec.Struct, frozen=True, kw_only=True):
    payment: str


app = App("ledger@svc")
TABLE = "create table if not exists bookings (payment text primary key, cents integer not null)"


@app.on(PaymentDue)
async def book(due: PaymentDue, context: Context) -> PaymentBooked:
    transaction = await context.transaction()
    await transaction.execute("insert into bookings values ($1, $2)", due.payment, due.cents)
    return PaymentBooked(payment=due.payment)


async def test_a_payment_is_booked_once() -> None:
    async with app.test() as bus:
        await bus.database.execute(TABLE)
        for _ in range(3):
            await bus.publish(PaymentDue(payment="p-1", cents=250), idempotency_key="p-1")
        await bus.settle()
        bus.assert_all_handled()
        assert await bus.database.fetch("select * from bookings") == [("p-1", 250)]


async def test_other_content_under_the_same_key_is_a_conflict() -> None:
    async with app.test() as bus:
        await bus.database.execute(TABLE)
        await bus.publish(PaymentDue(payment="p-1", cents=250), idempotency_key="p-1")
        await bus.publish(PaymentDue(payment="p-1", cents=999_999), idempotency_key="p-1")
        await bus.settle()
        assert [letter.reason for letter in bus.dead_letters] == ["idempotency_conflict"]
