"""Audit: whether the record is whole, and the answers to questions about a conversation, as rows that print."""

from __future__ import annotations

from typing import Any, Final

from litestar import Response, get

from bus.redaction import masked
from consumers.operations.audit.queries import QUERIES, answer_question
from consumers.operations.console.pages.frame import PageRequest, console_of, json_text, page_of, parameter

__all__ = ["AUDIT_ROUTES"]

_MAX_ROWS: Final = 500
_HASH_DIGITS: Final = 12


@get("/audit")
async def audit_page(request: PageRequest) -> Response[str]:
    """Answer the audit's questions about a conversation."""
    conversation = parameter(request, "conversation").strip()
    question = parameter(request, "question", "decisions")
    console = console_of(request)
    rows: list[dict[str, Any]] = []
    heads: list[tuple[Any, ...]] = []
    asked = 0
    async with console.audit() as store:
        has_audit = store is not None
        if store is not None:
            heads = [
                (f"{topic}/{partition}", head.rows, head.next_offset, head.hash[:_HASH_DIGITS])
                for (topic, partition), head in sorted((await store.heads()).items())
            ]
            if conversation and question in QUERIES:
                found = await store.conversation(conversation, max_rows=_MAX_ROWS)
                asked = len(found)
                rows = [masked(each) for each in answer_question(question, found, await console.registry())]
    return page_of(
        request,
        "audit.html",
        has_audit=has_audit,
        conversation=conversation,
        question=question,
        queries={name: query.text for name, query in QUERIES.items()},
        rows=rows,
        cut=asked if asked >= _MAX_ROWS else 0,
        columns=list(dict.fromkeys(name for row in rows for name in row)),
        heads=heads,
        progress=None if console.survey is None else console.survey.audit,
        text=lambda value: value if isinstance(value, str) else json_text(value),
    )


AUDIT_ROUTES = (audit_page,)
