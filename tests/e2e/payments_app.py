"""An app that books payments in the inbox's own database, answers, and dies where a payment tells it to."""

import os

import msgspec

from sealbus import App, Context, payload

app = App("payments@tests")
_journal = os.open(os.environ.get("PAYMENT_JOURNAL", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@payload("test.payment", version="1.0.0")
class Payment(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    amount: int = 1
    deadly: bool = False


@payload("test.booked", version="1.0.0")
class Booked(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    balance: int


@app.on(Payment)
async def book(payment: Payment, context: Context) -> Booked:
    os.write(_journal, f"{payment.number}\n".encode())
    if payment.deadly:
        os._exit(9)
    transaction = await context.transaction()
    await transaction.execute("INSERT INTO bookings VALUES ($1, $2)", payment.number, payment.amount)
    (balance,) = await transaction.fetchrow("SELECT sum(amount) FROM bookings") or (0,)
    return Booked(number=payment.number, balance=balance)
