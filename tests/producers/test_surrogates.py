"""Text that is no Unicode is refused before anything leaves, wherever it stands; nothing else is raised."""

from __future__ import annotations

from typing import Any

import pytest

from sealbus import PublishRejected, Receipt, connect
from sealbus.trust import Authority, Security
from tests.kit import Asked

BAD = "\ud800"


PLACES: dict[str, Any] = {
    "can_read": {"authority": Authority(can_read=(BAD,))},
    "can_execute": {"authority": Authority(can_execute=(BAD,))},
    "max_side_effect": {"authority": Authority(max_side_effect=BAD)},
    "decision_right": {"authority": Authority(decision_right=BAD)},
    "classification": {"security": Security(data_classification=BAD)},
    "task_id": {"task_id": BAD},
    "intent": {"intent": BAD},
    "key": {"key": BAD},
    "to": {"to": BAD},
    "traceparent": {"traceparent": BAD},
    "idempotency_key": {"idempotency_key": BAD},
}


@pytest.mark.parametrize("place", PLACES)
async def test_a_lone_surrogate_is_refused_wherever_it_stands(place: str) -> None:
    async with connect("memory://", agent="a@svc") as bus:
        with pytest.raises(PublishRejected, match="refused before sending"):
            await bus.publish(Asked(), **PLACES[place])
        assert isinstance(await bus.publish(Asked()), Receipt)


async def test_a_stream_continues_after_invalid_text() -> None:
    async with connect("memory://", agent="a@svc") as bus:
        found = [result async for result in bus.publish_many([Asked(text=BAD), Asked()])]
        assert [type(result) for result in found] == [PublishRejected, Receipt]
