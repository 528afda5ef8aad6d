"""Goal: the command says what is not installed, and an early Ctrl-C has the exit code 130.
Method: `main` with modules that cannot be found, and with an import that is interrupted."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec

import pytest

from pyrocketstore.__main__ import main


def hide(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    find_spec = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name in names else find_spec(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)


@pytest.mark.parametrize("names", [("click",), ("rich",), ("click", "rich")])
def test_missing_packages_are_named(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hide(monkeypatch, *names)
    assert main() == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "pyrocketstore: the command line needs: pip install 'pyrocketstore[cli]'"
        f" (missing: {', '.join(names)})\n"
    )


def test_an_interrupt_of_the_imports_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "pyrocketstore.cli.app", Interrupted())  # type: ignore[misc]
    assert main() == 130


def test_the_command_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pyrocketstore", "no-such-command"])
    with pytest.raises(SystemExit, match=r"^2$"):
        main()
    assert "no-such-command" in capsys.readouterr().err
