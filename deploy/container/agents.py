"""The worker of deploy/compose.yaml: put your own app in its place."""

import msgspec

from sealbus import App, payload

__all__ = ["Hello", "app"]


@payload("hello.said", version="1.0.0")
class Hello(msgspec.Struct, frozen=True):
    """A greeting."""

    name: str


app = App("hello@svc")


@app.on(Hello)
async def hello(said: Hello) -> None:
    """Do nothing with it."""
