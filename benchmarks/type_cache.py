"""CPython's type cache, which all threads of a process share, and how to avoid collisions in it.

A lookup of an attribute on an object asks for the name in the object's type first.  CPython keeps the answers in a
table of 4,096 slots; the version number of the type and the address of the name select the slot.  If two lookups use
the same slot, each replaces the answer of the other: a thread then searches the bases of the type and locks the slot,
and another thread that reads the slot waits.  Addresses differ from process to process, and so does the number of
collisions.  The interpreter of CPython 3.13 without the GIL uses the table for nearly every access to an attribute.
"""

import inspect
import sys
from collections.abc import Callable, Mapping
from types import MemberDescriptorType

try:
    from _testcapi import type_get_version  # type: ignore[import-not-found]  # tests of CPython, not always installed
except ImportError:
    type_get_version = None

__all__ = ["available", "names_by_type", "spread"]

_SLOTS = 4096
_MAX_VERSIONS = 500  # CPython gives a class at most 1,000


def available() -> bool:
    """Return whether this Python's table is the one that this module computes."""
    return sys.version_info[:2] == (3, 13) and type_get_version is not None


def names_by_type(step: Callable[[], object]) -> dict[type, list[str]]:
    """Return the types whose attributes a step may use, with the names of these attributes.

    The types are those of the local variables, of the receivers, and of what is in their slots; the names are
    those that the functions mention.
    """
    names: set[str] = set()
    examples: dict[type, object] = {}

    def profile(frame: object, event: str, called: object) -> None:
        if event == "c_call":
            names.add(called.__name__)  # type: ignore[attr-defined]
            found = [getattr(called, "__self__", None)]
        else:
            names.update(frame.f_code.co_names)  # type: ignore[attr-defined]
            found = list(frame.f_locals.values())  # type: ignore[attr-defined]
        for value in found:
            examples.setdefault(type(value), value)

    sys.setprofile(profile)
    try:
        step()
    finally:
        sys.setprofile(None)
    for value in list(examples.values()):
        for name in names.intersection(dir(value)):
            if isinstance(inspect.getattr_static(value, name), MemberDescriptorType):
                held = getattr(value, name, None)
                examples.setdefault(type(held), held)
    return {kind: sorted(names.intersection(dir(value))) for kind, value in examples.items()}


def _slots(kind: type, names: list[str]) -> list[int]:
    hasattr(kind, "__init__")  # a type has a version once an attribute of it has been looked up
    version = type_get_version(kind)
    return [(version ^ id(sys.intern(name)) >> 3) % _SLOTS for name in names]


def spread(found: Mapping[type, list[str]], package: str) -> None:
    """Give the classes of a package new version numbers until their lookups share no slots.

    Classes of other packages, and collisions between two names of one class, stay as they are.
    """
    ours = {kind for kind in found if kind.__module__.partition(".")[0] == package}
    used = {slot for kind in found.keys() - ours for slot in _slots(kind, found[kind])}
    for kind in sorted(ours, key=lambda kind: len(kind.__mro__)):  # a change of a class changes its subclasses
        for version in range(_MAX_VERSIONS):
            if used.isdisjoint(_slots(kind, found[kind])):
                break
            kind.__version_of_spread__ = version  # type: ignore[attr-defined]
        used.update(_slots(kind, found[kind]))
