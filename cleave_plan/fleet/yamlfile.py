"""YAML as plain data: mappings, lists, text and None, and nothing that could surprise or attack.

Scalars stay text (``13 ms``, ``2023-09``, ``no``): whoever reads a figure knows what it should be. Refused with the
line they stand on: duplicate keys, aliases and anchors (the way to make a small file expand to gigabytes), tags (the way
to name Python objects), several documents, deep nesting. The C parser is used where PyYAML has it; both build nothing
but events, and the values are put together here, without recursion.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

from cleave_plan.errors import InputFileError

Value = dict[str, Any] | list[Any] | str | None
"""What a YAML node becomes; the items of mappings and lists are values again."""

DEEPEST = 20
_NULLS = ("", "~", "null")
_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


@dataclass(slots=True)
class _Open:
    """A mapping or list whose end has not come yet, and the key that waits for its value."""

    value: dict[str, Any] | list[Any]
    key: str | None = None


@dataclass(slots=True)
class _Builder:
    """Puts values together from parser events."""

    where: str
    stack: list[_Open] = field(default_factory=list)
    root: Value = None
    documents: int = 0

    def take(self, event: Any) -> None:
        """Handle one event; raises InputFileError for what is refused."""
        if isinstance(event, yaml.ScalarEvent):
            self._check(event)
            plain = not event.style  # '' from the C parser, None from the Python one
            self._place(None if plain and event.value in _NULLS else event.value, event)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._check(event)
            self._open({} if isinstance(event, yaml.MappingStartEvent) else [], event)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self.stack.pop()
        elif isinstance(event, yaml.AliasEvent):
            raise self.refused("an alias (*name)", event, "write the values out, or use count: or table: for many devices")
        elif isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                raise self.refused("a second document (---)", event, "keep one document per file")

    def refused(self, what: str, event: Any, remedy: str) -> InputFileError:
        """The error for ``what`` at the place where ``event`` starts."""
        mark = event.start_mark
        return InputFileError(
            f"{what} is not accepted", where=f"{self.where}, line {mark.line + 1}, column {mark.column + 1}", remedy=remedy
        )

    def _check(self, event: Any) -> None:
        if event.anchor is not None:
            raise self.refused(f"an anchor (&{event.anchor})", event, "write the values out")
        if event.tag is not None and event.tag != "!":
            raise self.refused(f"the tag {event.tag}", event, "remove it: plain YAML is enough")

    def _open(self, value: dict[str, Any] | list[Any], event: Any) -> None:
        if len(self.stack) >= DEEPEST:
            raise self.refused(f"nesting deeper than {DEEPEST} levels", event, "flatten the file")
        self._place(value, event)
        self.stack.append(_Open(value))

    def _place(self, value: Value, event: Any) -> None:
        """Put a value where it belongs: the root, a list, or a mapping's next key or value."""
        if not self.stack:
            self.root = value
            return
        top = self.stack[-1]
        if isinstance(top.value, list):
            top.value.append(value)
        elif top.key is not None:
            top.value[top.key] = value
            top.key = None
        elif not isinstance(event, yaml.ScalarEvent):
            raise self.refused("a list or mapping as a key", event, "use a name as the key")
        elif event.value in top.value:
            raise self.refused(f"a second {event.value!r} in one mapping", event, "keep one of the two")
        else:
            top.key = event.value


def parse_yaml(text: str, where: str) -> Value:
    """The one document in ``text`` as plain data (None when it is empty); ``where`` names the file in errors.

    Raises InputFileError, with line and column, for text that is not YAML and for everything refused above.
    """
    builder = _Builder(where)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.take(event)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{where}, line {mark.line + 1}, column {mark.column + 1}" if mark else where
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be parsed"
        raise InputFileError(f"not YAML: {problem}", where=place, expected="a YAML file", remedy="correct that line") from error
    return builder.root
