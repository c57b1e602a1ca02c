"""Topic names are built and read back the same; agents get topic-safe slugs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.errors import NameRefusedError
from bus.protocol.identifiers import is_namespace, is_reply_to
from bus.topics import names as topics
from bus.topics.names import TopicName
from bus.transports.base import check_topic_name

SEGMENT = st.from_regex(r"[a-z][a-z0-9]{0,5}(-[a-z0-9]{1,4}){0,3}", fullmatch=True)
MESSAGE_TYPE = st.lists(SEGMENT, min_size=1, max_size=4).map(".".join).filter(lambda text: not text.endswith("dlq"))


@pytest.mark.medium
@given(SEGMENT, MESSAGE_TYPE, SEGMENT, st.sampled_from(["5s", "30s", "5m"]))
def test_a_built_name_is_read_back(namespace: str, message_type: str, group: str, delay: str) -> None:
    live = topics.message_topic(namespace, message_type)
    assert topics.read_topic(live) == TopicName("message", namespace, message_type)
    assert topics.read_topic(topics.dead_letter_topic(live)) == TopicName("dlq", namespace, message_type)
    assert topics.read_topic(topics.retry_topic(namespace, group, delay)) == TopicName(
        "retry", namespace, group=group, delay=delay
    )
    assert topics.read_topic(topics.redrive_topic(namespace, group)) == TopicName("redrive", namespace, group=group)


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("agents._reply.planner-svc-0123abcd", TopicName("reply", "agents")),
        ("agents._deadletters", TopicName("own", "agents")),
        ("agents._registry", TopicName("own", "agents")),
        ("agents._audit", TopicName("own", "agents")),
        ("agents._retry.g.5s.dlq", TopicName("dlq", "agents", "_retry.g.5s")),
        ("agents.a.b", TopicName("message", "agents", "a.b")),
        ("agents.a.dlq", TopicName("dlq", "agents", "a")),
    ],
)
def test_what_a_topic_is_for(name: str, meaning: TopicName) -> None:
    assert topics.read_topic(name) == meaning


@pytest.mark.parametrize(
    "name",
    [
        "",
        "agents",
        "agents.",
        ".a",
        "Agents.a",
        "agents.A",
        "agents.a.dlq.dlq",
        "agents._other",
        "agents.dlq",
        "a b.c",
        "agents._retry",
        "agents._retry.g",
        "agents._reply",
        "__consumer_offsets",
    ],
)
def test_topics_that_do_not_belong_to_the_bus(name: str) -> None:
    assert topics.read_topic(name) is None


@given(st.text(min_size=1, max_size=256, alphabet=st.characters(exclude_categories=["Cs"])))
def test_an_agents_slug_is_topic_safe(agent_id: str) -> None:
    slug = topics.agent_slug(agent_id)
    check_topic_name(f"agents._reply.{slug}")
    assert is_reply_to(f"agents._reply.{slug}", "agents")


@given(st.text(min_size=1, max_size=256, alphabet=st.characters(exclude_categories=["Cs"])))
def test_a_group_made_of_an_agent_is_one_segment(agent_id: str) -> None:
    assert is_namespace(topics.group_of_agent(agent_id))


def test_agents_that_read_alike_have_different_slugs() -> None:
    assert topics.agent_slug("planner@svc") != topics.agent_slug("planner-svc")
    assert topics.agent_slug("Planner") != topics.agent_slug("planner")


def test_the_longest_names_fit_a_topic() -> None:
    namespace, group, message_type = "n" * 63, "g" * 63, "t" * 120
    for name in (
        topics.dead_letter_topic(topics.message_topic(namespace, message_type)),
        topics.dead_letter_topic(topics.retry_topic(namespace, group, "30s")),
        topics.redrive_topic(namespace, group),
        f"{namespace}._reply.{topics.agent_slug('a' * 256)}",
    ):
        check_topic_name(name)


@pytest.mark.parametrize("name", ["", "A", "a.b", "a" * 64, "_a", "1"])
def test_an_illegal_namespace_or_group_is_refused(name: str) -> None:
    with pytest.raises(NameRefusedError):
        topics.check_namespace(name)
    with pytest.raises(NameRefusedError):
        topics.check_group(name)


def test_a_reply_topic_is_a_reply_address_of_its_namespace() -> None:
    for agent in ("planner@svc", "opencode://code-reviewer", "ä", "x" * 256):
        topic = topics.reply_topic("agents", agent)
        check_topic_name(topic)
        assert is_reply_to(topic, "agents")
        assert topics.read_topic(topic) == TopicName("reply", "agents")
