"""An enterprise router: it finds the department for a question, and legal may reject what it is to answer.

sealbus run enterprise_router:router enterprise_router:legal enterprise_router:travel
"""

from __future__ import annotations

import msgspec
import pytest

from sealbus import App, Context, Reject, RequestFailed, payload
from sealbus.envelope import Agent


@payload("desk.question", version="1.0.0", performative="query")
class Question(msgspec.Struct, frozen=True, kw_only=True):
    text: str


@payload("department.question", version="1.0.0", performative="query")
class Routed(msgspec.Struct, frozen=True, kw_only=True):
    text: str


@payload("department.answer", version="1.0.0")
class Answer(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    by: str


router = App("router@svc", types=[Routed])
legal, travel = App("legal@svc", roles=["legal"]), App("travel@svc", roles=["travel"])


@router.on(Question)
async def route(question: Question, context: Context) -> Answer:
    """Ask the department; its no is passed on with its words."""
    department = "legal" if "contract" in question.text else "travel"
    try:
        return await context.request(Routed(text=question.text), Answer, to=Agent(role=department), timeout_s=20)
    except RequestFailed as error:
        raise Reject(f"{department}: {error}") from error


@legal.on(Routed)
async def advise(question: Routed) -> Answer:
    if "secret" in question.text:
        raise Reject("this needs a lawyer, not an agent")
    return Answer(text="sign it", by="legal")


@travel.on(Routed)
async def plan(question: Routed) -> Answer:
    return Answer(text="take the train", by="travel")


async def test_each_question_finds_its_department() -> None:
    async with router.test(legal, travel) as bus:
        assert (await bus.request(Question(text="how to get there"), Answer)).by == "travel"
        assert (await bus.request(Question(text="this contract"), Answer)).by == "legal"


async def test_a_rejection_by_legal_is_reported_with_its_text() -> None:
    async with router.test(legal, travel) as bus:
        with pytest.raises(RequestFailed, match="needs a lawyer"):
            await bus.request(Question(text="a secret contract"), Answer)
