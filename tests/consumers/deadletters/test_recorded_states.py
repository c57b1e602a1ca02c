"""Recorded states in little room say what the states themselves say."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from bus.settings.loading import load
from bus.topics.specs import namespace_topics
from bus.transports import open_transport
from bus.transports.base import NewRecord, TopicSpec
from consumers.deadletters.death_times import DeathTimes
from consumers.deadletters.letter_state import LetterState, LetterStatus, Step, known_state_of, load_states
from consumers.deadletters.letters import LetterFacts, list_letter_facts
from consumers.deadletters.recorded_states import RecordedStates
from consumers.deadletters.redrive_rules import RedrivenDeath
from tests.letters import TOPIC, write_letters

STEP = Step(at="2026-01-02T00:00:00.000Z", action="redriven", by="me@here", run="r", why="mended")
SENDING = Step(at="2026-01-02T00:00:00.000Z", action="sending", by="me@here", run="s")
SETTINGS = load(flags={"bus.url": "memory://"}, env={}, file=None).settings


def state(letter: LetterFacts, status: LetterStatus, *steps: Step, content: str | None = None) -> LetterState:
    return LetterState(
        state=status,
        origin=letter.origin,
        group=letter.group,
        count=letter.redrive_count,
        content=letter.content if content is None else content,
        steps=steps or (STEP,),
    )


async def test_each_state_is_that_of_its_letter_or_none() -> None:
    transport = open_transport("memory://")
    await write_letters(transport, 8, 10)
    letters = [each async for each in list_letter_facts(transport, "agents")]
    records = [
        state(letters[0], "redriven").record("agents", letters[0].place),
        state(letters[1], "parked", content="").record("agents", letters[1].place),
        state(letters[2], "open", SENDING).record("agents", letters[2].place),
        # About the letter that lay there before.
        state(letters[0], "dismissed").record("agents", letters[3].place),
        state(letters[4], "redriven").record("agents", letters[4].place),
        NewRecord("agents._deadletters", letters[4].place.encode(), None),
        state(letters[5], "redriven").record("agents", letters[5].place),
        state(letters[5], "dismissed", STEP, STEP).record("agents", letters[5].place),
        NewRecord("agents._deadletters", b"park g agents.job.run/0/1", b'{"at": "x"}'),
        NewRecord("agents._deadletters", b"\xff", b"{"),
    ]
    await transport.append(records, timeout_s=5)
    states = RecordedStates(transport, "agents")
    changed: list[tuple[str, int, int]] = []
    await states.read_on(lambda *location: changed.append(location))
    whole = await load_states(transport, "agents")
    for letter in letters:
        expected = known_state_of(letter, whole.get(letter.place))
        found = states.of(letter)
        assert (found and (found.state, found.sending)) == (expected and (expected.state, expected.sending))
        assert await states.with_steps(letter) == expected
        assert await states.at(letter.place) == whole.get(letter.place)
    assert list(states.sending()) == [letters[2].place]
    assert {location[2] for location in changed} == {0, 1, 2, 3, 4, 5}
    states.forget_before(f"{TOPIC}.dlq", 0, 1_000)
    assert states.of(letters[0]) is None
    await transport.close()


async def test_what_was_written_is_known_before_it_is_read() -> None:
    transport = open_transport("memory://")
    await write_letters(transport, 1, 10)
    (letter,) = [each async for each in list_letter_facts(transport, "agents")]
    states = RecordedStates(transport, "agents")
    mine = {letter.place: state(letter, "open", SENDING)}
    states.put(mine)
    assert states.of(letter) == mine[letter.place]
    await transport.append([each.record("agents", place) for place, each in mine.items()], timeout_s=5)
    await transport.append([state(letter, "redriven").record("agents", letter.place)], timeout_s=5)
    await states.read_on()
    assert states.sending() == {}
    assert await states.with_steps(letter) == state(letter, "redriven")
    await transport.close()


async def test_many_states_take_less_than_a_hundred_bytes_each() -> None:
    transport = open_transport("memory://")
    await transport.admin.create_topics([TopicSpec(name="agents.a.b.dlq"), *namespace_topics(SETTINGS)])
    known = LetterState(state="redriven", origin="agents.a.b/0/7", group="g", count=0, content="x", steps=(STEP,))
    for start in range(0, 20_000, 1_000):
        records = [known.record("agents", f"agents.a.b.dlq/0/{offset}") for offset in range(start, start + 1_000)]
        await transport.append(records, timeout_s=5)
    states = RecordedStates(transport, "agents")
    tracemalloc.start()
    await states.read_on()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / 20_000 < 100
    await transport.close()


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 2**53)), max_size=400))
def test_times_of_deaths_are_those_of_a_dict(puts: list[tuple[int, int]]) -> None:
    times, expected = DeathTimes(), dict[RedrivenDeath, int]()
    for number, at_ms in puts:
        death = RedrivenDeath(f"agents.a.b/0/{number * 7919}", "g", number, "")
        times.put(death, at_ms)
        expected[death] = at_ms
    for number in range(61):
        death = RedrivenDeath(f"agents.a.b/0/{number * 7919}", "g", number, "")
        assert times.get(death) == expected.get(death)


def test_many_deaths_have_their_times() -> None:
    times = DeathTimes()
    for number in range(5_000):
        times.put(RedrivenDeath(f"agents.a.b/0/{number}", "g", 0, ""), number)
    assert all(times.get(RedrivenDeath(f"agents.a.b/0/{n}", "g", 0, "")) == n for n in range(5_000))
    assert times.get(RedrivenDeath("agents.a.b/0/5000", "g", 0, "")) is None
