"""What ``dir()`` shows of the package and of its classes: public names only."""

import importlib.util
import subprocess
import sys

import pytest

import purgatory
from purgatory import DelayedOperation, Purgatory, SystemTimer, TimerTask, relay

# Each is documented; what else the classes have begins with an underscore.
TIMER = {
    "aclose",
    "add",
    "advance_clock",
    "call_later",
    "cascades",
    "clock",
    "closed",
    "expire_due",
    "fail_after",
    "next_expiration_ms",
    "running",
    "size",
    "start",
    "time",
    "timeout",
    "timeout_at",
    "turn_budget_ms",
    "wheel",
}

CLIENTS = {"NatsTransport": "nats", "PostgresTransport": "psycopg", "RedisTransport": "redis"}
WITHOUT_CLIENT = {name for name, client in CLIENTS.items() if importlib.util.find_spec(client) is None}


def public(thing: object) -> set[str]:
    """Return the names that ``dir()`` shows, without those that begin with an underscore."""
    return {name for name in dir(thing) if not name.startswith("_")}


def test_the_package_shows_its_names() -> None:
    """``dir(purgatory)`` shows ``__all__`` and no helper or submodule, also in a fresh interpreter."""
    assert public(purgatory) == set(purgatory.__all__)
    assert "__version__" in dir(purgatory)
    code = "import purgatory; print(*(name for name in dir(purgatory) if name[0] != '_'))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert set(shown.split()) == set(purgatory.__all__)


@pytest.mark.parametrize("name", ["asgi", "conditions", "journal", "locks", "otel", "relay", "testing", "types"])
def test_a_public_module_shows_its_names(name: str) -> None:
    """``dir()`` shows ``__all__``, and neither what the module imports nor its submodules; each name can be read."""
    pytest.importorskip(f"purgatory.{name}", exc_type=ImportError)
    code = (
        f"import purgatory.{name} as module; import purgatory.asgi.wait, purgatory.relay.codec;"
        "print(*(name for name in dir(module) if getattr(module, name) and name[0] != '_'));"
        "print(*module.__all__); print('__doc__' in dir(module))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    names, public_names, has_doc = shown.splitlines()
    assert sorted(names.split()) == sorted(set(public_names.split()) - WITHOUT_CLIENT)
    assert has_doc == "True"


def test_a_transport_without_its_client_library_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """``help()`` reads every name that ``dir()`` shows, and that one would raise ImportError."""
    monkeypatch.setitem(sys.modules, "nats", None)
    assert public(relay) == set(relay.__all__) - {"NatsTransport"} - WITHOUT_CLIENT


def test_the_timer_shows_its_names() -> None:
    """The attributes that the core and the reaper share are private."""
    assert public(SystemTimer()) == TIMER


@pytest.mark.skipif(purgatory.COMPILED, reason="compiled methods have no docstrings")
def test_every_shown_attribute_has_a_docstring() -> None:
    """A public method or property of these classes says what it is."""
    for kind in (Purgatory, SystemTimer, DelayedOperation, TimerTask):
        plain = {"clock", "closed", "delay_ms"}  # plain attributes, which the docstring of the class describes
        missing = [name for name in public(kind) - plain if not getattr(kind, name).__doc__]
        assert not missing, f"{kind.__name__}: {missing}"
