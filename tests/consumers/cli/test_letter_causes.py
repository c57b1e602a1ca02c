"""`sealbus dlq`: the letters that a list shows for a cause are those sent back for it, the other cause too."""

from __future__ import annotations

import asyncio
import json
import random
import string
from typing import Any

from bus.errors import Reject
from bus.settings.loading import load
from bus.topics.specs import namespace_topics
from bus.transports import open_transport
from bus.transports.base import NewRecord, Record, TopicSpec
from consumers.deadletters.causes import MAX_CAUSES, OTHER
from consumers.deadletters.records import Control, Failure, dead_letter_record

GROUP = "job-svc-1c2d3e4f"


def wild(number: int) -> str:
    chosen = random.Random(number)
    return " ".join("".join(chosen.choices(string.ascii_lowercase, k=6)) for _ in range(chosen.randint(3, 9)))


def dead(text: str, number: int) -> NewRecord:
    record = Record("agents.job.run", 0, number, 0, None, b"%d" % number, ())
    failure = Failure(reason="rejected", error="Reject", text=text, exception=Reject(text))
    control = Control(record.topic, 0, number)
    return dead_letter_record(record, control, failure, group=GROUP, now_ms=number, honoured=False, details=False)


def died(folder: Any, texts: list[str]) -> None:
    async def append() -> None:
        url = f"sqlite:///{folder.path}/sealbus.db"
        settings = load(flags={"bus.url": url}, env={}, file=None).settings
        transport = open_transport(url)
        await transport.admin.create_topics(
            [
                TopicSpec(name="agents.job.run.dlq", partitions=1),
                TopicSpec(name=f"agents._redrive.{GROUP}", partitions=1),
                *namespace_topics(settings),
            ]
        )
        await transport.append([dead(text, number) for number, text in enumerate(texts)], timeout_s=5)
        await transport.close()

    asyncio.run(append())


def rows(folder: Any, *words: str) -> list[dict[str, Any]]:
    result = folder.call("dlq", "list", *words, "--limit", "1000", "-o", "json")
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_each_listed_cause_selects_exactly_its_letters(folder: Any) -> None:
    texts = [f"no tea for {name}" for name in ("ann", "17", "bob", "ord_8fK2x")]
    died(folder, [*texts, *(wild(number) for number in range(MAX_CAUSES + 30)), "no tea for zoe"])
    causes = rows(folder, "--by", "cause")
    assert len(causes) == MAX_CAUSES + 1
    (other,) = (each for each in causes if each["value"].startswith(OTHER))
    for each in (causes[0], other, causes[-1]):
        assert len(rows(folder, "--cause", each["value"])) == each["dead_letters"]
    assert {each["error"] for each in rows(folder, "--cause", causes[1]["value"])} == {
        f"Reject: {t}" for t in texts
    } | {"Reject: no tea for zoe"}
    result = folder.call("dlq", "redrive", "--cause", other["value"], "--to-stopped", "--why", "x", "--yes")
    assert result.exit_code == 0, result.stderr
    left = rows(folder, "--by", "cause")
    assert sum(each["dead_letters"] for each in left) == len(texts) + 1 + MAX_CAUSES + 30 - other["dead_letters"]
    assert other["value"] not in {each["value"] for each in left}
    assert len(rows(folder, "--state", "redriven")) == other["dead_letters"]
    assert len(rows(folder, "--state", "redriven", "--cause", other["value"])) == other["dead_letters"]


def test_an_other_cause_that_is_another_one_by_now_selects_nothing(folder: Any) -> None:
    died(folder, [wild(number) for number in range(MAX_CAUSES + 10)])
    result = folder.call("dlq", "redrive", "--cause", f"{OTHER}00000000", "--dry-run")
    assert "no dead letters of cause other-00000000" in result.stderr
    assert "would be redriven" in result.stderr


def test_a_long_word_in_an_error_pads_no_row(folder: Any) -> None:
    died(folder, ["x" * 230, "y" * 230, "short"])
    lines = folder.call("dlq", "list", "--by", "cause").stdout.splitlines()
    (short,) = (line for line in lines if "Reject: short" in line)
    assert len(short) < 250
    assert max(map(len, lines)) < 330
