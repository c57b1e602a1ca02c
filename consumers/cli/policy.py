"""`sealbus policy explain|test|export`: what the policy file means.

`bus.trust.policy.file` has the language, `bus.trust.policy.decision` its meaning.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from bus.telemetry.terminal import printable
from bus.trust.labels import CLASSIFICATIONS, LEVELS, SIDE_EFFECTS
from bus.trust.policy.acl_lines import acl_line
from bus.trust.policy.acls import AclGrant, acl_grants
from bus.trust.policy.cases import answer_of, make_request, parse_cases, run_cases
from bus.trust.policy.decision import Deny, decide_request, explain_decision
from bus.trust.policy.explanation_texts import (
    PolicyAnswer,
    PolicyCaseRow,
    decision_sentence,
    explanation_lines,
    facts_of_agent,
    facts_of_request,
    is_near,
    request_line,
)
from bus.trust.policy.facts import ACTIONS, RISKS
from bus.trust.policy.reading import read_policy
from bus.trust.policy.rules import PolicyRules
from consumers.cli.exit_codes import FAILED
from consumers.cli.io.known_names import complete_types
from consumers.cli.io.output import Detail, VerbResult
from consumers.cli.io.parameter_types import MESSAGE_TYPE, MOMENT, OneOf
from consumers.cli.io.printing import print_json
from consumers.cli.session import CommandSession, app_option, verb
from consumers.cli.shell import VerbGroup

__all__ = ["policy"]

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group(cls=VerbGroup)
def policy() -> None:
    """Explain and test what the policy lets agents do. `sealbus check --only policy` finds mistakes in it.

    FILE is by default policy.file of the settings. These commands only read the file and open no log.

    \b
    Examples:
      sealbus policy explain --action publish --agent planner@svc --type task.request
      sealbus policy test
      sealbus policy export --format kafka-acls > acls.sh
    """


def _fact_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each fact of a request."""
    options = (
        click.option("--action", type=OneOf(ACTIONS), required=True, help="The action."),
        click.option("--agent", help="The acting agent.  [default: an unverified one]"),
        click.option("--type", "message_type", type=MESSAGE_TYPE, required=True, shell_complete=complete_types),
        click.option("--major", type=click.IntRange(0), help="The type's major version.  [default: the newest]"),
        click.option("--group", help="The consumer group."),
        click.option("--resource", help="What the message is about, such as src/main.py."),
        click.option("--side-effect", type=OneOf(SIDE_EFFECTS), help="[default: the type's]"),
        click.option("--level", type=OneOf(LEVELS), help="The effective level.  [default: user_request]"),
        click.option("--classification", type=OneOf(CLASSIFICATIONS), help="[default: internal]"),
        click.option("--tag", "tags", multiple=True, help="A policy tag; may be given several times."),
        click.option("--unsigned", is_flag=True, help="The message is not signed."),
        click.option("--algorithm", type=OneOf(["asymmetric", "shared"]), help="[default: asymmetric where signed]"),
        click.option("--via", multiple=True, help="An earlier sender; may be given several times."),
        click.option("--via-incomplete", is_flag=True, help="There may be further earlier senders."),
        click.option("--first/--not-first", "first", default=None, help="[default: first where there is no --via]"),
        click.option("--performative", help="[default: the type's]"),
        click.option("--lift-to", type=OneOf(LEVELS), help="For action lift."),
        click.option("--risk", type=OneOf(RISKS), help="[default: the type's]"),
        click.option("--at", type=MOMENT, help="Decide as of this time.  [default: now]"),
    )
    for option in reversed(options):
        function = option(function)
    return function


@policy.command()
@click.argument("file", metavar="[FILE]", type=_FILE, required=False)
@_fact_options
@click.option("--all", "every", is_flag=True, help="Also rules that differ in the action or the type.")
@app_option
@verb(PolicyAnswer)
def explain(
    session: CommandSession,
    *,
    file: Path | None,
    targets: tuple[str, ...],
    every: bool,
    unsigned: bool,
    via_incomplete: bool,
    message_type: str,
    **facts: Any,
) -> VerbResult:
    """Show how the policy decides one request: the facts, the deciding rule, and why other rules do not match.

    Missing facts have ordinary values: a signed message at level user_request, with internal data, without earlier
    senders.

    \b
    Examples:
      sealbus policy explain --action publish --agent planner@svc --type task.request
      sealbus policy explain --action handle --agent deployer@svc --type command.request \\
          --via planner@svc --level model_generated --group deployer

    \b
    Exit codes: 0 allowed, or needs an approval; 1 denied.
    """
    rules = _read(session, file)
    kind = session.types(session.apps(targets)).get(message_type)
    facts = {name: value for name, value in facts.items() if value is not None}
    stated = {**facts, "type": message_type, "signed": not unsigned, "via_complete": not via_incomplete}
    request = make_request(stated, kind, namespace=session.settings().bus.namespace, now_ms=_now_ms())
    decision = decide_request(rules, request)
    verdicts = explain_decision(rules, request)
    row = None if request.actor is None else rules.agent(request.actor)
    shown = PolicyAnswer(
        answer=answer_of(decision),
        decision=msgspec.to_builtins(decision),
        facts=facts_of_request(request),
        agent=None if row is None else facts_of_agent(row),
        rules=tuple(verdicts),
        file=rules.name,
        sha256=rules.sha256,
    )
    near = [one for one in verdicts if every or is_near(one)]
    lines = explanation_lines(request, decision, row, near, rules)
    return Detail(shown, lines, code=FAILED if isinstance(decision, Deny) else 0)


@policy.command("test")
@click.argument("file", metavar="[FILE]", type=_FILE, required=False)
@click.argument("cases", metavar="[CASES]", type=_FILE, required=False)
@app_option
@verb(PolicyCaseRow)
def test_(session: CommandSession, *, file: Path | None, cases: Path | None, targets: tuple[str, ...]) -> int:
    """Run the cases of a team against its policy: tables [[cases]] with facts and the answer that is expected.

    CASES is FILE with the ending .cases.toml unless given. A case has name, action, type, expect (allow, deny, human,
    agent), perhaps rule, and further facts: agent, group, level, via, and so on.

    \b
    Examples:
      sealbus policy test
      sealbus policy test policy.toml tests/policy.cases.toml -o json

    \b
    Exit codes: 0 every case is as expected, 1 at least one is not.
    """
    rules, registry = _read(session, file), session.types(session.apps(targets))
    found = Path(rules.name).with_suffix(".cases.toml") if cases is None else cases
    if not found.exists():
        raise click.BadParameter(f"no file {found}: name the file with the cases", param_hint="CASES")
    listed = parse_cases(
        found.read_bytes(),
        name=str(found),
        kind_of=registry.get,
        namespace=session.settings().bus.namespace,
        now_ms=_now_ms(),
    )
    results = run_cases(rules, listed)
    for result in results:
        case = result.case
        if session.as_json:
            decision = {"answer": answer_of(result.decision), **msgspec.to_builtins(result.decision)}
            print_json(PolicyCaseRow(name=case.name, passed=result.passed, expected=case.expect, decision=decision))
        elif not result.passed:
            wanted = case.expect if case.rule is None else f"{case.expect} by rule {case.rule}"
            click.echo(f"{printable(case.name)}: expected {printable(wanted)}; {decision_sentence(result.decision)}")
            click.echo(f"    {request_line(case.request)}")
    failed = sum(not result.passed for result in results)
    session.note(f"{len(results) - failed} as expected, {failed} not")
    return FAILED if failed else 0


@policy.command()
@click.argument("file", metavar="[FILE]", type=_FILE, required=False)
@click.option(
    "--format", type=OneOf(["kafka-acls"]), required=True, expose_value=False, help="Commands of kafka-acls.sh."
)
@click.option("--servers", default="$KAFKA", show_default=True, help="What to write behind --bootstrap-server.")
@app_option
@verb(AclGrant)
def export(
    session: CommandSession,
    *,
    file: Path | None,
    servers: str,
    targets: tuple[str, ...],
) -> int:
    """Print the Kafka commands that give each listed agent the topics its rules need, and no others.

    Only sealbus workers enforce a policy. To stop a process that bypasses sealbus, also set these ACLs. Each agent that
    the file lists by its id is a Kafka user, `User:<id>`. ACLs cannot express levels, tags and approvals.

    \b
    Examples:
      sealbus policy export --format kafka-acls --namespace prod
      sealbus policy export policy.toml --format kafka-acls --servers kafka:9092 > acls.sh
    """
    rules, registry = _read(session, file), session.types(session.apps(targets))
    settings = session.settings()
    grants = acl_grants(rules, namespace=settings.bus.namespace, types=registry.names(), tiers=settings.retry.tiers)
    for grant in grants:
        if session.as_json:
            print_json(grant)
        else:
            click.echo(acl_line(grant, servers=servers))
    agents = {grant.agent for grant in grants}
    session.note(f"{len(grants)} grants for {len(agents)} agents; policy sha256 {rules.sha256}")
    if patterns := [row.id for row in rules.rows if "*" in row.id]:
        session.note(f"no grants for {', '.join(map(printable, patterns))}: Kafka has no users by a pattern")
    return 0


def _read(session: CommandSession, file: Path | None) -> PolicyRules:
    """Return the rules of *file*, by default of policy.file. Raises ConfigurationError."""
    if file is None:
        configured = session.settings().policy.file
        if not configured or configured == "allow-all":
            raise click.UsageError("name the policy FILE, or set policy.file in sealbus.toml")
        file = Path(configured)
    return read_policy(file)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
