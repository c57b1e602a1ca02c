"""App: an agent's handlers, declared, and the doors to run them: in this program, or in a test.

Owns whose handlers they are: agent, group, namespace, roles, keys. `consumers.app.router` declares the handlers,
`consumers.worker` runs them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from bus.errors import ConfigurationError
from bus.opening import Opening
from bus.payloads.payload_types import Registry
from bus.protocol.envelope import Agent
from bus.protocol.identifiers import is_schema_version, is_text_id
from bus.protocol.signatures import Signer, Verifier
from bus.topics.names import check_group, check_namespace, group_of_agent
from bus.trust.policy.policy import NO_POLICY, Policy
from consumers.app.handler_signature import returned_types, sent_types
from consumers.app.router import Router
from consumers.delivery.declaration import Declaration, HandlerDeclaration, Lifespan, Middleware
from consumers.processes.sagas.subscriptions import cancel_subscription, mail_subscriptions, step_subscriptions

if TYPE_CHECKING:
    from bus.settings.schema import Settings
    from bus.telemetry.metrics import Metrics
    from consumers.app.testing import TestBus
    from producers.connection import Bus

__all__ = ["App"]

_CURE: Final = "{0} needs `async with`, in an `async def`: write `async with {0} as bus:`"


class App(Router):
    """Declares one agent's handlers.

        app = App("shop@svc", types=[Progress], middleware=[timed])

    The group is derived from the agent unless given; all instances of a group share its messages.

    *roles* are the recipient roles that the agent has, *types* further payload classes that it publishes. The classes
    that handlers return are found from their annotations.

    *capabilities* are listed on the agent's card in the directory, by default the message types that it handles.
    *version* is on the card, too, and a checkpoint of another version is not resumed.

    *middleware* wraps every handler, outermost first: functions that take the next handler and return one.

        def timed(next: Handling) -> Handling:
            async def handler(payload: object, context: Context) -> object:
                started = time.monotonic()
                try:
                    return await next(payload, context)
                finally:
                    print(context.message.message_type, time.monotonic() - started)

            return handler
    """

    def __init__(
        self,
        agent: str | Agent,
        *,
        group: str | None = None,
        namespace: str | None = None,
        roles: Iterable[str] = (),
        types: Iterable[type[Any]] = (),
        policy: Policy | None = None,
        signer: Signer | None = None,
        verifier: Verifier | None = None,
        middleware: Iterable[Middleware] = (),
        capabilities: Iterable[str] = (),
        version: str = "1.0.0",
    ) -> None:
        super().__init__(middleware=middleware, types=types)
        if not isinstance(agent, str | Agent):
            raise ConfigurationError(
                f"agent is {agent!r}: an App needs the id of its agent, such as App('researcher@svc')"
            )
        self.agent = Agent(id=agent, type="agent") if isinstance(agent, str) else agent
        if self.agent.id is None or not is_text_id(self.agent.id):
            raise ConfigurationError(
                f"illegal agent id {self.agent.id!r}: 1 to 256 characters without control characters"
            )
        for argument, value in (("group", group), ("namespace", namespace), ("version", version)):
            if value is not None and not isinstance(value, str):
                raise ConfigurationError(f"{argument} is {type(value).__name__} {value!r:.80}: an App takes a text")
        self.group = group or group_of_agent(self.agent.id)
        check_group(self.group)
        if namespace is not None:
            check_namespace(namespace)
        self.namespace = namespace
        if isinstance(roles, str):
            raise ConfigurationError(f"roles are a collection of texts: write roles=[{roles!r}]")
        self.roles = frozenset(roles) | ({self.agent.role} if self.agent.role else frozenset())
        if isinstance(capabilities, str):
            raise ConfigurationError(f"capabilities are a collection of texts: write capabilities=[{capabilities!r}]")
        self.capabilities = tuple(capabilities)
        if not is_schema_version(version):
            raise ConfigurationError(f"version {version!r} is not of the form 1.0.0")
        self.version = version
        self.policy: Policy = NO_POLICY if policy is None else policy
        self.signer = signer
        self.verifier = verifier

    @property
    def declaration(self) -> Declaration:
        """The declarations of this app so far, as a value for workers."""
        schedules = self.schedules
        handled = {**self._scheduled(), **self.subscriptions}
        functions = [*(each.handler for each in handled.values()), *(each.function for each in schedules)]
        returned = [cls for function in functions for cls in returned_types(function)]
        sagas = tuple(saga.rules for saga in self.sagas)
        asks = any(each.asks for each in handled.values())
        holds = asks or any(each.approval is not None for each in handled.values())
        # Processes hear of a cancelled task, unless the app handles that itself.
        cancels = cancel_subscription() if sagas or holds else {}
        subscriptions = {**cancels, **handled, **step_subscriptions(sagas)}
        return Declaration(
            agent=self.agent,
            group=self.group,
            namespace=self.namespace,
            roles=self.roles,
            policy=self.policy,
            signer=self.signer,
            verifier=self.verifier,
            subscriptions=MappingProxyType(subscriptions),
            types=(*self._sent_types(), *returned),
            lifespans=self.lifespans,
            version=self.version,
            capabilities=self.capabilities,
            sagas=sagas,
            schedules=schedules,
            sends=frozenset(cls for rules in sagas for cls in (*rules.sends, *sent_types(rules.functions))),
            mail=mail_subscriptions(sagas, holds=holds, asks=asks),
        )

    def _scheduled(self) -> Mapping[str, HandlerDeclaration]:
        """Return the subscription of its schedules."""
        if not self.schedules:
            return {}
        from consumers.processes.schedules.subscription import schedule_subscription

        return schedule_subscription(self.schedules, self.agent.id or "")

    @property
    def agent_id(self) -> str:
        """The agent's id."""
        return self.agent.id or ""

    @property
    def registry(self) -> Registry:
        """Every payload type that this app handles or sends."""
        return self.declaration.registry

    def running(
        self,
        url: str | None = None,
        *others: App,
        config: Path | None = None,
        settings: Settings | None = None,
        metrics: Metrics | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> AbstractAsyncContextManager[Bus, None]:
        """Run this app, and *others*, inside a program that has an event loop of its own.

            async with app.running("sqlite:///x.db") as bus:
                await bus.publish(Order(...))

        Yields a `Bus` of this agent on the same log. On leaving, running handlers may finish within
        `worker.drain_timeout_s`; unfinished messages are delivered again.

        Settings come from *settings*, or from the environment, the TOML file *config*, by default the project's
        `sealbus.toml` (in the current folder or above it), and the defaults. *metrics* counts into a Prometheus
        registry of the program: `Metrics(registry)`.

        A worker that fails cancels the body, and its error is raised here. With *on_failure* the body goes on and the
        function decides, for example by ending a web server.

        Raises UnreachableError, ConfigurationError, TopicMissingError.
        """
        from consumers.worker.embedded import running

        apps = _declarations(self, others, "app.running(url, other)")
        opening = running(apps, url, config=config, settings=settings, metrics=metrics, on_failure=on_failure)
        return Opening(opening, _CURE.format("app.running(...)"))

    async def run(
        self,
        url: str | None = None,
        *others: App,
        config: Path | None = None,
        settings: Settings | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """Run this app, and *others*, until the task is cancelled or a worker fails; the arguments are `running`'s.

            asyncio.run(app.run("sqlite:///x.db"))      # Ctrl-C drains

        `sealbus run` besides restarts processes, and drains on SIGTERM.
        """
        async with self.running(url, *others, config=config, settings=settings, metrics=metrics):
            await asyncio.get_running_loop().create_future()

    def test(
        self,
        *others: App,
        settings: Settings | None = None,
        provide: Mapping[Lifespan, object] | None = None,
        keys: bool | None = None,
    ) -> AbstractAsyncContextManager[TestBus, None]:
        """Run this app, and *others*, on a log in memory, with a clock that only the test moves.

            async with app.test() as bus:
                await bus.publish(Order(sku="tea"))
                await bus.settle()
                bus.assert_all_handled()
                assert bus.sent(Booked) == [Booked(sku="tea")]

        Settings are those of the project, as in `running`, except what reaches outside: log and inbox are in memory,
        and there are neither brokers nor key files. So the policy of the project holds in tests, too.

        *provide* replaces lifespans by values: `provide={database: FakePool()}`. *keys*: whether every agent in the
        test has a key of its own, and signs; by default where a type of high risk or a policy file needs it.
        """
        from consumers.app.testing import run_in_memory

        apps = _declarations(self, others, "app.test(other, settings=...)")
        return Opening(run_in_memory(apps, settings, provide or {}, keys=keys), _CURE.format("app.test()"))


def _declarations(app: App, others: Iterable[App], call: str) -> list[Declaration]:
    for other in others:
        if not isinstance(other, App):
            raise ConfigurationError(f"{type(other).__name__} is not an App: write {call}")
    return [app.declaration, *(other.declaration for other in others)]
