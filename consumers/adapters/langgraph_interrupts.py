"""Interrupts: what the nodes of a served graph ask for, which no node can swallow.

Owns noting each interrupt of a run with the tasks that it is raised in, and the class of its exception: within a node
`except Exception` lets it pass, as it does a held run of any handler. So the framework's own class is changed, for runs
of `serve` alone. What catches it all the same is found by what its task writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from langchain_core.callbacks import BaseCallbackHandler
from langgraph.checkpoint.serde.types import INTERRUPT
from langgraph.config import get_config
from langgraph.errors import GraphInterrupt

from consumers.adapters.run import AGENT_RUN, AgentRun

__all__ = ["InterruptCallbacks", "forget_interrupts", "swallowed_in"]

_RAISED: Final = "interrupts"


class InterruptCallbacks(BaseCallbackHandler):  # type: ignore[misc]
    """Gives an interrupt that has left its node the framework's own class: its runner looks for an `Exception`."""

    run_inline = True

    def on_chain_error(self, error: BaseException, **_: Any) -> None:
        """Note that a node, or what it calls, ends by *error*."""
        if isinstance(type(error), _Passing):
            own: Any = type(error).__base__
            error.__class__ = own


def swallowed_in(run: AgentRun, task_id: str, writes: Sequence[tuple[str, Any]]) -> tuple[Any, ...]:
    """Return the interrupts that the task of that id has raised first, where its *writes* have lost them."""
    raised = [error for tasks, error in run.notes.get(_RAISED, ()) if task_id in tasks and error.args[0]]
    if not raised:
        return ()
    # Later ones may be lost: of the tools of one node that run side by side, the framework asks for the first.
    first = tuple(raised[0].args[0])
    asked = [each for channel, value in writes if channel == INTERRUPT for each in value]
    return () if all(each in asked for each in first) else first


def forget_interrupts(run: AgentRun) -> None:
    """Forget what was raised so far: each call of the graph begins anew."""
    run.notes.pop(_RAISED, None)


class _Passing(type):
    """The type of exceptions that are none of `Exception`, although the class that they are made of is one."""

    def mro(cls) -> list[type]:
        return [each for each in super().mro() if each is not Exception]


_PASSING: Final[dict[type[Any], Any]] = {}


def _passing(cls: type[Any]) -> Any:
    if cls not in _PASSING:
        _PASSING[cls] = _Passing(cls.__name__, (cls,), {"__module__": cls.__module__})
    return _PASSING[cls]


def _made(cls: type[Any], *_: Any, **__: Any) -> Any:
    run = AGENT_RUN.get()
    if run is None:
        return BaseException.__new__(cls)
    made = BaseException.__new__(cls if isinstance(cls, _Passing) else _passing(cls))
    run.notes.setdefault(_RAISED, []).append((_tasks(), made))
    return made


def _tasks() -> frozenset[str]:
    """Return the ids of the tasks that the present code runs in: of a node, and of the nodes around its graph."""
    try:
        space = str(get_config()["configurable"].get("checkpoint_ns", ""))
    except (RuntimeError, KeyError):
        # The framework joins the interrupts of several tasks outside of them.
        return frozenset()
    return frozenset(each.rpartition(":")[2] for each in space.split("|"))


GraphInterrupt.__new__ = staticmethod(_made)
