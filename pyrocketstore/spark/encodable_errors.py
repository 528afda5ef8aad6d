"""The border to Spark: every text that crosses it can be encoded.

File names are bytes. Python represents bytes that are not UTF-8 as lone surrogates, which no
encoding accepts. PySpark encodes the text of an exception after it has announced that text, so that
an exception whose text cannot be encoded would block the JVM forever.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

from pyrocketstore.arguments.scalars import is_encodable
from pyrocketstore.errors import StoreError, StoreFormatError

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)

#: Spark's variable: a worker then sends an error without its traceback.
_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"


def encodable(text: str) -> str:
    r"""Return a text with each lone surrogate written as its escape.

    A byte of a path that is not UTF-8 is the surrogate U+DCXX: the byte FF is shown as `\udcff`, as
    error texts show it.
    """
    return text.encode("utf-8", "backslashreplace").decode()


def guarded(function: _Function) -> _Function:
    """Decorate a function that Spark calls, so that the exceptions it raises can be encoded.

    An exception whose whole traceback can be encoded is raised unchanged. Any other exception
    becomes a StoreError with its text. A generator that the function returns is guarded too.
    """

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        with _raising_encodable():
            result = function(*args, **keywords)
        return _guarded_items(result) if isinstance(result, types.GeneratorType) else result

    call.__dict__["is_guarded"] = True
    return cast(_Function, call)


def guarded_class(cls: _Class) -> _Class:
    """Decorate a class whose public methods Spark calls, so that each of them is guarded."""
    for name in dir(cls):
        found = getattr(cls, name)
        is_called = not name.startswith("_") or name == "__getstate__"
        if is_called and isinstance(found, types.FunctionType) and not _is_of_spark(found):
            setattr(cls, name, guarded(found))
    return cls


def _is_of_spark(function: types.FunctionType) -> bool:
    return function.__module__.startswith("pyspark.")


def _guarded_items(items: Iterator[Any]) -> Iterator[Any]:
    with _raising_encodable():
        yield from items


@contextlib.contextmanager
def _raising_encodable() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        passed = _passable(error)
        if passed is error:
            raise
        raise passed from None


def _passable(error: Exception) -> Exception:
    """Return the exception itself, or a StoreError with its text that can be encoded."""
    if isinstance(error, StoreFormatError):
        _hide_traceback()
    if is_encodable("".join(traceback.format_exception(error))):
        return error
    text = "".join(traceback.format_exception_only(error)).strip()
    return StoreError(encodable(text)).with_traceback(error.__traceback__)


def _hide_traceback() -> None:
    """Make a worker of Spark send this error without a traceback: an argument is wrong, and the
    place in the code adds nothing. The worker ends after it has sent an error."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name.startswith("pyspark."):
        os.environ[_HIDE_TRACEBACK] = "1"
