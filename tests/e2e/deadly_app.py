"""An app whose handler ends its process where a job tells it to, and notes each run in a file that survives that."""

import os
import time

import msgspec

from sealbus import App, Message, payload


class Deadly:
    """A policy that ends its process where the message says so, before any handler begins."""

    def refusal(self, message: Message, group: str) -> str | None:
        if b'"in_judging":true' in bytes(message.data):
            os._exit(3)
        return None


app = App("deadly@tests", policy=Deadly())
_journal = os.open(os.environ.get("LEDGER", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@payload("test.job", version="1.0.0")
class Job(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    deadly: bool = False
    in_judging: bool = False
    ballast: str = ""


@app.on(Job)
async def work(job: Job) -> None:
    os.write(_journal, f"{job.number}\n".encode())
    if job.deadly:
        os._exit(3)
    if "DEADLY_BLOCKS" in os.environ:
        time.sleep(300)  # noqa: ASYNC251 - it blocks the process on purpose
