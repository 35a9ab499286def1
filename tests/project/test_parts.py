"""A missing part skips a test, or fails it if all parts are required."""

import pytest

from tests.parts import REQUIRED, missing


def test_a_missing_part_skips_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variable the test is skipped, and the reason contains the missing part."""
    monkeypatch.delenv(REQUIRED, raising=False)
    with pytest.raises(pytest.skip.Exception, match="there is no mvn"):
        missing("there is no mvn")


def test_a_required_part_fails_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the variable the same test fails."""
    monkeypatch.setenv(REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception, match="there is no mvn"):
        missing("there is no mvn")
