"""Goal: a store that is forked, opened twice, dropped, killed or interrupted loses nothing, and
blocks no other process. Method: each scene is a script in a process of its own, with its own
assertions; then the files are checked."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from pyrocketstore.errors import StoreStateError
from pyrocketstore.message_store.default_message_store import DefaultMessageStore
from support.processes import TIMEOUT_S, contents, filled, open_store, run, start
from support.snapshot import snapshot

# ---- fork ---------------------------------------------------------------------------------------


def test_after_a_fork_the_copy_is_dead(tmp_path):
    result = run(
        """
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
        from support.processes import contents
        from pathlib import Path
        store = open_store()
        other = open_store(path + "-2")
        for i in range(1500):
            store.put("T", b"%d" % i, keys=f"k{i}")
        iterator = store.read("T")
        next(iterator)
        store.flush()
        before = contents(Path(path))
        child = os.fork()
        if child == 0:
            status = 1
            try:
                all_refuse(store)
                assert "fork" in repr(store), repr(store)
                try:
                    list(iterator)
                except StoreStateError:
                    status = 0
                store.close()
                with store:
                    pass
                # One copy is collected, the other one is there when the process exits.
                del store, iterator
                gc.collect()
            finally:
                if status:
                    sys.stdout.flush()
                    os._exit(status)
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert contents(Path(path)) == before
        assert not store.closed
        store.put("T", b"after", keys="after")
        assert [m.body for m in store.query("T", "after")] == [b"after"]
        assert len(list(iterator)) == 1499
        # The lock is still ours.
        again = os.fork()
        if again == 0:
            try:
                open_store()
            except StoreStateError as error:
                os._exit(0 if "already open by another process" in str(error) else 1)
            os._exit(2)
        assert os.waitpid(again, 0)[1] == 0
        store.close()
        other.close()
        assert not os.path.exists(path + "/abort")
        print("ok")
        """,
        tmp_path / "store",
        Path(__file__).parent.parent,
    )
    assert result.stdout == "ok\n"
    assert "not closed" not in result.stderr
    with open_store(tmp_path / "store") as store:
        assert store.max_offset("T") == 1501
        assert store.verify().ok


def test_a_copy_waits_for_no_dispatch(tmp_path):
    """The child has no thread that dispatches what the parent had put."""
    result = run(
        """
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
        store = open_store()
        engine = store.message_store
        with engine.dispatch_paused():
            store.put("T", b"x")
            child = os.fork()
            if child == 0:
                refused = 0
                for call in (engine.wait_dispatched, engine.flush, engine.flush_all):
                    try:
                        call()
                    except StoreStateError:
                        refused += 1
                os._exit(0 if refused == 3 else 1)
            assert os.waitpid(child, 0)[1] == 0
        store.close()
        print("ok")
        """,
        tmp_path / "store",
        Path(__file__).parent.parent,
    )
    assert result.stdout == "ok\n"


# ---- opened twice -------------------------------------------------------------------------------


def test_a_second_open_is_refused_and_touches_nothing(tmp_path):
    root = tmp_path / "store"
    (tmp_path / "link").symlink_to(root)
    run(
        """
        from support.processes import contents
        from pathlib import Path
        store = open_store()
        for i in range(5):
            store.put("T", b"x")
        store.flush()
        before = contents(Path(path))
        link = os.path.join(os.path.dirname(path), "link")
        for target in (path, link, path + "/", path + "/../store"):
            for _ in range(2):
                try:
                    open_store(target)
                except StoreStateError as error:
                    assert "already open" in str(error), error
                else:
                    raise AssertionError(target)
        assert contents(Path(path)) == before
        store.put("T", b"continues")
        with open_store(read_only=True) as reader:
            pass
        store.put("T", b"still")
        store.close()
        with open_store(link) as store:
            assert store.max_offset("T") == 7
        """,
        root,
        Path(__file__).parent.parent,
    )


def test_another_process_is_refused_and_touches_nothing(tmp_path):
    root = tmp_path / "store"
    with open_store(root) as store:
        store.put("T", b"x")
        store.flush()
        before = contents(root)
        result = run(
            """
            for target in (path, sys.argv[2]):
                try:
                    open_store(target)
                except StoreStateError as error:
                    print(error)
            """,
            root,
            _link(tmp_path, root),
        )
        assert result.stdout.count("already open by another process") == 2
        assert contents(root) == before
        store.put("T", b"y")
        assert store.max_offset("T") == 2
    result = run("print(open_store().max_offset('T'))", root)
    assert result.stdout == "2\n"


def _link(directory: Path, target: Path) -> Path:
    link = directory / "link"
    link.symlink_to(target)
    return link


def test_refused_settings_leave_no_lock(tmp_path):
    """A store that could not be opened can be opened afterwards, by the same process."""
    root = filled(tmp_path / "store")
    run(
        """
        file = path + "/commitlog/" + "0" * 20
        size = os.path.getsize(file)
        os.truncate(file, 19980)
        try:
            open_store()
        except StoreCorruptionError as error:
            assert file in str(error)
        else:
            raise AssertionError
        os.truncate(file, size)
        with open_store() as store:
            assert store.max_offset("T") == 20
        """,
        root,
    )


# ---- forgotten ----------------------------------------------------------------------------------

FORGOTTEN = """
stores = [open_store(), open_store(path + "-2")]
for store in stores:
    for i in range(30):
        store.put("T", b"%d" % i, keys=f"k{i}")
"""


@pytest.mark.parametrize(
    ("flags", "end", "code"),
    [
        ((), "", 0),
        (("-W", "default"), "", 0),
        (("-W", "error"), "", 0),
        (("-W", "default"), "sys.exit(3)", 3),
        (("-W", "default"), "raise RuntimeError('own')", 1),
        (("-W", "default"), "del store, stores; gc.collect()", 0),
    ],
    ids=["plain", "warn", "error", "exit", "raise", "dropped"],
)
def test_a_store_never_closed_is_closed_at_exit(tmp_path, flags, end, code):
    root = tmp_path / "store"
    result = run(FORGOTTEN + end, root, flags=flags, code=code)
    # Where warnings are errors the first one ends it; both stores are closed by then.
    warned = {(): 0, ("-W", "default"): 2, ("-W", "error"): 1}[flags]
    assert result.stderr.count(": the store was not closed") == warned
    assert ("Traceback" in result.stderr) == (end.startswith("raise") or "error" in flags)
    for path in (root, tmp_path / "store-2"):
        assert not (path / "abort").exists()
        with open_store(path) as store:
            assert store.message_store.plan.clean
            assert store.max_offset("T") == 30


def test_a_read_only_store_never_closed_is_no_trouble(tmp_path):
    root = filled(tmp_path / "store")
    before = snapshot(root)
    run("store = open_store(read_only=True); next(store.read('T'))", root, flags=("-W", "error"))
    assert snapshot(root) == before


def test_threads_of_the_store_end_with_it(tmp_path):
    run(
        """
        before = threading.active_count()
        for _ in range(3):
            with open_store() as store:
                store.put("T", b"x")
                assert threading.active_count() > before
                others = set(threading.enumerate()) - {threading.main_thread()}
                assert all(thread.daemon for thread in others)
            assert threading.active_count() == before, threading.enumerate()
        """,
        tmp_path / "store",
    )


# ---- closed -------------------------------------------------------------------------------------


def test_a_closed_store_refuses_everything(tmp_path):
    run(
        """
        store = open_store()
        for i in range(1500):  # more than an iterator reads ahead
            store.put("T", b"%d" % i, keys=f"k{i}")
        iterator = store.read("T")
        message = next(iterator)
        for name, call in calls(store).items():
            if name != "refresh":  # of read-only stores
                call()
        store.close()
        store.close()
        assert store.closed and "closed" in repr(store)
        all_refuse(store)
        try:
            list(iterator)
        except StoreStateError:
            pass
        else:
            raise AssertionError("the iterator continued")
        assert message.body == b"0" and message.topic == "T"
        below = store.message_store
        assert below.get_message("g", "T", 0, 0, 32) is None
        below.shutdown()
        try:
            with open_store() as store:
                store.put("T", b"kept")
                raise KeyError("own")
        except KeyError:
            assert store.closed
        with open_store(read_only=True) as store:
            last = list(store.read("T"))[-1]
            assert last.body == b"kept"
        all_refuse(store)
        assert not os.path.exists(path + "/abort")
        """,
        tmp_path / "store",
    )


def test_open_and_close_are_quick(tmp_path):
    """The time is printed and not asserted: this machine may be busy."""
    root = filled(tmp_path / "store")
    result = run(
        """
        open_store().close()
        start = time.perf_counter()
        for _ in range(5):
            open_store().close()
        spent = (time.perf_counter() - start) / 5
        print(f"open and close of an idle store: {spent * 1000:.1f} ms")
        assert spent < 5
        """,
        root,
    )
    print(result.stdout)


# ---- killed -------------------------------------------------------------------------------------


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_what_was_acknowledged_outlives_a_kill(tmp_path, flush):
    root = tmp_path / "store"
    child = start(
        """
        store = open_store(flush_disk_type=sys.argv[2])
        i = 0
        while True:
            result = store.put("T", b"body %d " % i * 20, queue_id=i % 3, keys=f"k{i}", tags="t")
            print(i, result.queue_offset, result.phy_offset, flush=True)
            i += 1
        """,
        root,
        flush,
    )
    acknowledged = [child.stdout.readline().split() for _ in range(300)]
    os.kill(child.pid, signal.SIGKILL)
    rest, _ = child.communicate(timeout=TIMEOUT_S)
    # What the pipe had buffered is lost, so that the first line may be a piece of one.
    acknowledged += [line.split() for line in rest.splitlines()[1:] if line.count(" ") == 2][:-1]
    assert (root / "abort").exists()
    for read_only in (True, False):
        with open_store(root, read_only=read_only) as store:
            assert not store.message_store.plan.clean
            report = store.verify()
            assert report.ok, report.problems
            bodies = {i: [m.body for m in store.read("T", i)] for i in range(3)}
            for number, queue_offset, phy_offset in acknowledged:
                i = int(number)
                assert bodies[i % 3][int(queue_offset)] == b"body %d " % i * 20
                assert store.get(int(phy_offset)).keys == f"k{i}"
            last = acknowledged[-1]
            assert [m.phy_offset for m in store.query("T", f"k{last[0]}")] == [int(last[2])]
    with open_store(root) as store:
        assert store.message_store.plan.clean


# ---- interrupted --------------------------------------------------------------------------------

INTERRUPT = """
from support.broken_env import broken
from pyrocketstore.system.env import Env

env = Env()
let_go = threading.Event()
reached = threading.Event()

def hang(name):
    # Only in the threads of that name: the others continue.
    def function(original, *args):
        if threading.current_thread().name == name:
            reached.set()
            let_go.wait(50)
        return original(*args)
    return function

def interrupted(call):
    # Ctrl-C once the call waits; it must get through while what it waits for still hangs.
    def press():
        reached.wait(20)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)
    presser = threading.Thread(target=press, daemon=True)
    presser.start()
    try:
        call()
    except KeyboardInterrupt:
        assert not let_go.is_set()
        presser.join()
        reached.clear()
        return
    raise AssertionError("the call came back")
"""


def test_ctrl_c_gets_through_waiting_for_dispatch(tmp_path):
    result = run(
        INTERRUPT
        + """
with open_store(env=env) as store, broken(env, "fallocate", hang("ReputMessageService")):
    store.put("T", b"x", keys="k")
    for call in (
        store.wait_dispatched,
        lambda: store.wait_dispatched(30),
        lambda: store.max_offset("T"),
        lambda: list(store.read("T")),
        lambda: store.query("T", "k"),
        store.verify,
        store.flush,
    ):
        reached.set()
        interrupted(call)
        print("through")
    let_go.set()
    assert store.wait_dispatched(30)
    assert [m.body for m in store.read("T")] == [b"x"]
assert not os.path.exists(path + "/abort")
""",
        tmp_path / "store",
    )
    assert result.stdout == "through\n" * 7


@pytest.mark.slow
def test_ctrl_c_gets_through_waiting_for_a_flush(tmp_path):
    """Another thread's force hangs in the device: who waits behind it can be interrupted."""
    result = run(
        INTERRUPT
        + """
with open_store(env=env, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=40000) as store:
    store.put("T", b"first")
    with broken(env, "msync", hang("putter")):
        putter = threading.Thread(target=lambda: store.put("T", b"hangs"), name="putter")
        putter.start()
        assert reached.wait(20)
        interrupted(lambda: store.put("T", b"behind"))
        reached.set()
        interrupted(lambda: store.put_many("T", [b"behind"] * 3))
        reached.set()
        interrupted(store.flush)
        print("through")
        let_go.set()
        putter.join()
    store.put("T", b"last")
    bodies = [m.body for m in store.read("T")]
    assert bodies == [b"first", b"hangs", *[b"behind"] * 4, b"last"], bodies
assert not os.path.exists(path + "/abort")
""",
        tmp_path / "store",
    )
    assert result.stdout == "through\n"


@pytest.mark.slow
def test_ctrl_c_gets_through_work_without_end(tmp_path):
    root = filled(tmp_path / "store", 2000)
    result = run(
        INTERRUPT
        + """
def forever(call):
    while True:
        call()
def read(store):
    for m in store.read("T"):
        m.body
with open_store(env=env) as store:
    for call in (
        lambda: read(store),
        lambda: store.put("U", b"x"),
        lambda: store.put_many("U", [b"x"] * 100),
        lambda: store.query("T", "k7"),
        store.verify,
        store.flush,
    ):
        reached.set()
        interrupted(lambda: forever(call))
    store.put("U", b"continues")
    print("through")
with open_store() as store:
    assert store.message_store.plan.clean
    assert store.verify().ok
""",
        root,
    )
    assert result.stdout == "through\n"


def test_ctrl_c_gets_through_close(tmp_path):
    """A close that waits for a hanging thread; `abort` stays then, and nothing is lost."""
    root = tmp_path / "store"
    run(
        INTERRUPT
        + """
store = open_store(env=env)
with broken(env, "fallocate", hang("ReputMessageService")):
    store.put("T", b"x")
    interrupted(store.close)
    assert not store.closed and "closing" in repr(store)
    all_refuse(store)
    os._exit(0)
""",
        root,
    )
    assert (root / "abort").exists()
    with open_store(root) as store:
        assert [m.body for m in store.read("T")] == [b"x"]


@pytest.mark.slow
def test_a_close_that_was_interrupted_at_its_first_step_has_closed_nothing(tmp_path, monkeypatch):
    store = open_store(tmp_path)
    store.put("T", b"x")

    def interrupt(engine: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DefaultMessageStore, "shutdown", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.close()
    assert not store.closed
    with pytest.raises(StoreStateError):
        store.put("T", b"y")
    assert (tmp_path / "abort").exists()
    store.close()
    assert store.closed
    assert not (tmp_path / "abort").exists()


@pytest.mark.parametrize("name", ["ReputMessageService", "AllocateMappedFileService"])
@pytest.mark.slow
def test_close_goes_on_after_ctrl_c(tmp_path, name):
    """The first close is interrupted while a thread hangs: the directory stays taken, since that
    thread still writes; the next close ends it, and all is clean."""
    result = run(
        INTERRUPT
        + """
store = open_store(env=env)
store.put("T", b"x")
store.wait_dispatched()
while len(os.listdir(path + "/commitlog")) < 2:  # so that no put waits for a file
    time.sleep(0.01)
with broken(env, "fallocate", hang(sys.argv[2])), broken(env, "open", hang(sys.argv[2])):
    while not reached.is_set():
        try:
            store.put_many("T", [b"y" * 1000] * 20, queue_ids=1)
        except PutError:
            assert reached.is_set()  # it needed the file whose making hangs
    interrupted(store.close)
    assert not store.closed and "closing" in repr(store)
    all_refuse(store)
    try:
        open_store()
    except StoreStateError as error:
        assert "already open" in str(error)
    else:
        raise AssertionError("opened twice")
    let_go.set()
    store.close()
    assert store.closed and "closed" in repr(store)
store.close()
assert not os.path.exists(path + "/abort")
assert threading.active_count() < 3, threading.enumerate()  # the one that pressed may be left
with open_store() as store:
    assert store.message_store.plan.clean
    assert store.verify().ok
    print(store.max_offset("T"))
""",
        tmp_path / "store",
        name,
    )
    assert result.stdout == "1\n"


@pytest.mark.slow
def test_a_close_that_was_interrupted_is_ended_at_exit(tmp_path):
    root = tmp_path / "store"
    result = run(
        INTERRUPT
        + """
store = open_store(env=env)
replaced = broken(env, "fallocate", hang("ReputMessageService"))
replaced.__enter__()
store.put("T", b"x")
interrupted(store.close)
let_go.set()
""",
        root,
        flags=("-W", "always"),
    )
    assert "was not closed" in result.stderr
    assert not (root / "abort").exists()


@pytest.mark.slow
def test_a_join_that_was_interrupted_can_be_made_again(tmp_path):
    """CPython up to 3.12 takes the thread for ended then (Thread._wait_for_tstate_lock)."""
    result = run(
        INTERRUPT
        + """
from pyrocketstore.system.threads import JoinableThread
def work():
    reached.set()
    let_go.wait(50)
thread = JoinableThread(work, "worker")
assert not thread.is_alive()
thread.start()
interrupted(thread.join)
assert thread.is_alive()
interrupted(lambda: (reached.set(), thread.join(40)))
began = time.monotonic()
thread.join(0.1)
assert 0.1 <= time.monotonic() - began < 30
assert thread.is_alive()
threading.Timer(0.1, let_go.set).start()
thread.join()
assert let_go.is_set() and not thread.is_alive()
print("through")
""",
        tmp_path,
    )
    assert result.stdout == "through\n"


@pytest.mark.parametrize("thread", ["ReputMessageService", "FlushIndexFileThread"])
@pytest.mark.slow
def test_the_second_close_waits_as_the_first_did(tmp_path, thread):
    """Running work is released 0.3 s after the second close began; all is clean then."""
    result = run(
        INTERRUPT
        + """
thread = sys.argv[2]
store = open_store(env=env)
with broken(env, "fallocate" if thread[0] == "R" else "msync", hang(thread)):
    store.put_many("T", [b"x"] * 5000, keys=[f"k{i}" for i in range(5000)])
    interrupted(store.close)
    threading.Timer(0.3, let_go.set).start()
    store.close()
assert let_go.is_set()
assert not os.path.exists(path + "/abort")
with open_store() as store:
    assert store.message_store.plan.clean
    assert store.verify().ok
    print(store.max_offset("T"))
""",
        tmp_path / "store",
        thread,
    )
    assert result.stdout == "5000\n"


def test_an_interrupted_script_closes_its_store(tmp_path):
    root = tmp_path / "store"
    child = start(
        """
        with open_store() as store:
            store.put("T", b"x")
            print("ready", flush=True)
            while True:
                store.put("T", b"y")
        """,
        root,
    )
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=TIMEOUT_S)
    assert child.returncode != 0
    assert "KeyboardInterrupt" in err
    with open_store(root) as store:
        assert store.message_store.plan.clean
