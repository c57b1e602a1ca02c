"""The researcher: an agent of Pydantic AI.

sealbus run researcher:app
"""

from __future__ import annotations

from articles import Facts, FactsWanted
from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from sealbus import App
from sealbus.adapters import pydantic_ai


def look_up(topic: str) -> str:
    """Return what the library has about a topic."""
    return f"{topic} is green"


def scripted(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """Stand in for a language model: it looks the topic up, and says what it has found."""
    last = messages[-1].parts[-1]
    if len(messages) == 1:
        return ModelResponse(parts=[ToolCallPart("look_up", {"topic": last.content})])
    return ModelResponse(parts=[TextPart(last.content)])


app = App("researcher@svc")
app.include(
    pydantic_ai.serve(Agent(FunctionModel(scripted), name="researcher", tools=[look_up]), on=FactsWanted, returns=Facts)
)
