"""Paths and URIs."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from purgatory.pipeline.locations import (
    file_at,
    is_local_mode,
    is_uri,
    listed_file_to_read,
    local_path,
    location_for_spark,
    location_to_read,
)


@pytest.mark.parametrize(
    "uri", ["s3a://b", "s3a://b/dir", "hdfs:///data", "hdfs://host:8020/data", "gs://b/d", "dbfs:/d"]
)
def test_a_uri_is_passed_on_unchanged(uri: str) -> None:
    """A URI of a store is no path, and keeps its slashes."""
    assert is_uri(uri)
    assert location_for_spark(uri) == uri
    assert file_at(f"{uri}/", "index.html") == f"{uri}/index.html"


@pytest.mark.parametrize("path", ["data", "/data/a b", "./data", "/C:/data", "./day/a:b", "day=1/a%20b"])
def test_a_plain_path_stays_a_path(path: str) -> None:
    """A colon after a slash and a percent sign do not make a URI."""
    assert local_path(path) == local_path(Path(path)) == Path(path)
    assert location_for_spark(path) == path
    assert file_at(path, "index.html") == Path(path) / "index.html"


@pytest.mark.parametrize("path", ["C:/data", r"C:\data", "a:b", "./a:b", "s3:x/y"])
def test_a_relative_path_that_begins_like_a_uri_is_made_absolute(path: str) -> None:
    """A drive and a colon without a slash do not make a URI, but pyarrow and Hadoop would take them for one."""
    assert local_path(path) == local_path(Path(path)) == Path(path).absolute()
    assert location_for_spark(path) == location_for_spark(Path(path)) == str(Path(path).absolute())
    assert file_at(path, "index.html") == Path(path).absolute() / "index.html"


def test_a_file_uri_is_a_path_of_this_machine() -> None:
    """It is decoded once, for Python and for Spark; a host, which is usually a missing slash, is an error."""
    for uri in ("file:///data/a%20b", "file:/data/a%20b", "file://localhost/data/a%20b", "FILE:///data/a%20b"):
        assert local_path(uri) == Path("/data/a b")
        assert location_for_spark(uri) == "file:///data/a b"
        assert file_at(uri, "x") == Path("/data/a b/x")
    with pytest.raises(ValueError, match="a file URI must begin with file:///, got file://data/a"):
        local_path("file://data/a")


@pytest.mark.skipif(sys.platform == "win32", reason="there, two slashes begin the name of a host")
@pytest.mark.parametrize("location", ["//data/a b", Path("//data/a b"), "file:////data/a%20b"])
def test_two_slashes_begin_no_host(location: str | Path) -> None:
    """Spark would take a name after two slashes for a host."""
    assert str(local_path(location)) == "/data/a b"
    assert location_for_spark(location).removeprefix("file://") == "/data/a b"
    assert str(local_path("//")) == "/"


@pytest.mark.parametrize("to_location", [str, Path, lambda path: Path(path).as_uri()], ids=["str", "Path", "URI"])
def test_a_path_to_read_is_no_pattern(to_location: Callable[[str], str | Path]) -> None:
    """Its special characters are escaped, for each path that Spark reads; a URI may be a pattern of the user's."""
    scheme = "file://" if "file:" in str(to_location("/a")) else ""
    for special in "[]{}*?\\":
        assert location_to_read(to_location(f"/data/a b,1{special}")) == f"{scheme}/data/a b,1\\{special}"
    assert location_to_read(to_location("/data/[1]/{a,b}")) == f"{scheme}/data/\\[1\\]/\\{{a,b\\}}"
    assert location_to_read("s3a://b/2026-*") == "s3a://b/2026-*"


def test_masters_of_this_machine() -> None:
    """A local cluster has processes of its own."""
    assert all(is_local_mode(master) for master in (None, "local", "local[2]", "local[*]"))
    assert not any(is_local_mode(master) for master in ("local-cluster[2,1,1024]", "yarn", "spark://h:1", ""))


def test_a_listed_file_is_decoded_and_is_no_pattern() -> None:
    """Spark encodes the files that it lists."""
    assert listed_file_to_read("s3a://b/a%20b/%5Bx%5D/c*.parquet") == r"s3a://b/a b/\[x\]/c\*.parquet"
