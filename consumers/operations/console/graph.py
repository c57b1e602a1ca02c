"""Graph: where the messages of a conversation stand in a drawing of causes. Pure.

Rows are messages in the order of time, columns are depth below the first cause. The template draws text nodes alone.
"""

from __future__ import annotations

from typing import Final

import msgspec

from consumers.operations.lineage.timeline import Timeline

__all__ = ["CauseGraph", "GraphEdge", "GraphNode", "graph_of"]

_ROW: Final = 46
_STEP: Final = 28
_WIDTH: Final = 420
_HEIGHT: Final = 36
_MAX_DEPTH: Final = 24
_MAX_LABEL: Final = 52
_BROKEN: Final = ("dead", "wrong")


class GraphNode(msgspec.Struct, frozen=True, kw_only=True):
    """One message as a box."""

    number: int
    x: int
    y: int
    title: str
    detail: str
    is_broken: bool


class GraphEdge(msgspec.Struct, frozen=True):
    """An arrow from a cause to its effect, as a path."""

    path: str


class CauseGraph(msgspec.Struct, frozen=True, kw_only=True):
    """A drawing, in pixels."""

    width: int
    height: int
    box_width: int = _WIDTH
    box_height: int = _HEIGHT
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]


def graph_of(timeline: Timeline) -> CauseGraph:
    """Return the drawing of *timeline*."""
    depths: dict[int, int] = {}
    for event in timeline.events:
        depths[event.number] = min(depths.get(event.cause, -1) + 1, _MAX_DEPTH)
    nodes = tuple(
        GraphNode(
            number=event.number,
            x=8 + depths[event.number] * _STEP,
            y=8 + (event.number - 1) * _ROW,
            title=f"{event.number}  {event.message_type}"[:_MAX_LABEL],
            detail=(f"{event.sender} → {event.recipient}" if event.recipient else event.sender)[:_MAX_LABEL],
            is_broken=any(mark.startswith(_BROKEN) for mark in event.marks),
        )
        for event in timeline.events
    )
    locations = {node.number: node for node in nodes}
    edges = tuple(
        GraphEdge(_path(locations[event.cause], locations[event.number]))
        for event in timeline.events
        if event.cause in locations and event.cause != event.number
    )
    deepest = max((node.x for node in nodes), default=0)
    return CauseGraph(width=deepest + _WIDTH + 16, height=16 + len(nodes) * _ROW, nodes=nodes, edges=edges)


def _path(cause: GraphNode, effect: GraphNode) -> str:
    x, middle = cause.x + _STEP // 2, effect.y + _HEIGHT // 2
    return f"M{x} {cause.y + _HEIGHT}V{middle}H{effect.x}"
