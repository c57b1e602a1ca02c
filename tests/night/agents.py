"""The agents of the night: they look for suppliers, and some of what they do goes wrong."""

from __future__ import annotations

import asyncio
import os

import msgspec

from sealbus import App, Approval, Context, Reject, RetryLater, payload

SLOW_S = float(os.environ.get("NIGHT_SLOW_S", "0.4"))


@payload("survey.request", version="1.0.0", performative="request", risk="low")
class Survey(msgspec.Struct, frozen=True, kw_only=True):
    goal: str
    sites: tuple[str, ...] = ("cells.example", "voltmark.example")
    publish: bool = False


@payload("survey.result", version="1.0.0", performative="inform", risk="low")
class SurveyResult(msgspec.Struct, frozen=True, kw_only=True):
    summary: str
    model: str = "sonnet-large"
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0


@payload("page.fetch", version="1.0.0", performative="request", risk="low")
class Fetch(msgspec.Struct, frozen=True, kw_only=True):
    url: str


@payload("page.content", version="1.0.0", performative="inform", risk="low")
class Content(msgspec.Struct, frozen=True, kw_only=True):
    text: str


@payload("supplier.quote", version="1.0.0", performative="inform", risk="low")
class Quote(msgspec.Struct, frozen=True, kw_only=True):
    supplier: str
    unit_price: str
    lead_time_days: int
    portal_token: str = ""


@payload("draft.check", version="1.0.0", performative="request", risk="low")
class Review(msgspec.Struct, frozen=True, kw_only=True):
    draft: str


@payload("draft.checked", version="1.0.0", performative="inform", risk="low")
class Reviewed(msgspec.Struct, frozen=True, kw_only=True):
    verdict: str
    model: str = "sonnet-large"
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0


@payload("report.publish", version="1.0.0", performative="request", risk="high")
class Publish(msgspec.Struct, frozen=True, kw_only=True):
    list: str
    recipients: int
    subject: str
    reply_to: str = "desk@acme.example"


@payload("stock.ask", version="1.0.0", performative="request", risk="low")
class Stock(msgspec.Struct, frozen=True, kw_only=True):
    warehouse: str


planner = App("planner@lab", types=[Publish, Quote])
scout = App("scout@lab", types=[Quote])
reader = App("reader@svc")
reviewer = App("reviewer@lab")
publisher = App("publisher@svc")
catalogue = App("catalogue@svc")


@planner.on(Survey, timeout_s=120)
async def plan(request: Survey, context: Context) -> SurveyResult:
    pages = [
        await context.request(Fetch(url=f"https://{site}/{context.message.message_id[-4:]}"), Content, timeout_s=60)
        for site in request.sites
    ]
    await asyncio.sleep(SLOW_S)
    reviewed = await context.request(Review(draft=f"{len(pages)} pages about: {request.goal}"), Reviewed, timeout_s=60)
    if request.publish:
        context.send(Publish(list="customers-eu", recipients=1_240, subject=request.goal), key="customers-eu")
    return SurveyResult(
        summary=f"5 makers, 2 of them within 60 days. {reviewed.verdict}",
        input_tokens=18_200,
        output_tokens=2_100,
        cost_usd=0.09,
    )


@reader.on(Fetch, timeout_s=60, order="key_strict")
async def fetch(request: Fetch) -> Content:
    await asyncio.sleep(SLOW_S)
    if "kestrel" in request.url:
        raise RetryLater("the host asks for 120 s", after_s=120)
    return Content(text=f"Cell 21700, 12,000 in stock, from {request.url}")


@reviewer.on(Review, timeout_s=60)
async def review(_: Review) -> Reviewed:
    await asyncio.sleep(SLOW_S)
    return Reviewed(verdict="Every claim has a source.", input_tokens=6_400, output_tokens=300, cost_usd=0.03)


@scout.on(Quote)
async def take_quote(quote: Quote) -> None:
    if quote.lead_time_days < 0:
        raise Reject("a lead time is not negative")


@publisher.on(
    Publish,
    approval=Approval(by="human", describe=lambda order: f"Send a report to {order.recipients:,} readers"),
)
async def send(_: Publish) -> None:
    await asyncio.sleep(0.01)


@catalogue.on(Stock)
async def ask_stock(request: Stock) -> None:
    raise Reject(f"no warehouse named {request.warehouse}")
