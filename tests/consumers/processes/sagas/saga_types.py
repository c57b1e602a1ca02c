"""Payload types of the tests about sagas."""

from __future__ import annotations

import msgspec

from sealbus import payload

__all__ = ["Cancelled", "Offer", "Order", "Paid", "Quote", "QuoteRequest"]


@payload("order.placed", version="1.0.0")
class Order(msgspec.Struct, frozen=True, kw_only=True):
    order_id: str


@payload("order.cancelled", version="1.0.0")
class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    order_id: str


@payload("order.paid", version="1.0.0")
class Paid(msgspec.Struct, frozen=True, kw_only=True):
    order_id: str


@payload("quote.request", version="1.0.0")
class QuoteRequest(msgspec.Struct, frozen=True, kw_only=True):
    sku: str


@payload("quote", version="1.0.0")
class Quote(msgspec.Struct, frozen=True, kw_only=True):
    cents: int


@payload("offer", version="1.0.0")
class Offer(msgspec.Struct, frozen=True, kw_only=True):
    cents: int
    note: str = ""
