"""The border to Spark: every text that crosses it can be encoded.

The names of files are bytes, and Python holds those that are not UTF-8 as lone surrogates, which no
encoding takes. PySpark encodes the text of an exception after it has announced that text, so an
exception whose text cannot be encoded leaves the JVM waiting without an end.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

from pyrocketstore.errors import StoreError, StoreFormatError
from pyrocketstore.exact import is_encodable

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)

#: Spark's own name: its workers then send an error without the traceback before it.
_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"


def encodable(text: str) -> str:
    r"""Return a text with each lone surrogate written as its escape.

    A byte of a path that is not UTF-8 is the surrogate U+DCXX: the byte FF is shown as `\udcff`, as
    error texts show it.
    """
    return text.encode("utf-8", "backslashreplace").decode()


def guarded(function: _Function) -> _Function:
    """Decorate a function that Spark calls: what it raises can be encoded.

    An exception is passed on as it is where its whole traceback can be encoded. Another one becomes
    a StoreError with that text. A generator that the function returns is guarded too.
    """

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            result = function(*args, **keywords)
        except Exception as error:
            passed = _passable(error)
            if passed is error:
                raise
            raise passed from None
        return _guarded_items(result) if isinstance(result, types.GeneratorType) else result

    call.__dict__["is_guarded"] = True
    return cast(_Function, call)


def guarded_class(cls: _Class) -> _Class:
    """Decorate a class whose public methods Spark calls: each of them is guarded."""
    for name in dir(cls):
        found = getattr(cls, name)
        is_called = not name.startswith("_") or name == "__getstate__"
        if is_called and isinstance(found, types.FunctionType) and not _is_of_spark(found):
            setattr(cls, name, guarded(found))
    return cls


def _is_of_spark(function: types.FunctionType) -> bool:
    return function.__module__.startswith("pyspark.")


def _guarded_items(items: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from items
    except Exception as error:
        passed = _passable(error)
        if passed is error:
            raise
        raise passed from None


def _passable(error: Exception) -> Exception:
    """The exception itself, or one with the same text that can be encoded."""
    if isinstance(error, StoreFormatError):
        _hide_traceback()
    if is_encodable("".join(traceback.format_exception(error))):
        return error
    text = "".join(traceback.format_exception_only(error)).strip()
    return StoreError(encodable(text)).with_traceback(error.__traceback__)


def _hide_traceback() -> None:
    """Have a worker of Spark send this error alone: the caller gave something wrong, and where that
    was found says nothing more. The worker ends once it has sent an error."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name.startswith("pyspark."):
        os.environ[_HIDE_TRACEBACK] = "1"
