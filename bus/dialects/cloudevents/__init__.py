"""Dialect `cloudevents`: CloudEvents 1.0, with the data of a message, or with the sealed message itself. Pure."""

from bus.dialects.cloudevents.event_table import WRAPPED
from bus.dialects.cloudevents.modes import (
    BATCH,
    STRUCTURED,
    decode,
    decode_batch,
    decode_binary,
    decode_record,
    encode,
    encode_batch,
    encode_binary,
)

__all__ = [
    "BATCH",
    "STRUCTURED",
    "WRAPPED",
    "decode",
    "decode_batch",
    "decode_binary",
    "decode_record",
    "encode",
    "encode_batch",
    "encode_binary",
]
