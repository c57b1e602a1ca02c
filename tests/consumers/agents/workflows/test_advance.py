"""The meaning of a workflow: a pure state machine that ends or waits, whatever comes in whatever order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.errors import ContractError
from consumers.agents.workflows.advance import (
    Answered,
    FailedNode,
    Finished,
    Sending,
    Started,
    TimeOver,
    Waiting,
    WorkflowEvent,
    WorkflowState,
    advance,
    progress_of,
)
from consumers.agents.workflows.check import check_workflow
from consumers.agents.workflows.definition import Workflow, parse_workflow, schema_of_definition, sha256_of
from consumers.agents.workflows.diagram import mermaid_of_workflow
from consumers.agents.workflows.variables import filled, initial_variables

SAMPLE = parse_workflow((Path(__file__).parent / "market_research.json").read_bytes())


def emit(identity: str, to: str, fallback: Any = None, **message: Any) -> dict[str, Any]:
    out = {"on": "inform", "to": to} | ({"fallback": fallback} if fallback else {})
    return {"id": identity, "type": "emit", "message": {"receiver": "a@svc", **message}, "out": out}


def workflow(*nodes: dict[str, Any], **members: Any) -> Workflow:
    return parse_workflow({"name": "test", "nodes": [*nodes, {"id": "finish", "type": "end"}], **members})


def started(definition: Workflow, **given: Any) -> tuple[WorkflowState, Any]:
    variables = initial_variables(definition.variables, given, now_ms=0, entropy=b"\0\1\2\3", workflow_id="w")
    return advance(definition, WorkflowState(variables=variables), Started())


def test_the_sample_of_the_seed_runs_to_its_end() -> None:
    assert not [finding for finding in check_workflow(SAMPLE) if finding.severity == "error"]
    state, (plan,) = started(SAMPLE)
    assert plan.message.receiver == "researcher@svc"
    assert plan.content == {
        "task": "market_scan",
        "query": "vector database comparison for hybrid search",
        "constraints": {"max_sources": 5},
    }
    state, (pause,) = advance(SAMPLE, state, FailedNode("plan", "died", "crash_loop"))
    assert pause == Waiting("retry", 10)
    state, (again,) = advance(SAMPLE, state, TimeOver("retry"))
    assert again.wait == "plan"
    state, (summarize,) = advance(SAMPLE, state, Answered("plan", "inform", {"found": 5}))
    assert summarize.content["source"] == "s3://reports/conv-1970-01-01-00010203/raw.json"
    state, (end,) = advance(SAMPLE, state, Answered("summarize", "inform", {}))
    assert end == Finished("completed", {})
    assert progress_of(SAMPLE, state) == {"plan": "done", "retry": "done", "summarize": "done", "finish": "done"}


def test_retries_that_are_used_up_fail_the_workflow() -> None:
    state, _ = started(SAMPLE)
    for _ in range(3):
        state, _ = advance(SAMPLE, state, FailedNode("plan", "died"))
        state, _ = advance(SAMPLE, state, TimeOver("retry"))
    state, (end,) = advance(SAMPLE, state, FailedNode("plan", "died"))
    assert (end.status, end.why) == ("failed", "retry: 3 retries are used up")


def test_an_error_without_a_fallback_fails_the_workflow() -> None:
    definition = workflow(emit("plan", "finish"))
    _, (end,) = advance(definition, started(definition)[0], FailedNode("plan", "refused", "rejected"))
    assert (end.status, end.why) == ("failed", "plan: error (rejected)")


def test_silence_goes_to_its_own_edge_else_to_that_of_errors() -> None:
    edges = [{"on": "error", "to": "finish"}, {"on": "timeout", "to": "plan"}]
    definition = workflow(emit("plan", "finish", edges))
    assert advance(definition, started(definition)[0], FailedNode("plan", "silent"))[1][0].wait == "plan"
    definition = workflow(emit("plan", "plan", {"on": "error", "to": "finish"}))
    assert advance(definition, started(definition)[0], FailedNode("plan", "silent"))[1][0].status == "completed"


PARALLEL: dict[str, Any] = {
    "id": "both",
    "type": "parallel",
    "branches": [{"id": "a", "message": {"receiver": "a@svc"}}, {"id": "b", "message": {"receiver": "b@svc"}}],
    "out": {"to": "finish", "fallback": {"on": "error", "to": "finish"}},
}


def test_all_branches_are_awaited_and_the_first_error_ends_them() -> None:
    definition = workflow(PARALLEL)
    state, sent = started(definition)
    assert [each.wait for each in sent] == ["both.a", "both.b"]
    waiting, nothing = advance(definition, state, Answered("both.a", "inform", {}))
    assert not nothing
    assert isinstance(advance(definition, waiting, Answered("both.b", "inform", {}))[1][-1], Finished)
    dropped, end = advance(definition, state, FailedNode("both.a", "died"))[1]
    assert (dropped.wait, end.status) == ("both.b", "completed")


def test_any_branch_is_enough_and_the_last_error_ends_them() -> None:
    definition = workflow({**PARALLEL, "join": "any"})
    state, _ = started(definition)
    assert isinstance(advance(definition, state, Answered("both.b", "inform", {}))[1][-1], Finished)
    state, nothing = advance(definition, state, FailedNode("both.a", "died"))
    assert not nothing
    assert isinstance(advance(definition, state, FailedNode("both.b", "died"))[1][-1], Finished)


def test_a_result_may_hold_what_was_answered() -> None:
    node = {"id": "finish", "type": "end", "result": {"summary": "${nodes.plan.text}"}}
    definition = parse_workflow({"name": "test", "nodes": [emit("plan", "finish"), node]})
    _, (end,) = advance(
        definition, started(definition)[0], Answered("plan", "inform", {"text": "${RAND} is not replaced"})
    )
    assert end.result == {"summary": "${RAND} is not replaced"}


def test_a_node_that_uses_no_answer_is_marked_independent() -> None:
    definition = workflow(emit("a", "b"), emit("b", "finish", content={"x": "${nodes.a.y}"}))
    state, (first,) = started(definition)
    _, (second,) = advance(definition, state, Answered("a", "inform", {"y": 1}))
    assert (first.apart, second.apart, second.content) == (True, False, {"x": 1})


@pytest.mark.parametrize(
    ("nodes", "variables", "text"),
    [
        ([emit("a", "nowhere")], {}, "no node 'nowhere'"),
        ([emit("a", "a")], {}, "no end is ever reached"),
        ([emit("a", "finish"), emit("a", "finish")], {}, "id of two nodes"),
        ([emit("a", "finish", receiver="${query}")], {"query": "x"}, "receiver is fixed"),
        ([emit("a", "finish", content={"${query}": 1})], {"query": "x"}, "is fixed"),
        ([emit("a", "finish", content={"x": "${nobody}"})], {}, "unknown variable"),
        ([emit("a", "finish", content={"x": "${nodes.z.y}"})], {}, "no such node is answered"),
        ([emit("a", "finish")], {"x": "${y}"}, "computed at the start"),
        ([emit("a", "finish"), emit("lost", "finish")], {}, "never reached"),
    ],
)
def test_faults_are_found_before_a_run(nodes: Any, variables: Any, text: str) -> None:
    assert any(text in finding.text for finding in check_workflow(workflow(*nodes, variables=variables)))


def test_an_unknown_member_is_refused_with_its_place() -> None:
    with pytest.raises(ContractError) as refused:
        parse_workflow({"name": "x", "nodes": [{**emit("a", "b"), "retires": 3}]})
    assert refused.value.pointer == "/nodes/0/retires"


def test_the_schema_is_that_of_the_parser() -> None:
    schema = schema_of_definition()
    assert schema["$ref"] == "#/$defs/Workflow"
    assert schema["$defs"]["Workflow"]["additionalProperties"] is False
    assert {"Emit", "WaitRetry", "Parallel", "EndNode"} <= set(schema["$defs"])


def test_a_definition_is_known_by_its_hash() -> None:
    again = parse_workflow(msgspec.json.encode(msgspec.to_builtins(SAMPLE)))
    assert sha256_of(again) == sha256_of(SAMPLE)


def test_a_diagram_escapes_untrusted_text() -> None:
    hostile = workflow(emit("a", "finish", receiver='x"] click a "javascript:alert(1)" <img>'))
    text = mermaid_of_workflow(hostile, {"a": "here"})
    assert '"javascript' not in text.replace('["', "").replace('"]', "")
    assert "<img>" not in text
    assert "class n0 here" in text


# Whatever comes, in whatever order.

NAMES = ("a", "b", "c")
TARGETS = st.sampled_from([*NAMES, "finish"])
EDGE = st.builds(lambda on, to: {"on": on, "to": to}, st.sampled_from(["error", "timeout", "reject", "any"]), TARGETS)


@st.composite
def definitions(draw: Any) -> Workflow:
    nodes = []
    for name in NAMES:
        kind = draw(st.sampled_from(["emit", "wait_retry", "parallel"]))
        out = {"to": draw(TARGETS), "fallback": draw(st.lists(EDGE, max_size=2))}
        node: dict[str, Any] = {"id": name, "type": kind, "out": out}
        if kind == "emit":
            node["message"] = {"receiver": "x@svc"}
        elif kind == "parallel":
            node["branches"] = [{"id": each, "message": {"receiver": "x@svc"}} for each in ("p", "q")]
            node["join"] = draw(st.sampled_from(["all", "any"]))
        nodes.append(node)
    return workflow(*nodes)


WAITS = st.sampled_from([*NAMES, "a.p", "a.q", "b.p", "b.q", "c.p", "c.q", "nobody"])
EVENTS = st.one_of(
    st.builds(Answered, WAITS, st.sampled_from(["inform", "reject", "propose"]), st.just({"x": 1})),
    st.builds(FailedNode, WAITS, st.sampled_from(["refused", "died", "silent"])),
    st.builds(TimeOver, WAITS),
    st.just(Started()),
)


@pytest.mark.medium
@settings(max_examples=300)
@given(definitions(), st.lists(EVENTS, max_size=40))
def test_no_order_of_events_breaks_a_run(definition: Workflow, events: list[WorkflowEvent]) -> None:
    state, decisions = started(definition)
    for event in events:
        after, decisions = advance(definition, state, event)
        # A repeat of what has just been taken changes nothing, unless the node was entered again.
        if isinstance(event, Answered | FailedNode | TimeOver) and event.wait not in after.pending:
            assert advance(definition, after, event) == (after, ())
        assert bool(after.ended) != bool(after.pending)
        for decision in decisions:
            if isinstance(decision, Sending | Waiting):
                assert decision.wait in after.pending
        state = after
    assert msgspec.json.decode(msgspec.json.encode(state), type=WorkflowState) == state


@given(st.recursive(st.none() | st.integers() | st.text(max_size=20), lambda x: st.lists(x, max_size=3), max_leaves=8))
def test_placeholders_inside_an_answer_are_not_expanded(value: Any) -> None:
    assert filled("${nodes.a.v}", {}, {"a": {"v": value}}) == value
