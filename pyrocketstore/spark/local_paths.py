"""Paths of the local file system as callers spell them: plain paths and `file:` URIs."""

from __future__ import annotations

import os
import re
from pathlib import PurePath
from urllib.parse import unquote_to_bytes

from pyrocketstore.config.message_store_config import absolute_path
from pyrocketstore.errors import StoreFormatError

#: One letter before the colon is not a scheme, as in Hadoop's Path.
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/.*)", re.DOTALL)
_FILE = "file:"
_BAD_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
_LOCAL_HOSTS = ("", "localhost")


def local_path(path: str | os.PathLike[str], name: str) -> str:
    """Return a path from the file system's root on, without `..`.

    Parameters
    ----------
    path : a path, relative, absolute or with `~`; or a URI: file:/x, file:///x or
        file://localhost/x, in which %XX is one byte of the path
    name : precedes the value in an error

    A path with `..` in it is resolved as the file system does, links included; the links of any
    other path stay.

    Raises
    ------
    StoreFormatError: a URI of another scheme or machine, a file: URI without an absolute path or
    with a % that begins no escape, and any path that `absolute_path` refuses.

    Threads: any.
    """
    text = os.fsdecode(path)
    absolute_path(text, name)
    if text[: len(_FILE)].lower() != _FILE:
        if uri := _URI.fullmatch(text):
            raise StoreFormatError(
                f"{name}={text!r}: {uri[1]}: is not local; pass a path or a file: URI of the local "
                "file system, or of a mount"
            )
        return _resolved(absolute_path(os.path.expanduser(text), name))
    rest = text[len(_FILE) :]
    if rest.startswith("//"):
        host, slash, rest = rest[2:].partition("/")
        if host.lower() not in _LOCAL_HOSTS:
            raise StoreFormatError(
                f"{name}={text!r}: names the machine {host!r}; a file: URI must name this one, as "
                "file:///path"
            )
        rest = slash + rest
    if not rest.startswith("/"):
        raise StoreFormatError(
            f"{name}={text!r}: a file: URI must have an absolute path, as file:///path"
        )
    if _BAD_ESCAPE.search(rest):
        raise StoreFormatError(
            f"{name}={text!r}: a % must be followed by two hexadecimal digits in a file: URI; %25 "
            "is a percent sign"
        )
    found = os.fsdecode(unquote_to_bytes(os.fsencode(rest)))
    return _resolved(absolute_path("/" + found.lstrip("/"), name))


def _resolved(path: str) -> str:
    # Hadoop's Path and os.path.normpath drop the name before `..`, which may be a link's.
    return os.path.realpath(path) if ".." in PurePath(path).parts else path
