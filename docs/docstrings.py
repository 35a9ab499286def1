"""A Griffe extension that converts docstrings from reStructuredText to Markdown.

It supports the markup that this project uses: roles (``:meth:`park```), literal blocks (``::``), simple tables and
underlined titles.  A method that overrides another one only to refine its types inherits that method's docstring.
"""

import contextlib
import re
import textwrap
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|meth|func|mod|data|attr):`(?P<short>~?)(?P<target>[\w.]+)`")
_RULE = re.compile(r"^=+(?: +=+)+$")


class InMarkdown(griffe.Extension):
    """Convert each docstring after Griffe has loaded the package."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Convert all docstrings of the package."""
        self._visit(pkg, pkg)

    def _visit(self, thing: griffe.Object, package: griffe.Module) -> None:
        if thing.docstring is not None:
            thing.docstring.value = in_markdown(thing.docstring.value, thing, package)
        for member in list(thing.members.values()):
            if isinstance(member, griffe.Alias):
                continue
            if member.docstring is None and isinstance(thing, griffe.Class):
                member.docstring = _inherited(thing, member.name)
                if member.docstring is not None:
                    continue  # it is converted in the class that defines it
            self._visit(member, package)


def _inherited(owner: griffe.Class, name: str) -> griffe.Docstring | None:
    for base in owner.mro():
        found = base.members.get(name)
        if found is not None and found.docstring is not None:
            return found.docstring
    return None


def in_markdown(text: str, thing: griffe.Object, package: griffe.Module) -> str:
    """Return the object's docstring as Markdown."""
    lines = textwrap.dedent(text).splitlines()
    return "\n".join(_blocks(_ROLE.sub(lambda role: _link(role, thing, package), line) for line in _tables(lines)))


def _link(role: "re.Match[str]", thing: griffe.Object, package: griffe.Module) -> str:
    target = role["target"]
    shown = target.rpartition(".")[2] if role["short"] else target.removeprefix(f"{package.name}.")
    owner: Any = thing
    while owner is not None:
        with contextlib.suppress(KeyError, griffe.GriffeError):
            path = owner[target.removeprefix(f"{package.name}.")].canonical_path
            return f'<autoref identifier="{path}" optional><code>{shown}</code></autoref>'
        owner = owner.parent
    return f"`{shown}`"


def _blocks(lines: Any) -> list[str]:
    """Convert literal blocks to fenced blocks."""
    made: list[str] = []
    inside: list[str] | None = None
    for line in lines:
        if inside is not None and (not line.strip() or line.startswith("    ")):
            inside.append(line)
            continue
        if inside is not None:
            made += _fenced(inside)
            inside = None
        if line.rstrip().endswith("::"):
            before = line.rstrip()[:-2]
            made.append(before.rstrip() if not before.strip() or before.endswith(" ") else f"{before}:")
            inside = []
        else:
            made.append(line)
    return made if inside is None else made + _fenced(inside)


def _fenced(lines: list[str]) -> list[str]:
    code = textwrap.dedent("\n".join(lines)).strip("\n")
    return ["", "```python", *code.splitlines(), "```", ""]


def _tables(lines: list[str]) -> list[str]:
    """Convert simple tables to Markdown tables, and underlined titles to bold lines."""
    made: list[str] = []
    spans: list[tuple[int, int]] = []
    rules = 0
    for line in lines:
        if _RULE.match(line):
            rules += 1
            if not spans:
                spans = [found.span() for found in re.finditer("=+", line)]
                has_head = sum(bool(_RULE.match(other)) for other in lines) == 3
                if not has_head:
                    made += ["|" + " |" * len(spans), "|" + " --- |" * len(spans)]
            elif has_head and rules == 2:
                made.append("|" + " --- |" * len(spans))
            else:
                spans = []
        elif spans:
            starts = [start for start, _ in spans]
            cells = [line[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)]
            made.append("| " + " | ".join(cells) + " |")
        elif re.fullmatch(r"[=-]{4,}", line) and made and made[-1].strip():
            made[-1] = f"**{made[-1]}**"
            made.append("")
        else:
            made.append(line)
    return made
