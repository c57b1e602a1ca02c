"""Types beside their published schemas, and recorded messages beside the types, as findings of `sealbus check`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import date
from pathlib import Path

from bus.errors import ContractError
from bus.payloads.payload_types import PayloadType
from bus.protocol.sealing import Message
from bus.schemas.review import TypeReview, review_types
from bus.schemas.schema_folder import SchemaFolder
from consumers.delivery.declaration import HandlerDeclaration
from consumers.delivery.receiving.subscription_checks import check_message
from consumers.operations.checks.findings import CheckFinding

__all__ = ["RecordedChecks", "schema_findings"]


def schema_findings(
    kinds: Collection[PayloadType], folder: Path, *, today: date, accept_new_values: bool
) -> Iterator[CheckFinding]:
    """Yield what is wrong with *kinds* beside the schemas in *folder*; without the folder that nothing was compared."""
    if not folder.is_dir():
        if kinds:
            yield CheckFinding(
                area="types",
                check="not-published",
                level="note",
                location=str(folder),
                what="the types were not compared with published schemas: the folder does not exist",
                fix=f"`sealbus type export {folder}` writes it, once for each release",
            )
        return
    for review in review_types(kinds, SchemaFolder(folder), today=today, reviewed=accept_new_values):
        yield from _of_review(review, folder)


def _of_review(review: TypeReview, folder: Path) -> Iterator[CheckFinding]:
    versions = f"{review.published or '-'} -> {review.version}"
    if review.verdict == "new":
        yield CheckFinding(
            area="types",
            check="not-published",
            level="note",
            location=review.type,
            what=f"version {review.version} is not published yet",
            fix=f"`sealbus type export {folder}` before the release",
        )
    elif review.verdict in ("broken", "review"):
        changes = "; ".join(f"{each.kind} {each.pointer or '/'} ({each.bump})" for each in review.changes)
        yield CheckFinding(
            area="types",
            check="new-value" if review.verdict == "review" else "schema-change",
            level="error",
            location=review.type,
            what=f"{versions}: {review.reason}",
            why=changes,
            fix="--accept-new-values WHY, when you have looked at the readers"
            if review.verdict == "review"
            else next((each.advice for each in review.changes if each.advice), "give the type the version it requires"),
        )
    else:
        if review.reason.startswith("but"):
            yield CheckFinding(
                area="types",
                check="no-upcaster",
                level="warning",
                location=review.type,
                what=f"{versions}: {review.reason.removeprefix('but ')}",
                fix="add an upcaster: `sealbus type upcaster` writes one from a dead letter",
            )
        for change in review.changes:
            if change.advice:
                yield CheckFinding(
                    area="types",
                    check="advice",
                    level="note",
                    location=f"{review.type}{change.pointer}",
                    what=f"{change.kind} ({change.bump})",
                    fix=change.advice,
                )


class RecordedChecks:
    """Counts the recorded messages that the types of today, and what *subscriptions* require, would refuse."""

    def __init__(self, kinds: Iterable[PayloadType], subscriptions: Mapping[str, HandlerDeclaration]) -> None:
        self._kinds = {kind.name: kind for kind in kinds}
        self._subscriptions = subscriptions
        self._refused: Counter[tuple[str, str, str, str]] = Counter()
        self._first: dict[tuple[str, str, str, str], str] = {}

    def look(self, message: Message, location: str) -> None:
        """Judge *message*, which is at *location*."""
        kind = self._kinds.get(message.message_type)
        if kind is None:
            return
        try:
            payload = kind.open(message)
            if (subscription := self._subscriptions.get(kind.name)) is not None:
                check_message(subscription, payload, message)
        except ContractError as error:
            key = (kind.name, message.metadata.schema_version, error.reason, error.pointer)
            self._refused[key] += 1
            self._first.setdefault(key, location)

    def findings(self) -> Iterator[CheckFinding]:
        """Yield one finding per type, version, reason and field, the most frequent first."""
        for key, count in self._refused.most_common():
            name, version, reason, pointer = key
            yield CheckFinding(
                area="types",
                check="recorded-refused",
                level="error",
                location=f"{name}{pointer}",
                what=f"{count} recorded messages of version {version} would be refused: {reason}",
                why=f"the first is at {self._first[key]}",
                fix="give the type a new major version with an upcaster",
            )
