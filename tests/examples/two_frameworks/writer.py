"""The writer: an agent of the OpenAI Agents SDK.

sealbus run writer:app
"""

from __future__ import annotations

from typing import Any

from agents import Agent
from agents.testing import ScriptedModel, assistant_message
from articles import Article, DraftWanted

from sealbus import App
from sealbus.adapters import openai_agents


class Scripted(ScriptedModel):
    """Stands in for a language model: it makes a headline of what it is told."""

    async def get_response(self, instructions: Any, given: Any, *arguments: Any, **options: Any) -> Any:
        self.enqueue([assistant_message(f"NEWS: {given[0]['content'] if isinstance(given, list) else given}")])
        return await super().get_response(instructions, given, *arguments, **options)


app = App("writer@svc")
app.include(openai_agents.serve(Agent(name="writer", model=Scripted()), on=DraftWanted, returns=Article))
