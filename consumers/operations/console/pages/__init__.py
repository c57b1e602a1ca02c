"""Pages of the console: the content of each one, from the model, the log and the audit.

Each module has the routes of one group of pages and the choice of their facts. Templates escape; untrusted text never
becomes markup, a link or part of a path.
"""

from __future__ import annotations

from typing import Any, Final

from consumers.operations.console.pages.agents import AGENTS_ROUTES
from consumers.operations.console.pages.approvals import APPROVALS_ROUTES
from consumers.operations.console.pages.audit import AUDIT_ROUTES
from consumers.operations.console.pages.conversations import CONVERSATIONS_ROUTES
from consumers.operations.console.pages.costs import COSTS_ROUTES
from consumers.operations.console.pages.frame import COOKIE
from consumers.operations.console.pages.groups import GROUPS_ROUTES
from consumers.operations.console.pages.letters import LETTERS_ROUTES
from consumers.operations.console.pages.overview import OVERVIEW_ROUTES
from consumers.operations.console.pages.processes import PROCESSES_ROUTES
from consumers.operations.console.pages.sessions import SESSIONS_ROUTES
from consumers.operations.console.pages.tail import TAIL_ROUTES

__all__ = ["COOKIE", "ROUTES"]

ROUTES: Final[tuple[Any, ...]] = (
    *OVERVIEW_ROUTES,
    *SESSIONS_ROUTES,
    *LETTERS_ROUTES,
    *CONVERSATIONS_ROUTES,
    *GROUPS_ROUTES,
    *AGENTS_ROUTES,
    *PROCESSES_ROUTES,
    *APPROVALS_ROUTES,
    *AUDIT_ROUTES,
    *COSTS_ROUTES,
    *TAIL_ROUTES,
)
