"""Dead letters of three causes are three things to fix, whatever their ids; an attacker's texts are bounded."""

from __future__ import annotations

import random
import string
import tracemalloc
from collections import Counter
from collections.abc import Iterable

import pytest

from bus.errors import Reject
from bus.transports.base import Record
from consumers.deadletters.causes import MAX_CAUSES, OTHER, CauseBook, cause_of
from consumers.deadletters.letters import LetterFacts, read_letter_facts
from consumers.deadletters.records import Control, Failure, dead_letter_record
from tests.letters import an_id

SENTENCES = ("customer {} is unknown", "no rate for {} in this book", "order {}: the stock of {} is empty")


def letter(
    text: str, number: int = 0, *, topic: str = "agents.job.run", pointer: str = "", error: BaseException | None = None
) -> LetterFacts:
    """A dead letter as a worker writes it, for a handler that raised Reject(text)."""
    came = Record(topic, 0, number, 0, None, b"{}", ())
    failure = Failure(reason="rejected", error="Reject", text=text, exception=error or Reject(text), pointer=pointer)
    control = Control(topic, 0, number)
    new = dead_letter_record(came, control, failure, group="g", now_ms=0, honoured=False, details=False)
    return read_letter_facts(Record(new.topic, 0, number, 0, new.key, new.value, new.headers))


def counted(letters: Iterable[LetterFacts]) -> tuple[CauseBook, Counter[str]]:
    book, counts = CauseBook(), Counter[int]()
    for each in letters:
        counts[book.add(each)] += 1
    return book, sum((Counter({book.name(book.whole(each)): count}) for each, count in counts.items()), Counter())


def test_fifty_thousand_letters_of_three_causes_with_ids_of_all_forms_are_three_causes() -> None:
    _, causes = counted(
        letter(SENTENCES[n % 3].format(an_id(random.getrandbits(40)), an_id(random.getrandbits(40))), n)
        for n in range(50_000)
    )
    assert sorted(causes.values()) == [16_666, 16_667, 16_667]


@pytest.mark.parametrize("alphabet", [string.ascii_lowercase, string.ascii_uppercase, string.ascii_letters])
def test_ids_that_look_like_words_are_ids_when_there_are_many(alphabet: str) -> None:
    def name() -> str:
        return "".join(random.choices(alphabet, k=7))

    _, causes = counted(letter(SENTENCES[n % 3].format(name(), name()), n) for n in range(3_000))
    assert sorted(causes.values()) == [1_000] * 3


def test_a_name_where_others_have_an_id_is_of_their_cause_whichever_came_first() -> None:
    _, causes = counted(letter(f"customer {each} is unknown", n) for n, each in enumerate(["ann", "17", "bob"]))
    assert list(causes.values()) == [3]


def test_three_sentences_of_one_place_are_three_causes() -> None:
    texts = ["the stock is empty", "the stock is closed", "the book is closed"] * 3
    assert sorted(counted(letter(each, n) for n, each in enumerate(texts))[1].values()) == [3, 3, 3]


def test_one_text_from_two_lines_of_code_is_two_causes() -> None:
    errors = []
    try:
        raise Reject("no")
    except Reject as error:
        errors.append(error)
    try:
        raise Reject("no")
    except Reject as error:
        errors.append(error)
    one, other = (cause_of(letter("no", error=error)) for error in errors)
    assert one.where.startswith("test_causes.py:")
    assert one != other


def test_ids_in_the_field_are_no_part_of_a_cause() -> None:
    _, causes = counted(letter("no", n, pointer=f"/data/prices/ord_{n}x/lines/{n}/cents") for n in range(100))
    assert list(causes.values()) == [100]
    assert cause_of(letter("no", pointer="/data/address2/street")).pointer == "/data/address2/street"


def wild(number: int) -> str:
    """A text of its own: no two have a sentence in common."""
    chosen = random.Random(number)
    words = ("".join(chosen.choices(string.ascii_lowercase, k=6)) for _ in range(chosen.randint(3, 9)))
    return " ".join(words)


def test_invented_texts_are_one_other_cause_and_take_bounded_memory() -> None:
    tracemalloc.start()
    book, causes = counted(letter(wild(n), n) for n in range(5_000))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(causes) == MAX_CAUSES + 1
    (other,) = (name for name in causes if name.startswith(OTHER))
    assert causes[other] == 5_000 - MAX_CAUSES
    assert len(book) == MAX_CAUSES + 1
    assert used < 8_000_000


def test_who_reads_the_same_letters_later_names_the_same_other_cause() -> None:
    _, before = counted(letter(wild(n), n) for n in range(300))
    book, after = counted(letter(wild(n), n) for n in range(500))
    assert [name for name in before if name.startswith(OTHER)] == [name for name in after if name.startswith(OTHER)]
    assert Counter(book.name_of(letter(wild(n), n)) for n in range(500)) == after
    _, others = counted(letter(wild(n), n) for n in range(1, 500))
    assert not {name for name in after if name.startswith(OTHER)} & others.keys()


def test_topics_and_reasons_have_their_own_room() -> None:
    book, _ = counted(letter(wild(n), n) for n in range(300))
    late = letter("no rate for JPY", topic="agents.job.other")
    assert book.cause(book.add(late)).error == "Reject: no rate for JPY"
