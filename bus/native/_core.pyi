from collections.abc import Callable, Sequence
from typing import Any

from typing_extensions import Buffer

def is_canonical_object(data: bytes, room: int, /) -> bool: ...
def digest(data: bytes, /) -> str: ...
def seal_plain(
    frame: tuple[bytes, bytes, bytes, bytes],
    data: bytes,
    now_ms: int,
    ttl_ms: int,
    entropy: bytes,
    conversation_id: str | None,
    idempotency_key: str | None,
    key: str | None,
    /,
) -> tuple[str, bytes, bytes] | None: ...
def seal_caused(
    frame: tuple[bytes, bytes, bytes, bytes, bytes, bytes],
    inherited: tuple[bytes, str, int, bytes, bytes, bytes, bytes, int, str, bytes],
    chained: bool,
    max_hops: int | None,
    data: bytes,
    now_ms: int,
    ttl_ms: int,
    entropy: bytes,
    idempotency_key: str | None,
    key: str | None,
    /,
) -> tuple[str, bytes, bytes] | None: ...
def write_records(records: list[Any], /) -> Section: ...
def write_batch(
    section: bytes,
    count: int,
    attributes: int,
    timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    /,
) -> bytes: ...
def read_records(
    section: bytes | bytearray | memoryview,
    length: int,
    count: int,
    kind: type[Any],
    topic: str,
    partition: int,
    base_offset: int,
    base_ms: int,
    append_ms: int | None,
    names: dict[bytes, str],
    /,
) -> list[Any]: ...
def murmur2_many(keys: Sequence[bytes], /) -> list[int]: ...
def distribute(
    records: list[Any], partitions: int, largest: int, /
) -> dict[int, tuple[list[Any], list[int], list[int]]] | None: ...
def has_long_integer(data: bytes, /) -> bool: ...
def count_extremes(data: bytes, /) -> int: ...
def count_marks(data: bytes, start: int, end: int, /) -> tuple[int, int, int]: ...
def header_bytes(headers: tuple[tuple[str, bytes], ...], /) -> int: ...
def record_sizes(records: Sequence[Any], /) -> list[int]: ...
def acknowledge(
    outcomes: list[Any],
    indices: Sequence[int],
    kind: type[Any],
    topic: str,
    partition: int,
    offset: int,
    timestamp_ms: int,
    /,
) -> int: ...

class Section(Buffer):
    def __len__(self) -> int: ...

class Caster:
    def __init__(
        self,
        cast: type[Any],
        message: type[Any],
        verification: type[Any],
        replace: Callable[..., Any],
        is_canonical: Callable[[bytes], bool],
        limits: tuple[int, int, int, int, int],
        /,
    ) -> None: ...
    def cast(self, value: bytes, layouts: dict[str, Any], room: int, /) -> Any | str | None: ...
    def judge(
        self,
        value: bytes,
        layouts: dict[str, Any],
        room: int,
        key: bytes | None,
        headers: tuple[tuple[str, bytes], ...],
        expected_type: object,
        now_ms: int,
        append_ms: int,
        /,
    ) -> Any | str | None: ...

class Encoder:
    def __init__(self, plan: tuple[Any, ...], decode: Callable[[bytes], Any] | None, room: int, /) -> None: ...
    def encode(self, subject: Any, /) -> bytes | None: ...

class Links:
    def __init__(self, link: type[Any], statement: type[Any], addressee: type[Any], /) -> None: ...
    def have_form(self, chain: tuple[Any, ...], /) -> bool: ...
    def hold(
        self, chain: tuple[Any, ...], statement: Any, cause_id: str | None, backwards_ms: int, age_ms: int, /
    ) -> bool: ...

class Sealer:
    def __init__(
        self,
        encoder: Encoder,
        frame: tuple[bytes, bytes, bytes, bytes],
        lifetimes: tuple[int, float],
        max_message_bytes: int,
        names: tuple[str, str, tuple[tuple[str, bytes], ...], tuple[tuple[str, bytes], ...]],
        kinds: tuple[type, type],
        drafts: tuple[type, dict[str, object], bool],
        sign: Callable[[bytes], str] | None,
        /,
    ) -> None: ...
    def one(self, item: Any, now_ms: int, entropy: bytes, /) -> Any | None: ...
    def many(
        self, items: list[Any] | tuple[Any, ...], start: int, room: int, now_ms: int, entropy: bytes, /
    ) -> tuple[list[Any], list[Any], int]: ...

class Receipts:
    def __init__(self, kind: type[Any], sealed: type[Any], appended: type[Any], /) -> None: ...
    def of(self, sealed: Sequence[Any], outcomes: Sequence[Any], /) -> list[Any] | None: ...
