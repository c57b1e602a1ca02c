"""What a saga may send is found in its code, so that its topics are made before its first step."""

from __future__ import annotations

import msgspec
import pytest

from bus.vocabulary.auction import AuctionCall
from consumers.processes.conversations.contract_net import ContractNet
from consumers.processes.conversations.review import IteratedReview
from sealbus import App, payload, vocabulary
from sealbus.sagas import Saga, SagaContext, on_start


@payload("sent.first", version="1.0.0")
class First(msgspec.Struct, frozen=True):
    pass


@payload("sent.named", version="1.0.0")
class Named(msgspec.Struct, frozen=True):
    pass


@payload("sent.listed", version="1.0.0")
class Listed(msgspec.Struct, frozen=True):
    pass


class Nothing(msgspec.Struct):
    pass


def sent(*sagas: type[Saga[object]]) -> set[str]:
    app = App("sender@svc")
    for saga in sagas:
        app.add(saga)
    return set(app.declaration.topic_types) - {"task.cancel", "sent.first"}


def test_a_class_that_a_method_names_is_sent() -> None:
    class Naming(Saga[Nothing], version="1.0.0"):
        @on_start(First)
        async def first(self, first: First, context: SagaContext) -> None:
            self.later(context)

        def later(self, context: SagaContext) -> None:
            for _ in range(2):
                [context.send(Named()) for _ in range(2)]

    assert sent(Naming) == {"sent.named"}


def test_a_class_of_a_module_or_of_an_outer_function_is_found_too() -> None:
    inner = Named

    class Naming(Saga[Nothing], version="1.0.0"):
        @on_start(First)
        async def first(self, first: First, context: SagaContext) -> None:
            context.send(vocabulary.TaskRequest(goal="x"))
            context.send(inner())

    assert sent(Naming) == {"task.request", "sent.named"}


def test_sent_types_are_the_return_types_of_methods() -> None:
    class Returning(Saga[Nothing], version="1.0.0"):
        @on_start(First)
        async def first(self, first: First, context: SagaContext) -> Listed | None:
            return None

    assert sent(Returning) == {"sent.listed"}


def test_a_subclass_lists_beside_its_base_and_does_not_replace_it() -> None:
    class Shipping(ContractNet, version="1.0.0"):
        sends = (Listed,)

        @on_start(First)
        async def first(self, first: First, context: SagaContext) -> None:
            self.call_for_bids(context, first)

    assert sent(Shipping) == {"sent.listed", "auction.call", "auction.award", "auction.loss"}
    assert AuctionCall in Shipping.rules.sends


@pytest.mark.parametrize(("base", "types"), [(IteratedReview, {"task.request", "review.request"})])
def test_the_built_in_conversations_say_what_they_send(base: type[Saga[object]], types: set[str]) -> None:
    class Own(base, version="1.0.0"):  # type: ignore[call-arg, misc, valid-type]
        @on_start(First)
        async def first(self, first: First, context: SagaContext) -> None: ...

    assert sent(Own) == types
