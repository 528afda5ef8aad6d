"""Goal: a store that is closed while the interpreter ends is closed as well as at any other time.
Method: each scene is a script in a process of its own. CPython 3.12.1 starts no thread once the
main thread has ended; the scripts make every interpreter behave so."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from support.processes import filled, open_store, run
from support.snapshot import snapshot

pytestmark = pytest.mark.slow

KINDS = {
    "async": "",
    "sync": "flush_disk_type='SYNC_FLUSH'",
    "pool": "transient_store_pool_enable=True, transient_store_pool_size=9",
    "pwrite": "write_without_mmap=True",
    "bounded": "max_unforced_bytes=1 << 20",
}
#: More than two index files take, and more than three files of the log.
COUNT = 9000
PRELUDE = f"""
import _thread, atexit, errno
def refused(*arguments, **options):
    raise RuntimeError("can't create new thread at interpreter shutdown")
def refuse_threads():
    _thread.start_new_thread = threading._start_new_thread = refused
    threading._start_joinable_thread = refused  # CPython 3.13
def puts():
    bodies = [b"%d " % number + b"." * 300 for number in range({COUNT})]
    store.put_many("T", bodies, keys=[f"k{{number}}" for number in range({COUNT})])
"""
CLOSED_BY_HANDLER = """
def end():
    puts()
    store.close()
atexit.register(end)
store = open_store(OPTIONS)
"""
SCENES = {
    "puts": "store = open_store(); puts()",
    "puts in a handler": "atexit.register(puts); store = open_store()",
    "puts, closed by a handler": "store = open_store(); atexit.register(store.close); puts()",
    "with statement in a handler": """
        def end():
            with store:
                puts()
                store.flush()
        atexit.register(end)
        store = open_store()
        """,
    "closed again by a handler that comes last": """
        def end():
            store.close()
            assert store.closed
            try:
                store.put("T", b"x")
            except StoreStateError:
                return
            raise AssertionError
        from pyrocketstore import _close_at_exit
        atexit.unregister(_close_at_exit)
        atexit.register(end)
        atexit.register(_close_at_exit)
        store = open_store()
        puts()
        """,
    "closed by a thread that outlives main": """
        def end():
            ended.wait()
            puts()
            store.close()
        ended = threading.Event()
        threading._register_atexit(ended.set)
        store = open_store()
        threading.Thread(target=end).start()
        """,
    "beside a thread that puts": """
        def put_on():
            try:
                while True:
                    store.put("other", b"x")
            except (StoreStateError, PutError):
                pass
        store = open_store()
        threading.Thread(target=put_on, daemon=True).start()
        puts()
        """,
}


def run_to_exit(script: str, root: Path) -> None:
    """Run a script, and no thread can be started behind its last line."""
    text = PRELUDE + textwrap.dedent(script) + "\nrefuse_threads()"
    result = run(text, root, Path(__file__).parent.parent)
    assert (result.stdout, result.stderr) == ("", "")


#: Programs whose last step, behind that of the exit handlers, ends a store or has it read.
FINALIZED = {
    "a generator that is not exhausted": """
        def messages():
            with open_store(read_only=READ_ONLY) as store:
                yield from store.read("T")
        kept = messages()
        next(kept)
        """,
    "a generator with a message store": """
        def stores():
            store = open_store(read_only=READ_ONLY).message_store
            try:
                yield store
            finally:
                store.shutdown()
        kept = stores()
        next(kept)
        """,
    "a destructor": """
        class Owner:
            def __init__(self):
                self.store = open_store(read_only=READ_ONLY)
                self.cycle = self
            def __del__(self):
                try:
                    self.store.flush()
                except StoreStateError:
                    pass
                self.store.close()
        kept = Owner()
        """,
}


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("program", FINALIZED)
def test_a_store_that_the_end_of_the_interpreter_closes(
    tmp_path: Path, program: str, read_only: bool
) -> None:
    """No thread gets a turn any more, so that nobody may wait for one."""
    root = filled(tmp_path / "store")
    text = textwrap.dedent(FINALIZED[program]).replace("READ_ONLY", str(read_only))
    result = run("import warnings; warnings.simplefilter('ignore')\n" + text, root)
    assert (result.stdout, result.stderr) == ("", "")
    judge(root, 20)


def test_a_closed_store_that_outlives_the_modules_is_silent(tmp_path: Path) -> None:
    """Names of the script live on in another module, and the engine's module is cleared first."""
    script = textwrap.dedent(
        """
        import json
        import sys
        import pyrocketstore
        import pyrocketstore.message_store.default_message_store as engine

        json.of_the_script = lambda: None
        store = pyrocketstore.open(sys.argv[1])
        store.close()
        """
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert (result.stdout, result.stderr) == ("", "")


def judge(root: Path, count: int = COUNT) -> None:
    """The store was closed cleanly, and topic T has `count` messages and their keys."""
    assert not (root / "abort").exists()
    with open_store(root) as store:
        assert store.message_store.plan is not None
        assert store.message_store.plan.clean
        assert [int(m.body.split()[0]) for m in store.read("T")] == list(range(count))
        for number in (0, count // 2, count - 1):
            assert [m.queue_offset for m in store.query("T", f"k{number}")] == [number]
        assert store.verify().ok


@pytest.mark.parametrize("scene", SCENES)
def test_a_store_is_closed_cleanly_at_exit(tmp_path: Path, scene: str) -> None:
    run_to_exit(SCENES[scene], tmp_path / "store")
    judge(tmp_path / "store")


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_puts_and_closes(tmp_path: Path, kind: str) -> None:
    run_to_exit(CLOSED_BY_HANDLER.replace("OPTIONS", KINDS[kind]), tmp_path / "store")
    judge(tmp_path / "store")


def test_futures_are_done_when_a_handler_has_closed(tmp_path: Path) -> None:
    """Also where the thread that completes them gets no turn before it is asked to end."""
    run_to_exit(
        """
        from pyrocketstore import MessageExtBrokerInner
        from pyrocketstore.record._message import properties_to_string
        from pyrocketstore.flush.async_put import FlushDiskWatcher
        def wait(self, timeout_ms):
            while not self.stopped:
                time.sleep(0.001)
        def end():
            futures = []
            for number in range(20):
                message = MessageExtBrokerInner("T", b"%d" % number, 0)
                message.properties_string = properties_to_string({"KEYS": f"k{number}"})
                futures.append(store.message_store.async_put_message(message))
            store.close()
            statuses = {future.result(0).status.name for future in futures}
            assert statuses == {"PUT_OK"}, statuses
        FlushDiskWatcher.wait_for_running = wait
        atexit.register(end)
        store = open_store(flush_disk_type="SYNC_FLUSH")
        """,
        tmp_path / "store",
    )
    judge(tmp_path / "store", 20)


def test_a_write_error_at_exit_says_what_it_was(tmp_path: Path) -> None:
    """No thread can be started that would repair the queue: `abort` stays, and the next open does
    that."""
    root = tmp_path / "store"
    run_to_exit(
        """
        import logging
        def end():
            store.put("T", b"0 ", keys="k0")
            store.wait_dispatched()
            cause = StoreIOError(errno.ENOSPC, "fallocate", path)
            store.message_store.running_flags.make_logics_queue_error(cause)
            try:
                store.close()
            except StoreIOError as error:
                assert (type(error), str(error)) == (type(cause), str(cause))
            else:
                raise AssertionError("closed cleanly")
        logging.getLogger("pyrocketstore").setLevel(logging.CRITICAL)
        atexit.register(end)
        store = open_store()
        """,
        root,
    )
    assert (root / "abort").exists()
    with open_store(root):
        pass
    judge(root, 1)


def test_opening_in_a_handler(tmp_path: Path) -> None:
    """Reading needs no thread; opening for writing is refused and leaves nothing behind."""
    root = filled(tmp_path / "store")
    before = [path for path, *_ in snapshot(root)]
    run_to_exit(
        """
        def end():
            with open_store(read_only=True) as store:
                assert len(list(store.read("T"))) == 20
            try:
                open_store()
            except pyrocketstore.StoreStateError as error:
                assert "new thread at interpreter shutdown" in str(error)
            else:
                raise AssertionError("opened")
        atexit.register(end)
        """,
        root,
    )
    assert [path for path, *_ in snapshot(root)] == before
    judge(root, 20)


CLOSED = """
import atexit
def look():
    assert store.closed, store
    for call in (lambda: list(store.read("T")), lambda: store.get(0), store.flush,
                 lambda: store.query("T", "k1"), lambda: store.max_offset("T"),
                 lambda: store.put("T", b"later"), store.verify, lambda: store.topics()):
        try:
            call()
        except StoreStateError as error:
            assert "the store is closed" in str(error)
        else:
            raise AssertionError("no error")
    store.close()
    print("closed")
BEFORE
from pyrocketstore import StoreStateError, open
store = open(PATH)
store.put("T", b"1", keys="k1")
AFTER
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [("atexit.register(look)", ""), ("", "store.message_store.shutdown(); look()")],
)
def test_a_store_that_its_engine_has_closed_is_closed(
    tmp_path: Path, before: str, after: str
) -> None:
    """A handler registered before the import runs after the package's own, which closes stores."""
    code = CLOSED.replace("BEFORE", before).replace("AFTER", after)
    code = code.replace("PATH", repr(str(tmp_path / "store")))
    command = [sys.executable, "-W", "ignore::ResourceWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "closed\n", "")
