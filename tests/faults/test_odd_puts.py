"""Goal: a put converts each value once, to its exact type, or refuses it and writes nothing. put,
put_many, put_batch and aput follow one rule. Method: odd_puts draws values of unusual types, puts
them through every method, and reads back the accepted ones.

ROCKETSTORE_SOAK_ODD=N makes N messages, with a new seed each time; ROCKETSTORE_SEED=SEED repeats.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from odd_puts import OddPuts
from pyrocketstore.commit_log import put_rules
from support import odd_values
from support.odd_values import LyingStr
from support.seed import SEED

SOAK = int(os.environ.get("ROCKETSTORE_SOAK_ODD", "0"))
MESSAGES = SOAK or 600

pytestmark = [pytest.mark.bad_input, pytest.mark.timeout(max(300, SOAK))]


@pytest.mark.parametrize("settings", [{}, {"max_unforced_bytes": 1 << 20}], ids=["free", "bounded"])
def test_odd_values(tmp_path: Path, settings: dict[str, Any]) -> None:
    puts = OddPuts(tmp_path, f"{SEED}:{len(settings)}", **settings)
    with puts.store:
        for _ in range(MESSAGES):
            puts.step()
    print(f"seed {SEED}: {puts.calls} calls, {puts.accepted} accepted")
    assert puts.accepted > MESSAGES // 2
    assert not puts.failures, "\n".join(puts.failures[:20])


@pytest.mark.parametrize("parameter", odd_values.BY_PARAMETER)
def test_each_odd_value_alone(tmp_path: Path, parameter: str) -> None:
    puts = OddPuts(tmp_path, "1")
    with puts.store:
        for odd in odd_values.BY_PARAMETER[parameter]:
            puts.draw = lambda odd=odd: {parameter: odd}  # type: ignore[method-assign,misc]
            puts.step()
    assert not puts.failures, "\n".join(puts.failures[:20])


def test_the_model_sees_a_conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the model finds a method that converts. Method: a put whose text is formatted."""
    monkeypatch.setattr(put_rules, "check_tags", lambda tags, what="tags": f"{tags}")
    puts = OddPuts(tmp_path, "1")
    with puts.store:
        made = odd_values.Odd("LyingStr", lambda: LyingStr("honest"), "honest")
        puts.draw = lambda: {"tags": made}  # type: ignore[method-assign]
        puts.step()
    assert puts.failures
