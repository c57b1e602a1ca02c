"""Echo: the smallest agent.

sealbus run echo:app
echo '{"text": "hello"}' | sealbus publish echo.request --app echo:app
sealbus tail echo.output --from start
"""

from __future__ import annotations

import msgspec

from sealbus import App, payload


@payload("echo.request")
class EchoRequest(msgspec.Struct, frozen=True, kw_only=True):
    text: str


@payload("echo.output")
class EchoOutput(msgspec.Struct, frozen=True, kw_only=True):
    text: str


app = App("echo@svc")


@app.on(EchoRequest)
async def echo(request: EchoRequest) -> EchoOutput:
    return EchoOutput(text=request.text)


async def test_the_echo_returns_its_input() -> None:
    async with app.test() as bus:
        await bus.publish(EchoRequest(text="hello"))
        await bus.settle()
        assert bus.sent(EchoOutput) == [EchoOutput(text="hello")]
