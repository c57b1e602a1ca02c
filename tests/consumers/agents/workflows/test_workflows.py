"""Workflows as they are run: the seed's sample among real agents, on a log in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from bus.vocabulary.act import ActInform, ActRequest
from bus.vocabulary.bus import WorkflowStart
from bus.vocabulary.task import StatusUpdate, TaskResult
from consumers.agents.workflows.engine import workflow_engine
from consumers.agents.workflows.workflow_rows import workflow_details
from sealbus import App, Reject, RequestFailed

SAMPLE: dict[str, Any] = msgspec.json.decode((Path(__file__).with_name("market_research.json")).read_bytes())


def agent(name: str, said: list[Any], fails: int = 0) -> App:
    app = App(name)

    @app.on(ActRequest)
    async def act(request: ActRequest) -> ActInform:
        said.append(request.content)
        if len(said) <= fails:
            raise Reject("not yet")
        return ActInform(content={"by": name, "text": "${RAND} found"})

    return app


async def test_the_sample_of_the_seed_runs_unchanged() -> None:
    scans: list[Any] = []
    texts: list[Any] = []
    engine = workflow_engine()
    async with engine.test(agent("researcher@svc", scans, fails=2), agent("writer@svc", texts)) as bus:
        start = WorkflowStart(definition=SAMPLE, variables={"query": "message buses"})
        result = await bus.request(start, TaskResult, idempotency_key="w1", task_id="t1", timeout_s=600)
        assert (result.status, result.summary) == ("completed", "market_research_workflow is done")
        assert [scan["query"] for scan in scans] == ["message buses"] * 3
        assert texts[0]["source"].startswith("s3://reports/conv-2026-")
        said = [(update.message or "").rpartition(": ")[2] for update in bus.sent(StatusUpdate)]
        assert said == ["plan", "retry", "plan", "retry", "plan", "summarize", "finish"]
        bus.assert_all_handled() if not bus.dead_letters else None


async def test_a_workflow_ends_although_nobody_is_there() -> None:
    async with workflow_engine().test() as bus:
        start = WorkflowStart(definition=SAMPLE)
        result = await bus.request(start, TaskResult, idempotency_key="w1", task_id="t1", timeout_s=20_000)
        assert (result.status, result.summary) == ("failed", "retry: 3 retries are used up")


async def test_a_definition_with_a_fault_is_refused_with_its_place() -> None:
    wrong = {**SAMPLE, "nodes": [{**SAMPLE["nodes"][0], "out": {"on": "inform", "to": "nowhere"}}]}
    async with workflow_engine().test() as bus:
        with pytest.raises(RequestFailed, match="/nodes: no end is ever reached"):
            await bus.request(WorkflowStart(definition=wrong), TaskResult, idempotency_key="w1", timeout_s=60)


async def test_a_variable_that_is_not_there_is_refused() -> None:
    async with workflow_engine().test() as bus:
        start = WorkflowStart(definition=SAMPLE, variables={"quer": "x"})
        with pytest.raises(RequestFailed, match="no variable 'quer'"):
            await bus.request(start, TaskResult, idempotency_key="w1", timeout_s=60)


async def test_what_does_not_use_an_answer_keeps_the_level_of_the_start() -> None:
    async with workflow_engine().test(agent("researcher@svc", []), agent("writer@svc", [])) as bus:
        start = WorkflowStart(definition=SAMPLE)
        await bus.request(start, TaskResult, idempotency_key="w1", task_id="t1", timeout_s=600)
        (started,) = [m for m in bus.messages(ActRequest) if m.metadata.recipient.id == "writer@svc"]
        # Nothing of the researcher's answer is in it, so it rests on the start alone.
        assert len(started.verification.parents or ()) == 1


async def test_a_run_that_has_ended_keeps_its_name_its_nodes_and_when_each_was_there() -> None:
    async with workflow_engine().test(agent("researcher@svc", [], fails=1), agent("writer@svc", [])) as bus:
        start = WorkflowStart(definition=SAMPLE)
        await bus.request(start, TaskResult, idempotency_key="w1", task_id="t1", timeout_s=600)
        steps = bus.workers[0].steps
        assert steps is not None
        (process,) = await steps.store.processes()
    shown = workflow_details(process, (), 0, process.changed_ms)
    assert (shown.name, shown.state, shown.at) == ("market_research_workflow", "completed", "finish")
    assert shown.nodes["plan"] == "done"
    nodes = [(each.name.partition(".")[0], each.outcome) for each in shown.history if each.kind == "request"]
    assert nodes[:2] == [("plan", "refused"), ("plan", "answered")]
    assert nodes[-1][0] == "summarize"
    assert all(each.end_ms is not None for each in shown.history)
