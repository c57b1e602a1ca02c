"""The worker of deploy/compose.yaml and deploy/kubernetes: put your own app in its place."""

import msgspec

from sealbus import App, payload

__all__ = ["Answered", "Hello", "app"]


@payload("hello.said", version="1.0.0")
class Hello(msgspec.Struct, frozen=True):
    """A greeting."""

    name: str


@payload("hello.answered", version="1.0.0")
class Answered(msgspec.Struct, frozen=True):
    """The answer to a greeting."""

    text: str


app = App("hello@svc")


@app.on(Hello)
async def hello(said: Hello) -> Answered:
    """Greet back."""
    return Answered(text=f"Hello, {said.name}!")
