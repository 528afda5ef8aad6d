"""Goal: the messages that a recovery has copied to `.broken` are read by the steps of
docs/command.md. Method: damage the end of a log, open it for writing, run the script of the page on
the copies, and compare what the commands print with the messages that were lost."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import pyrocketstore
from pyrocketstore.cli.app import app
from support.grids import mostly_slow
from support.snapshot import snapshot

PAGE = Path(__file__).parents[2] / "docs/command.md"
LOG_SIZE, COUNT = 1 << 14, 300
SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": LOG_SIZE,
    "mapped_file_size_consume_queue": 400,
}


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def script(kept: Path, new: Path) -> str:
    """Return the script of the page with the values of one store."""
    text = PAGE.read_text(encoding="utf-8")
    (found,) = re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for name, value in {"SIZE": LOG_SIZE, "KEPT": kept, "NEW": new}.items():
        found, changed = re.subn(rf"^{name}=\S+", f"{name}={value}", found, flags=re.MULTILINE)
        assert changed == 1, name
    return str(found)


@pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")
@pytest.mark.parametrize(("number", "at"), mostly_slow([(9, 5000), (9, 100), (11, 700)]))
def test_messages_in_broken_are_read(tmp_path: Path, number: int, at: int) -> None:
    """Damage inside a file, at its begin, and in the last file."""
    root, new = tmp_path / "store", tmp_path / "new"
    with pyrocketstore.open(root, **SETTINGS) as store:
        for i in range(COUNT):
            store.put("T", b"%d " % i + bytes(500), queue_id=i % 2, keys=f"k{i}")
    with (root / f"commitlog/{number * LOG_SIZE:020d}").open("r+b") as file:
        file.seek(at)
        file.write(b"\xff")
    with pyrocketstore.open(root, **SETTINGS) as store:
        left = sum(store.max_offset("T", queue_id) for queue_id in (0, 1))
    assert left < COUNT
    (kept,) = (root / ".broken").iterdir()
    before = snapshot(root)
    done = subprocess.run(["bash", "-e"], input=script(kept, new), text=True, check=False)
    assert done.returncode == 0
    result = run("cat", str(new), "T", "--json", "--on-corrupt", "skip")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    bodies = [base64.b64decode(row["body_base64"]) for row in rows]
    assert [row["damage"] for row in rows] == ["wrong CRC"] + [None] * (COUNT - left - 1)
    assert bodies[1:] == [b"%d " % i + bytes(500) for i in range(left + 1, COUNT)]
    assert result.exit_code == 1
    assert run("query", str(new), "T", f"k{COUNT - 1}").exit_code == 0
    assert run("dump", str(new)).stdout.count('{"message"') == COUNT - left
    assert run("info", str(new)).exit_code == 0
    assert snapshot(root) == before
