"""Objects that are opened by `async with`, and that explain this where they are used in another way."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, TypeVar

__all__ = ["Opening"]

_Opened = TypeVar("_Opened")


class Opening(AbstractAsyncContextManager[_Opened, None]):
    """Opens *opening* with `async with`; any other use raises an error with the text *cure*."""

    def __init__(self, opening: AbstractAsyncContextManager[_Opened], cure: str) -> None:
        self._opening = opening
        self._cure = cure

    async def __aenter__(self) -> _Opened:
        return await self._opening.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._opening.__aexit__(kind, error, trace)

    # Type checkers find this mistake by themselves, if they see nothing here.
    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            raise TypeError(self._cure)

        def __exit__(self, *_: object) -> None: ...

        def __await__(self) -> NoReturn:
            raise TypeError(self._cure)

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise AttributeError(f"there is no {name!r} yet: {self._cure}")
