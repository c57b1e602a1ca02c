"""Rules between fields, terms of the envelope, and what handlers require: at publish and at the gate."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from bus.payloads.payload_types import payload_type
from bus.payloads.rules import Has, Is, Rule, when
from bus.vocabulary.approval import ApprovalDecision, Reviewer
from bus.vocabulary.error import ErrorReported
from bus.vocabulary.review import ReviewOutput
from bus.vocabulary.task import StatusUpdate, TaskHandoff, TaskRequest, TaskResult, TaskSpec
from bus.vocabulary.tool import ToolError, ToolResult
from sealbus import App, Message, PublishRejected, Reject, connect, payload
from sealbus.errors import ConfigurationError, ContractError
from tests.kit import Job


@payload(
    "ticket.closed",
    performative="inform",
    required_options=("task_id",),
    ttl_s=90,
    must_match={"/agent": "/metadata/sender/id"},
    options_from={"priority": "urgency"},
    rules=(Rule("fixed needs a fix", "/fix", when(Is("status", ("fixed",)), Has("fix"))),),
)
class Closed(msgspec.Struct, frozen=True, kw_only=True):
    status: Literal["fixed", "invalid"]
    agent: str
    fix: str | None = None
    urgency: str = "normal"
    note: str | None = None


@payload("ticket.closed")
class Unruled(msgspec.Struct, frozen=True, kw_only=True):
    """The same type in the code of a publisher that knows no rules."""

    status: Literal["fixed", "invalid"]
    agent: str
    fix: str | None = None
    urgency: str = "normal"
    note: str | None = None


async def refusal(subject: Any, **options: Any) -> ContractError:
    async with connect("memory://", agent="helpdesk@svc") as bus:
        with pytest.raises(PublishRejected) as caught:
            await bus.publish(subject, **options)
    error = caught.value.__cause__
    assert isinstance(error, ContractError)
    return error


async def dead(app: App, subject: Any, **options: Any) -> tuple[str, str]:
    async with app.test() as bus:
        await bus.publish(subject, **options)
        await bus.settle()
        (letter,) = bus.dead_letters
    return letter.reason, letter.pointer


def handling(**options: Any) -> App:
    app = App("helpdesk@svc", group="helpdesk")

    @app.on(Closed, **options)
    async def closed(ticket: Closed) -> None: ...

    return app


CASES = [
    ({"status": "fixed", "agent": "helpdesk@svc"}, {"task_id": "t"}, "semantic_violation", "/data/fix"),
    ({"status": "invalid", "agent": "another@svc"}, {"task_id": "t"}, "schema_violation", "/data/agent"),
    ({"status": "invalid", "agent": "helpdesk@svc"}, {}, "schema_violation", "/metadata/task_id"),
    (
        {"status": "invalid", "agent": "helpdesk@svc"},
        {"task_id": "t", "performative": "request"},
        "schema_violation",
        "/metadata/performative",
    ),
]


@pytest.mark.parametrize(("fields", "options", "reason", "pointer"), CASES)
class TestBothSides:
    async def test_a_publisher_refuses_what_receivers_refuse(
        self, fields: dict[str, Any], options: dict[str, Any], reason: str, pointer: str
    ) -> None:
        error = await refusal(Closed(**fields), **options)
        assert (error.reason, error.pointer) == (reason, pointer)

    async def test_the_gate_refuses_it_with_the_same_pointer(
        self, fields: dict[str, Any], options: dict[str, Any], reason: str, pointer: str
    ) -> None:
        own = {**fields, "agent": "test@sealbus" if fields["agent"] == "helpdesk@svc" else fields["agent"]}
        assert await dead(handling(), Unruled(**own), **options) == (reason, pointer)


async def test_options_are_filled_in_from_the_message_type() -> None:
    app = App("x@svc", group="x")
    seen: list[Message] = []

    @app.on(Closed)
    async def closed(ticket: Closed, context: Any) -> None:
        seen.append(context.message)

    async with app.test() as bus:
        await bus.publish(Closed(status="invalid", agent="test@sealbus", urgency="high"), task_id="t")
        await bus.settle()
        bus.assert_all_handled()
    (message,) = seen
    assert message.metadata.performative == "inform"
    assert message.routing.priority == 7


async def test_publisher_options_override_those_from_the_data() -> None:
    async with connect("memory://", agent="helpdesk@svc") as bus:
        draft = Closed(status="invalid", agent="helpdesk@svc", urgency="high")
        sealed = bus.publisher.sealer.seal(_draft(draft, priority=1, task_id="t", ttl_s=5))
    assert sealed.message.routing.priority == 1
    assert sealed.message.routing.expires_at[:19] > sealed.message.metadata.timestamp[:19]


def _draft(subject: Any, **options: Any) -> Any:
    from sealbus import Outgoing

    return Outgoing(subject, **options)


class TestTheVocabulary:
    async def test_an_approved_review_scores_at_least_70(self) -> None:
        error = await refusal(ReviewOutput(pr_number=1, verdict="approved", score=69))
        assert (error.reason, error.pointer) == ("semantic_violation", "/data/score")

    async def test_a_failed_result_has_an_error(self) -> None:
        error = await refusal(TaskResult(status="failed"), task_id="t")
        assert (error.reason, error.pointer) == ("semantic_violation", "/data/error")

    async def test_a_task_request_needs_its_task(self) -> None:
        assert (await refusal(TaskRequest(goal="g"))).pointer == "/metadata/task_id"

    async def test_a_field_that_contradicts_the_envelope_is_refused(self) -> None:
        handoff = TaskHandoff(
            task_id="t-1", from_agent="another@svc", to_agent="b@svc", task_spec=TaskSpec(action="a", input={})
        )
        assert (await refusal(handoff)).pointer == "/data/from_agent"

    async def test_a_decision_is_the_reviewers_own(self) -> None:
        decision = ApprovalDecision(
            approval_id="a", decision="reject", reviewer=Reviewer(type="human", id="b@svc"), reason="no"
        )
        kind = payload_type(ApprovalDecision)
        assert kind.terms.must_match == {"/reviewer/id": "/metadata/sender/id"}
        assert kind.terms.spoken(decision) == "reject"

    @pytest.mark.parametrize(
        ("error", "spoken"), [(None, "inform"), (ToolError(code="TIMEOUT", message="too slow"), "error")]
    )
    def test_a_tool_result_speaks_by_its_error(self, error: ToolError | None, spoken: str) -> None:
        result = ToolResult(tool_call_id="c", tool_name="t", output=None, error=error)
        assert payload_type(ToolResult).terms.spoken(result) == spoken

    async def test_a_handoff_gives_its_priority_to_the_message(self) -> None:
        async with connect("memory://", agent="a@svc") as bus:
            handoff = TaskHandoff(
                task_id="t", from_agent="a@svc", to_agent="b@svc", priority="critical",
                task_spec=TaskSpec(action="a", input={}),
            )  # fmt: skip
            assert bus.publisher.sealer.seal(_draft(handoff)).message.routing.priority == 9

    async def test_a_status_lives_ten_minutes(self) -> None:
        assert payload_type(StatusUpdate).terms.ttl_s == 600


class TestChecksOfAHandler:
    async def test_a_check_that_says_why_is_a_semantic_violation(self) -> None:
        def known(ticket: Closed, message: Message) -> str | None:
            return None if ticket.note else f"nobody knows {message.metadata.task_id}"

        good = Closed(status="invalid", agent="test@sealbus", note="n")
        app = handling(checks=[known])
        async with app.test() as bus:
            await bus.publish(good, task_id="t")
            await bus.publish(msgspec.structs.replace(good, note=None), task_id="t-9")
            await bus.settle()
            (letter,) = bus.dead_letters
        assert letter.reason == "semantic_violation"
        assert "nobody knows t-9" in repr(letter)

    async def test_a_check_that_fails_lets_nothing_through(self) -> None:
        def broken(ticket: Closed, message: Message) -> str | None:
            raise KeyError("secret")

        reason, _ = await dead(handling(checks=[broken]), Closed(status="invalid", agent="test@sealbus"), task_id="t")
        assert reason == "semantic_violation"

    async def test_a_required_field_is_missed_with_its_pointer(self) -> None:
        app = handling(requires=["note"])
        assert await dead(app, Closed(status="invalid", agent="test@sealbus"), task_id="t") == (
            "schema_violation",
            "/data/note",
        )

    def test_a_required_field_that_the_type_does_not_have_names_the_nearest(self) -> None:
        with pytest.raises(ConfigurationError, match="note"):
            handling(requires=["notes"])

    @pytest.mark.parametrize("options", [{"checks": len}, {"checks": ["x"]}, {"requires": "note"}])
    def test_wrong_declarations_say_what_to_write(self, options: dict[str, Any]) -> None:
        with pytest.raises(ConfigurationError, match="write"):
            handling(**options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"performative": "ask"}, "performative 'ask'"),
        ({"required_options": ("colour",)}, "required_options="),
        ({"required_options": "task_id"}, "required_options="),
        ({"ttl_s": 0}, "ttl_s=0"),
        ({"options_from": {"colour": "x"}}, "options_from="),
    ],
)
def test_terms_that_no_envelope_has_are_refused_at_the_mark(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ContractError, match=text):
        payload("ticket.opened", **options)


@payload("ticket.moved", deprecated={"customer": ("2027-03-01", "use customer_id")})
class Moved(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    customer_id: int = 0
    customer: str | None = None


async def test_a_sender_of_a_deprecated_field_is_warned_once(caplog: Any, capsys: Any) -> None:
    app = App("x@svc", group="x")

    @app.on(Moved)
    async def moved(ticket: Moved) -> None: ...

    async with app.test() as bus:
        for _ in range(3):
            await bus.publish(Moved(customer="Ada"))
            await bus.publish(Moved(customer_id=1))
        await bus.settle()
        bus.assert_all_handled()
    warnings = [line for line in capsys.readouterr().err.splitlines() if "deprecated_field" in line]
    assert len(warnings) == 1
    assert "use customer_id" in warnings[0]
    assert "test@sealbus" in warnings[0]


class TestReportsAboutTasks:
    async def test_a_dead_message_of_a_task_is_reported_to_whoever_watches(self) -> None:
        app, monitor = App("worker@svc", group="work"), App("monitor@svc", group="monitor")
        seen: list[ErrorReported] = []

        @app.on(Job)
        async def asked(job: Job) -> None:
            raise Reject("no")

        @monitor.on(ErrorReported)
        async def reported(report: ErrorReported) -> None:
            seen.append(report)

        async with app.test(monitor) as bus:
            await bus.publish(Job(number=1), task_id="t-1")
            await bus.publish(Job(number=2))
            await bus.settle()
        (report,) = seen
        assert (report.error_code, report.source_task_id, report.source_agent) == ("rejected", "t-1", "worker@svc")
        assert (report.error_class, report.retryable) == ("error.semantic", False)

    async def test_no_error_report_is_sent_without_a_subscriber(self) -> None:
        app = App("worker@svc", group="work")

        @app.on(Job)
        async def asked(job: Job) -> None:
            raise Reject("no")

        async with app.test() as bus:
            await bus.publish(Job(number=1), task_id="t-1")
            await bus.settle()
            assert len(bus.dead_letters) == 1
            assert "agents.error.reported" not in await bus.transport.admin.topics()
