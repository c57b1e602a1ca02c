"""A supervisor of two agents, each of another framework and in an environment of its own: their pins may contradict.

The supervisor needs neither. It asks by message, and its tools are the two agents.

sealbus run supervisor:app
"""

from __future__ import annotations

from articles import Article, ArticleWanted, DraftWanted, Facts, FactsWanted

from sealbus import App, Context, Reject

app = App("supervisor@svc")
app.handoff_tool("ask_researcher", FactsWanted, Facts, to="researcher@svc")
app.handoff_tool("ask_writer", DraftWanted, Article, to="writer@svc")


async def model(topic: str, told: list[str]) -> tuple[str, dict[str, str]] | str:
    """Stand in for a language model: facts first, then a text, then done."""
    if not told:
        return "ask_researcher", {"topic": topic}
    if len(told) == 1:
        return "ask_writer", {"facts": told[0]}
    return told[1]


@app.on(ArticleWanted, dedup="always", timeout_s=120)
async def supervise(wanted: ArticleWanted, context: Context) -> Article:
    told: list[str] = []
    while True:
        decision = await context.step("model", model, wanted.topic, told)
        if isinstance(decision, str):
            return Article(text=decision)
        name, arguments = decision
        answer = await app.tools.call(name, arguments, context, key=len(told))
        if answer.fault is not None:
            raise Reject(answer.text)
        told.append(answer.output["text"])
