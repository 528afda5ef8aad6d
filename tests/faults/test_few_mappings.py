"""Goal: 20,000 active queues lose nothing in a process that may have few mappings and descriptors,
and neither does the process that opens the store after it was killed.
Method: a child puts to all queues in turn, flushes, puts again and is killed. Its limits are those
of a small container: RLIMIT_NOFILE, and a bound of mappings from an Env, or an mmap that fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pyrocketstore

QUEUES = 20_000
#: Descriptors of the child: the interpreter, the files of an idle store, and a few more.
DESCRIPTORS = 40

CHILD = """
import errno, os, resource, signal, sys
import pyrocketstore
from pyrocketstore.system.env import Env
from support.broken_env import broken

path, kind, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
env = Env()
if kind == "bound":
    env.max_map_count = lambda: 4000
mapped = [0]

def few(original, fd, *rest):
    mapped[0] += fd >= 0
    return -errno.ENOMEM if mapped[0] > 3000 and fd >= 0 else original(fd, *rest)

resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[4]),) * 2)
with broken(env, "mmap", few if kind == "refused" else lambda original, *rest: original(*rest)):
    store = pyrocketstore.open(path, env=env, message_index_enable=False,
                               mapped_file_size_consume_queue=2000,
                               mapped_file_size_commit_log=1 << 26)
    ids = list(range(count))
    for number in range(3):
        store.put_many("t", [b"%d" % number] * count, queue_ids=ids)
        store.wait_dispatched()
        if number == 1:
            store.flush()
    with open("/proc/self/maps") as maps:
        print(sum(f"{path}/consumequeue/" in line for line in maps), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["bound", "refused"])
def test_many_queues_need_few_mappings_and_descriptors(tmp_path: Path, kind: str) -> None:
    tests = Path(__file__).parent.parent
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), kind, str(QUEUES), str(DESCRIPTORS)],
        cwd=tests, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert child.returncode == -9, child.stderr
    assert 1000 < int(child.stdout) <= 3000
    with pyrocketstore.open(tmp_path, message_index_enable=False) as store:
        assert all(store.max_offset("t", queue) == 3 for queue in range(QUEUES))
        for queue in range(0, QUEUES, 997):
            assert [m.body for m in store.read("t", queue)] == [b"0", b"1", b"2"]
        store.put_many("t", [b"3"] * QUEUES, queue_ids=list(range(QUEUES)))
    with pyrocketstore.open(tmp_path, message_index_enable=False, read_only=True) as store:
        assert all(store.max_offset("t", queue) == 4 for queue in range(QUEUES))
