"""Fill in a template: `{{name}}` by a value, and lines between `%% if` and `%% end` only where they apply."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from typing import Final

__all__ = ["filled_in"]

_DIRECTIVE: Final = re.compile(r"%% (if|else|end)\b ?(.*)\Z")
_VALUE: Final = re.compile(r"\{\{([a-z_]+)\}\}")


def filled_in(template: str, features: Set[str], values: Mapping[str, str]) -> str:
    """Return *template* with *values*, and the parts for *features*.

        %% if web and not llm
        %% else
        %% end

    A condition has `or` between parts of `and`, and `not` before a feature. Raises ValueError for an unbalanced
    template, KeyError for an unknown value.
    """
    lines, shown = [], [True]
    for line in template.splitlines():
        found = _DIRECTIVE.match(line)
        if found is None:
            if all(shown):
                lines.append(line)
        elif found[1] == "if":
            shown.append(_applies(found[2], features))
        elif len(shown) == 1:
            raise ValueError(f"%% {found[1]} without %% if")
        elif found[1] == "else":
            shown[-1] = not shown[-1]
        else:
            shown.pop()
    if len(shown) > 1:
        raise ValueError("%% if without %% end")
    return _VALUE.sub(lambda value: values[value[1]], "\n".join(lines) + "\n")


def _applies(condition: str, features: Set[str]) -> bool:
    return any(
        all(
            (word.removeprefix("not ") in features) is not word.startswith("not ")
            for word in alternative.split(" and ")
        )
        for alternative in condition.split(" or ")
    )
