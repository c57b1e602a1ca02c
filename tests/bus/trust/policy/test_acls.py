"""No request that a policy allows, or allows after an approval, lacks its grant."""

from __future__ import annotations

import random

import msgspec
from policy_model import TYPES, answered, policy_of, request_of

from bus.topics.names import group_of_agent, message_topic
from bus.trust.policy.acls import acl_grants
from bus.trust.policy.decision import decide_request
from bus.trust.policy.file import parse_policy

WORKER = """
[[agents]]
id = "worker@svc"

[[rules]]
id = "work"
effect = "allow"
action = "publish"
types = ["task.*", "command.request"]

[[rules]]
id = "none-of-these"
effect = "deny"
action = "publish"
types = "task.result"

[[rules]]
id = "not-unsigned"
effect = "deny"
action = "publish"
types = "task.request"
when.signed = false
"""


def test_only_a_full_denial_of_a_type_removes_its_topic_acl() -> None:
    grants = acl_grants(parse_policy(WORKER, name="policy.toml"), namespace="prod", types=TYPES, tiers=())
    (written,) = [grant.names for grant in grants if grant.operations == ("Write", "Describe")]
    assert {"prod.task.request", "prod.command.request"} <= set(written)
    assert "prod.task.result" not in written


def test_what_is_allowed_has_its_grant() -> None:
    pick = random.Random(3)
    allowed = 0
    for _ in range(60):
        rules = policy_of(pick, 8, held_only=True)
        granted = {
            (grant.agent, operation, name)
            for grant in acl_grants(rules, namespace="prod", types=TYPES, tiers=())
            for operation in grant.operations
            for name in grant.names
        }
        listed = [row.id for row in rules.rows if "*" not in row.id]
        for _ in range(100):
            actor = pick.choice(listed)
            action = pick.choice(("publish", "handle"))
            group = None if action == "publish" else group_of_agent(actor)
            request = msgspec.structs.replace(request_of(pick), action=action, actor=actor, group=group)
            if answered(decide_request(rules, request))[0] != "deny":
                allowed += 1
                operation = "Write" if action == "publish" else "Read"
                assert (actor, operation, message_topic("prod", request.message_type)) in granted
    assert allowed > 200


def test_who_may_read_or_approve_gets_the_topics_for_it() -> None:
    text = """
[[agents]]
id = "ann@acme"

[[rules]]
id = "people"
effect = "allow"
action = ["read", "approve"]
agents = "ann@acme"
types = "job.run"
"""
    grants = acl_grants(parse_policy(text.encode(), name="p"), namespace="agents", types=["job.run"], tiers=[])
    readable = {name for grant in grants if "Read" in grant.operations for name in grant.names}
    assert {"agents.job.run", "agents.approval.request"} <= readable
