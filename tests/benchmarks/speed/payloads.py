"""The payload everybody sends: an agent's report of about 45 values, 8 of them floats, 1,036 bytes in canonical form,
no two alike.

Owns the type, making the payloads from a seed, and the file that the measuring processes read them from: as Structs or
as bytes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from sealbus import payload

__all__ = ["BYTES", "KEYS", "TYPE", "Report", "bodies", "drafted", "keys", "reports", "write_payloads"]

BYTES = 1_036
KEYS = 1_000
TYPE = "bench.report"
_WORDS = 4_000
_STRIDE = 617


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was read."""

    url: str
    title: str
    score: float
    rank: int


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was done."""

    number: int
    tool: str
    note: str
    took_s: float
    ok: bool


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What it took."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost_cents: float


@payload(TYPE, version="1.0.0")
class Report(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's report."""

    report_id: str
    task_id: str
    model: str
    question: str
    answer: str
    confidence: float
    language: str
    draft: bool
    revision: int
    tags: tuple[str, ...]
    sources: tuple[Source, ...]
    steps: tuple[Step, ...]
    usage: Usage


_encode = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder(Report).decode


def write_payloads(path: Path, count: int) -> None:
    """Write *count* of them to *path*; a file that has them already is kept."""
    if path.exists() and path.stat().st_size >= count * (BYTES + 1):
        return
    chance = random.Random(7)
    words = ["".join(chance.choices("aaabcdeeeefghiiklmnnooprsttuvw", k=chance.randint(2, 11))) for _ in range(_WORDS)]
    with path.open("wb") as file:
        for number in range(count):
            file.write(_one(number, chance, words) + b"\n")


def bodies(path: str, count: int) -> list[bytes]:
    """The first *count* of them as canonical bytes, ready to be sent."""
    with Path(path).open("rb") as file:
        found = [line[:-1] for line in islice(file, count)]
    if len(found) < count:
        raise ValueError(f"{path} holds {len(found)} payloads, not {count}")
    return found


def reports(path: str, count: int) -> list[Report]:
    """The first *count* of them as the Structs that programs have."""
    return [_decode(body) for body in bodies(path, count)]


def drafted(path: str, count: int) -> Iterator[tuple[str, Report]]:
    """Key and payload, one after the other, without all of them in memory."""
    with Path(path).open("rb") as file:
        for number, line in enumerate(islice(file, count)):
            yield _key(number), _decode(line)


def keys(count: int) -> Sequence[str]:
    """A key for each of *count* messages: one of a thousand, in mixed order."""
    cycle = [_key(number) for number in range(KEYS)]
    return [cycle[number % KEYS] for number in range(count)]


def _key(number: int) -> str:
    return f"conversation-{number * _STRIDE % KEYS:04d}"


def _one(number: int, chance: random.Random, words: Sequence[str]) -> bytes:
    def text(count: int) -> str:
        return " ".join(chance.choices(words, k=count))

    def fraction(most: int) -> float:
        # Never a whole number: those are written otherwise in canonical form, and the bytes of all are to be the same.
        return chance.randrange(most) + chance.randint(1, 9_999) / 10_000

    report = Report(
        report_id=f"{chance.getrandbits(64):016x}",
        task_id=f"task-{number:07d}",
        model="reviewer-large",
        question=text(6) + "?",
        answer="",
        confidence=fraction(1),
        language="en",
        draft=chance.random() < 0.5,
        revision=chance.randint(1, 9),
        tags=tuple(chance.choices(words, k=5)),
        sources=tuple(
            Source(
                url=f"https://example.org/{chance.choice(words)}/{chance.randint(1, 9999)}",
                title=text(2),
                score=fraction(1),
                rank=rank,
            )
            for rank in range(1, 4)
        ),
        steps=tuple(
            Step(number=step, tool=tool, note=text(2), took_s=fraction(9), ok=chance.random() < 0.9)
            for step, tool in enumerate(("search", "read", "write"), start=1)
        ),
        usage=Usage(
            input_tokens=chance.randint(200, 9000),
            output_tokens=chance.randint(50, 900),
            cached_tokens=chance.randint(0, 200),
            cost_cents=fraction(9),
        ),
    )
    missing = BYTES - len(_encode(report))
    return _encode(msgspec.structs.replace(report, answer=text(missing // 2 + 1)[: max(0, missing)]))
