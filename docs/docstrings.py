"""A Griffe extension that converts docstrings from reStructuredText to Markdown.

It supports the markup that this project uses: roles (``:meth:`park```), literal blocks (``::``), simple tables, and
underlined titles.  A method that overrides another one only to refine its types inherits that method's docstring.

Sentences that describe a parameter (````timeout``: seconds.``) move into fields, which the site shows as a table.  For
the parameters that a method in ``SAME`` does not describe itself, it shows the descriptions of another method.
"""

import contextlib
import re
import textwrap
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|meth|func|mod|data|attr):`(?P<short>~?)(?P<target>[\w.]+)`")
_RULE = re.compile(r"^=+(?: +=+)+$")
_ENTRY = re.compile(r"(?:^|(?<=[.;:]) +(?:or )?)(?P<names>``\w+``(?:, ``\w+``)*): ")

_OTHER = re.compile(r"(?<=\.) +(?=(?:Also raises|For the other errors|Raises|Returns?) )")  # not about a parameter

SAME = {  # each of these has the parameters of the other one
    "aio.purgatory.Purgatory": "aio.system_timer.SystemTimer",
    "aio.purgatory.Purgatory.wait_value": "aio.purgatory.Purgatory.wait_until",
    "aio.purgatory.Purgatory.acancel_for_key": "core.purgatory.BasePurgatory.cancel_for_key",
    "aio.purgatory.Purgatory.afail_for_key": "core.purgatory.BasePurgatory.fail_for_key",
    "aio.purgatory.Purgatory.check_soon": "core.purgatory.BasePurgatory.check_and_complete",
    "aio.purgatory.Purgatory.check_threadsafe": "core.purgatory.BasePurgatory.check_and_complete",
    "aio.threshold_purgatory.ThresholdPurgatory": "aio.purgatory.Purgatory",
    "aio.threshold_purgatory.ThresholdPurgatory.aclose": "aio.purgatory.Purgatory.aclose",
    "aio.default_purgatory.when_all": "aio.purgatory.Purgatory.when_all",
    "asgi.errors.install_errors": "asgi.errors.PurgatoryErrorMiddleware",
    "asgi.errors.error_response": "asgi.errors.PurgatoryErrorMiddleware",
    "asgi.wait.Wait.changed": "asgi.wait.Wait.until",
    "asgi.wait.Wait.park": "aio.purgatory.Purgatory.park",
    "asgi.wait.Wait.until": "aio.purgatory.Purgatory.wait_until",
    "asgi.wait.Wait.value": "asgi.wait.Wait.until",
    "core.purgatory.BasePurgatory.check": "core.purgatory.BasePurgatory.check_and_complete",
    "core.operation.delayed_operation.DelayedOperation.extend": "core.operation.delayed_operation.DelayedOperation",
    "locks.keyed.KeyedSemaphore": "locks.keyed.KeyedLock",
    "relay.notifier.Notifier.check": "relay.relay.Relay.check",
    "relay.notifier.Notifier.check_in": "relay.relay.Relay.check_in",
    "relay.relay.Relay.check_threadsafe": "relay.relay.Relay.check",
    "relay.relay.Relay.park": "aio.purgatory.Purgatory.park",
    "relay.relay.Relay.wait_until": "aio.purgatory.Purgatory.wait_until",
    "relay.relay.Relay.wait_value": "aio.purgatory.Purgatory.wait_value",
}


class InMarkdown(griffe.Extension):
    """Convert each docstring after Griffe has loaded the package."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Convert all docstrings in the package."""
        for name in SAME:
            pkg[name]  # raises KeyError if the package does not contain the name
        self._visit(pkg, pkg)

    def _visit(self, thing: griffe.Object, package: griffe.Module) -> None:
        if isinstance(thing, griffe.Function):
            for parameter in thing.parameters:
                if str(parameter.default) == "MISSING":
                    parameter.default = "..."
        if thing.docstring is not None:
            fields = [
                f":param {name}: {in_markdown(description, thing, package)}"
                for name, description in described_parameters(thing, package).items()
            ]
            text = in_markdown(parameters_last(thing.docstring.value, thing)[0], thing, package)
            thing.docstring.value = "\n".join([text, "", *fields]) if fields else text
        for member in list(thing.members.values()):
            if isinstance(member, griffe.Alias):
                continue
            if member.docstring is None and isinstance(thing, griffe.Class):
                member.docstring = _inherited(thing, member.name)
                if member.docstring is not None:
                    continue  # it is converted in the class that defines the member
            self._visit(member, package)


def parameters_of(thing: griffe.Object) -> list[str]:
    """Return the names of the parameters of a function or of the constructor of a class."""
    if not isinstance(thing, griffe.Function | griffe.Class):
        return []
    return [parameter.name for parameter in thing.parameters if parameter.name not in {"self", "cls"}]


def parameters_last(text: str, thing: griffe.Object) -> tuple[str, dict[str, str]]:
    """Split a docstring into the text without the sentences about parameters, and those sentences, by parameter."""
    known = parameters_of(thing)
    found: dict[str, str] = {}
    kept: list[str] = []
    for paragraph in re.split(r"\n\s*\n", textwrap.dedent(text)):
        if not known or paragraph.startswith((" ", "=")) or paragraph.rstrip().endswith("::"):
            kept.append(paragraph)
            continue
        joined = re.sub(r"\s*\n\s*", " ", paragraph)
        entries = [entry for entry in _ENTRY.finditer(joined) if set(re.findall(r"\w+", entry["names"])) <= set(known)]
        if not entries:
            kept.append(paragraph)
            continue
        if before := joined[: entries[0].start()].strip():
            kept.append(before)
        ends = [*(entry.start() for entry in entries[1:]), len(joined)]
        for entry, end in zip(entries, ends, strict=True):
            description, *others = _OTHER.split(joined[entry.end() : end].strip(" ;"), maxsplit=1)
            kept += others
            for name in re.findall(r"\w+", entry["names"]):
                found[name] = description[:1].upper() + description[1:] + "." * (description[-1:] not in ".:;")
    return "\n\n".join(kept), found


def described_parameters(thing: griffe.Object, package: griffe.Module) -> dict[str, str]:
    """Return the descriptions of the parameters, from the docstring or through ``SAME``, in signature order."""
    found: dict[str, str] = {}
    source: griffe.Object | None = thing
    while source is not None:
        if source.docstring is not None:
            original = source.extra["purgatory"].setdefault("docstring", source.docstring.value)
            found = parameters_last(original, source)[1] | found
        same = SAME.get(source.path.removeprefix(f"{package.name}."))
        source = None if same is None else package[same]
    return {name: found[name] for name in parameters_of(thing) if name in found}


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
