"""The links by which brokers reach each other and the controller: one for each pair, by who connects to whom.

Owns these links, what a node must be told so that it goes through them, and which of them are silent when a broker is
cut off. Does not own the links of clients (`linked`) or when a cut happens (`clusterdeeds`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from harness.proxy import Link, Mood

__all__ = ["Cut", "Mesh", "Way", "lost", "moods"]

Way = tuple[int, int]
"""From whom to whom, by the numbers of nodes."""
Cut = str
"""From whom a broker is cut off (`followers`, `controller`, `both`), with `-out` or `-in` where that befalls one
direction only."""


def lost(number: int, peers: Collection[int], controller: int, how: Cut) -> frozenset[Way]:
    """From whom to whom no byte arrives while the broker *number* is cut off."""
    whom, _, direction = how.partition("-")
    others = {"followers": [*peers], "controller": [controller], "both": [*peers, controller]}[whom]
    out, back = [(number, other) for other in others], [(other, number) for other in others]
    return frozenset({"": [*out, *back], "out": out, "in": back}[direction])


def moods(ways: Iterable[Way], silent: Collection[Way]) -> dict[Way, Mood]:
    """How the link of each of *ways*, who connects to whom, must behave for no byte to go the ways of *silent*."""
    return {(who, whom): Mood(silent_up=(who, whom) in silent, silent_down=(whom, who) in silent) for who, whom in ways}


class Mesh:
    """Links from each of *brokers* to each other one and to the controller.

    Kafka knows one address of a node per listener, so every broker has a listener of its own on each other node: that
    tells who connects.
    """

    def __init__(self, brokers: Sequence[int], controller: int) -> None:
        self._brokers, self._controller = tuple(brokers), controller
        self._links: dict[Way, Link] = {}
        self._own: dict[int, int] = {}

    async def open(self, free_port: Callable[[], int]) -> None:
        """Listen, before there is anybody to lead to; nodes listen on ports of *free_port*."""
        for who in self._brokers:
            self._own[who] = free_port()
            for whom in (*self._brokers, self._controller):
                if who != whom:
                    self._links[who, whom] = link = Link(free_port())
                    await link.open()

    async def close(self) -> None:
        """Stop listening; after the brokers have stopped, for they take their leave of the controller."""
        for link in self._links.values():
            await link.close()

    def cut(self, number: int, how: Cut) -> None:
        """From now on the broker *number* is cut off; clients do not go this way."""
        peers = [each for each in self._brokers if each != number]
        for way, mood in moods(self._of(number), lost(number, peers, self._controller, how)).items():
            self._links[way].behave(mood)

    def mend(self, number: int) -> None:
        """The links of and to the broker *number* are sound."""
        for way in self._of(number):
            self._links[way].behave(Mood())

    def calm(self) -> None:
        """All links are sound."""
        for link in self._links.values():
            link.behave(Mood())

    def told(self, number: int, properties: Mapping[str, str]) -> dict[str, str]:
        """What the node *number* is told, with these links in it."""
        return dict(properties) | (
            self._controller_told(properties) if number == self._controller else self._broker_told(number, properties)
        )

    def _of(self, number: int) -> list[Way]:
        return [way for way in self._links if number in way]

    def _controller_told(self, properties: Mapping[str, str]) -> dict[str, str]:
        links = {f"FROM{who}": self._links[who, self._controller] for who in self._brokers}
        return {
            "listeners": _more(properties["listeners"], {name: link.target for name, link in links.items()}),
            "advertised.listeners": _more(properties["listeners"], {name: link.port for name, link in links.items()}),
            "controller.listener.names": ",".join([properties["controller.listener.names"], *links]),
            "listener.security.protocol.map": _plain(properties, links),
        }

    def _broker_told(self, number: int, properties: Mapping[str, str]) -> dict[str, str]:
        others = {f"BY{who}": self._links[who, number] for who in self._brokers if who != number}
        # A broker must have the listener by which it looks for others; nobody comes to its own.
        own, asks = f"BY{number}", f"FROM{number}"
        return {
            "listeners": _more(
                properties["listeners"], {own: self._own[number]} | {name: link.target for name, link in others.items()}
            ),
            "advertised.listeners": _more(
                properties["advertised.listeners"],
                {own: self._own[number]} | {name: link.port for name, link in others.items()},
            ),
            "inter.broker.listener.name": own,
            "controller.listener.names": asks,
            "controller.quorum.voters": f"{self._controller}@127.0.0.1:{self._links[number, self._controller].port}",
            "listener.security.protocol.map": _plain(properties, [own, asks, *others]),
        }


def _more(listeners: str, ports: Mapping[str, int]) -> str:
    return ",".join([listeners, *(f"{name}://127.0.0.1:{port}" for name, port in ports.items())])


def _plain(properties: Mapping[str, str], names: Iterable[str]) -> str:
    return ",".join([properties["listener.security.protocol.map"], *(f"{name}:PLAINTEXT" for name in names)])
