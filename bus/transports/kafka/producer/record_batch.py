"""One batch as the bytes a broker accepts: record batch format 2 (KIP-98).

Owns compressing and writing a batch, by the compiled code if present, otherwise by the library. `batches` decides which
records belong to a batch.
"""

from __future__ import annotations

from typing import Any, Final

import zstandard
from aiokafka import AIOKafkaProducer

from bus import native
from bus.transports.base import NewRecord

__all__ = ["Writing"]

_CODECS: Final = {"none": 0, "zstd": 4}
"""The codecs that are written here, with their number in a batch's attributes."""
_ZSTD_LEVEL: Final = 1
"""Takes half the time of the usual level 3 for text, at about the same size."""
_WORTH_COMPRESSING: Final = 1_024
"""Batches below this many bytes are not compressed, as there is little to save.

One message of a kilobyte shrinks by two fifths in some 10 microseconds.
"""


class Writing:
    """Writes the batches of one producer, one at a time.

    They share one compressor, because creating one costs more than most batches.
    """

    def __init__(self, producer: AIOKafkaProducer, compression: str) -> None:
        self._producer = producer
        self._codec = _CODECS.get(compression) if native.core is not None else None
        self._zstd = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)

    def written(self, records: list[NewRecord], *, timestamp_ms: int) -> Any:
        """Return a closed batch of *records*, all with this timestamp, for the library's `send_batch`."""
        if self._codec is not None:
            section = native.write_records(records)
            if self._codec and len(section) >= _WORTH_COMPRESSING:
                return _Written(self._zstd.compress(memoryview(section)), len(records), timestamp_ms, self._codec)
            return _Written(bytes(section), len(records), timestamp_ms, 0)
        builder = self._producer.create_batch()
        for record in records:
            if (
                builder.append(timestamp=timestamp_ms, key=record.key, value=record.value, headers=list(record.headers))
                is None
            ):
                raise AssertionError("a batch was cut larger than the library takes")
        builder.close()
        return builder


class _Written:
    """The part of the library's BatchBuilder interface that the library uses.

    It sets the producer state last, and asks for the bytes again at each attempt.
    """

    def __init__(self, section: bytes, count: int, timestamp_ms: int, codec: int) -> None:
        self._section = section
        self._count = count
        self._timestamp_ms = timestamp_ms
        self._codec = codec
        self._state = (-1, -1, 0)
        self._bytes: bytes | None = None

    def _set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        self._state = (producer_id, producer_epoch, base_sequence)

    def _build(self) -> bytes:
        if self._bytes is None:
            self._bytes = native.write_batch(self._section, self._count, self._codec, self._timestamp_ms, *self._state)
            self._section = b""
        return self._bytes

    def size(self) -> int:
        return len(self._bytes or self._section)

    def record_count(self) -> int:
        return self._count

    def closed(self) -> bool:
        return True

    def close(self) -> None:
        """Do nothing: the batch is closed from the start."""
