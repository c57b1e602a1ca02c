"""What an adapter is tried with: a script of a model's turns, tools that count, and a rig for each framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["Call", "Rig", "Script", "Spec", "Turn"]


@dataclass(frozen=True)
class Call:
    """A model's call of *tool*, whose one argument is *text*."""

    tool: str
    text: str
    arguments: dict[str, Any] | None = None

    @property
    def given(self) -> dict[str, Any]:
        return {"text": self.text} if self.arguments is None else self.arguments


Turn = str | list[Call] | Exception
"""One answer of a model: a text, tool calls, or an error of its provider."""


@dataclass
class Script:
    """A model's turns, in order; a turn is used up by a call that was made, not by a replay."""

    turns: Sequence[Turn]
    calls: int = 0
    seen: list[str] = field(default_factory=list)
    """What the model was given in each call, as text."""
    version: str = "one"
    """The model's name; another one is another model, which is asked again."""

    def next(self, given: str) -> str | list[Call]:
        turn = self.turns[min(self.calls, len(self.turns) - 1)]
        self.calls += 1
        self.seen.append(given)
        if isinstance(turn, Exception):
            raise turn
        return turn


@dataclass(frozen=True)
class Spec:
    """A tool of one text."""

    name: str
    function: Callable[[str], Any]
    """A function, or a coroutine function."""
    needs_approval: bool = False
    untrusted: bool = False


class Rig(Protocol):
    """Makes agents of one framework."""

    adapter: Any
    """The module with `serve`, `tools` and `untrusted`."""
    helper_argument: str
    """The argument of the tool that asks the helper."""

    def agent(self, script: Script, *specs: Spec, app: Any = None, mcp: str = "", helper: Script | None = None) -> Any:
        """Return an agent with these tools, those of *app*, those of the server in the file *mcp*, and a *helper*."""

    def status_error(self, status: int) -> Exception:
        """Return what a provider's client raises for that HTTP status."""
