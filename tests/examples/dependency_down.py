"""A dependency that is down: its messages wait, one at a time tries, and no attempt is spent.

sealbus run dependency_down:app
"""

from __future__ import annotations

import msgspec

from sealbus import App, DependencyDown, payload


@payload("mail.requested")
class MailRequested(msgspec.Struct, frozen=True, kw_only=True):
    to: str


@payload("mail.sent")
class MailSent(msgspec.Struct, frozen=True, kw_only=True):
    to: str


class Server:
    """Stands in for a mail server."""

    is_up = False
    calls = 0

    def send(self, to: str) -> None:
        """Send one mail."""
        self.calls += 1
        if not self.is_up:
            raise ConnectionError(f"{to}: connection refused")


server = Server()
app = App("mailer@svc")


@app.on(MailRequested)
async def send(request: MailRequested) -> MailSent:
    try:
        server.send(request.to)
    except ConnectionError as error:
        raise DependencyDown("mail server") from error
    return MailSent(to=request.to)


async def test_mails_wait_until_the_server_is_back() -> None:
    server.is_up, server.calls = False, 0
    async with app.test() as bus:
        for number in range(20):
            await bus.publish(MailRequested(to=f"user-{number}"), ttl_s=24 * 3600)
        await bus.advance(3600)
        assert (bus.sent(MailSent), bus.dead_letters) == ([], [])
        assert server.calls < 500  # one at a time tries
        server.is_up = True
        await bus.advance(1200)
        assert (len(bus.sent(MailSent)), bus.dead_letters) == (20, [])
