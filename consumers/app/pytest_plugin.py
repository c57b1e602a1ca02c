"""The pytest plugin of an installed sealbus: plain `pytest` runs `async def` tests and fixtures.

Each test has an event loop of its own, in which its fixtures run, too. A test that uses an async fixture of a class, a
module or the session runs in one loop for the session. Tests and fixtures that another plugin runs (pytest-asyncio,
anyio, trio) are left to it. `pytest -p no:sealbus` switches this off.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, Final

import pytest

__all__ = ["pytest_fixture_setup", "pytest_pyfunc_call", "pytest_runtest_protocol", "pytest_unconfigure"]

_OTHERS: Final = ("anyio", "asyncio", "trio")
_OWN: Final = pytest.StashKey[asyncio.Runner]()
_SHARED: Final = pytest.StashKey[asyncio.Runner]()


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine function to its end; None leaves any other test to other plugins."""
    function = pyfuncitem.obj
    if not inspect.iscoroutinefunction(function) or _is_of_another(pyfuncitem):
        return None
    names = inspect.signature(function).parameters
    _runner_of(pyfuncitem).run(
        function(**{name: pyfuncitem.funcargs[name] for name in names if name in pyfuncitem.funcargs})
    )
    return True


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Generator[None, Any, Any]:
    """Let pytest call an async fixture as a plain one. Other plugins have had their turn."""
    function = fixturedef.func
    if not _is_async(function) or _is_of_another(request._pyfuncitem):  # noqa: SLF001 - as pytest-asyncio does
        return (yield)
    # A runner that is closed after the fixtures which it runs.
    fixturedef.func = _Plain(_bound(function, request.instance), _runner_of(request._pyfuncitem), request)  # noqa: SLF001
    try:
        return (yield)
    finally:
        fixturedef.func = function


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Close the event loop of a test when its fixtures have ended."""
    try:
        return (yield)
    finally:
        if (runner := item.stash.get(_OWN, None)) is not None:
            del item.stash[_OWN]
            runner.close()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close the event loop of the session."""
    if (runner := config.stash.get(_SHARED, None)) is not None:
        del config.stash[_SHARED]
        runner.close()


class _Plain:
    """An async fixture as pytest calls a plain one. An object, because pytest would bind a function to the class."""

    def __init__(self, function: Callable[..., Any], runner: asyncio.Runner, request: Any) -> None:
        self._function = function
        self._runner = runner
        self._request = request
        self.__name__ = getattr(function, "__name__", "fixture")

    def __call__(self, **arguments: Any) -> Any:
        if inspect.iscoroutinefunction(self._function):
            return self._runner.run(self._function(**arguments))
        return self._run_generator(self._function(**arguments))

    def _run_generator(self, values: AsyncGenerator[Any, None]) -> Any:
        """Return the value that *values* yields; its rest runs when the fixture ends, in the same task."""
        loop = self._runner.get_loop()
        value: asyncio.Future[Any] = loop.create_future()
        over = asyncio.Event()

        async def go_on() -> None:
            try:
                given = await anext(values)
            except BaseException as error:
                if value.done():
                    raise
                value.set_exception(_told(error))
                return
            value.set_result(given)
            await over.wait()
            try:
                await anext(values)
            except StopAsyncIteration:
                return
            raise pytest.UsageError(f"the async fixture {self.__name__} yields more than once")

        async def begin() -> tuple[asyncio.Task[None], Any]:
            task = loop.create_task(go_on())
            return task, await value

        async def end() -> None:
            over.set()
            await task

        task, given = self._runner.run(begin())
        self._request.addfinalizer(lambda: self._runner.run(end()))
        return given


def _told(error: BaseException) -> BaseException:
    """Return *error* as a future takes it, which refuses StopIteration."""
    if isinstance(error, StopIteration | StopAsyncIteration):
        return RuntimeError("an async fixture ended without a value: it has no yield on this way")
    return error


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _is_of_another(item: Any) -> bool:
    return any(map(item.get_closest_marker, _OTHERS))


def _bound(function: Any, instance: Any) -> Any:
    """Return *function* as a method of the test's *instance*, if it is one of its class."""
    if instance is None or inspect.ismethod(function):
        return function
    is_of_class = any(function in vars(base).values() for base in type(instance).__mro__)
    return function.__get__(instance) if is_of_class else function


def _runner_of(item: Any) -> asyncio.Runner:
    """Return the runner of the event loop of *item*, opened once."""
    stash, key = (item.config.stash, _SHARED) if _shares(item) else (item.stash, _OWN)
    runner = stash.get(key, None)
    if runner is None:
        runner = stash[key] = asyncio.Runner()
    found: asyncio.Runner = runner
    return found


def _shares(item: Any) -> bool:
    """Return whether *item* uses an async fixture that outlives a test."""
    known = item._fixtureinfo.name2fixturedefs.values()  # noqa: SLF001 - pytest shows them nowhere else
    return any(_is_async(each.func) and each.scope != "function" for fixtures in known for each in fixtures)
