"""A whole life of a store. It is made, filled over several files, flushed, read, verified, copied
as a kill would leave it, closed and opened again, and the copy is recovered. In a second store, a
topic and old files are deleted. Each failure is recorded, and the life continues, as a careless
program would."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyrocketstore
from cleaned_life import CleanedStore
from journal import SETTINGS, Journal, Putter, check, read_journal
from pyrocketstore.system.env import Env

#: Files that roll in a short life, and no periodic work of the store's threads: every life makes
#: nearly the same calls.
QUIET = {
    "mapped_file_size_commit_log": 1 << 14,
    "mapped_file_size_consume_queue": 300,
    "max_hash_slot_num": 20,
    "max_index_num": 50,
    "flush_interval_commit_log": 600_000,
    "flush_commit_log_timed": True,
    "flush_interval_consume_queue": 600_000,
}


class Life:
    """One life in `folder`: `run` executes it with an Env, `check` examines the stores afterwards.

    `errors`: (step, exception) of each failed step.
    """

    def __init__(self, folder: Path, flush: str, seed: object) -> None:
        self.path = folder / "store"
        self.image = folder / "image"
        self.cleaned = CleanedStore(folder / "cleaned")
        self.journal_path = folder / "journal"
        self.image_journal_path = folder / "image-journal"
        self.settings: dict[str, Any] = {**SETTINGS, **QUIET, "flush_disk_type": flush}
        self.settings["syncfs_least_files"] = 3
        self.seed = seed
        #: number of openings
        self.session = 0
        #: called before each put to a store, and at its close: must the store refuse it?
        self.is_dead: Callable[[Path], bool] = lambda path: False
        #: puts that were not refused although they had to be
        self.false_oks: list[str] = []
        self.errors: list[tuple[str, pyrocketstore.StoreError]] = []
        #: the reports of the stores at their close
        self.causes: list[BaseException] = []
        self._journal = Journal(self.journal_path)
        self._who = 0

    @contextlib.contextmanager
    def _step(self, name: str) -> Iterator[None]:
        try:
            yield
        except pyrocketstore.StoreError as error:
            self.errors.append((name, error))

    def run(self, env: Env) -> None:
        """Run all steps."""
        self._session(self.path, env, self._first)
        self._session(self.path, env, self._second)
        if self.image.exists():
            self._session(self.image, env, self._recovered)
        for _ in range(2):
            self._session(self.cleaned.path, env, self._cleaned)

    def _session(
        self, path: Path, env: Env, work: Callable[[pyrocketstore.Store, Path], None]
    ) -> None:
        store = None
        self.session += 1
        with self._step("open"):
            store = pyrocketstore.open(path, env=env, **self.settings)
        if store is None:
            return
        work(store, path)
        closed = len(self.errors)
        with self._step("close"):
            store.close()
        if len(self.errors) > closed:
            self.cleaned.unclean.add(self.session)
        self.is_dead(path)
        cause = store.message_store.why_not_writeable
        if cause is not None:
            self.causes.append(cause)

    def _first(self, store: pyrocketstore.Store, path: Path) -> None:
        putter = self._putter(store, self._journal)
        self._puts(putter, ["put"] * 8, "put_many", "put_batch")
        with self._step("flush"):
            store.flush()
        self._puts(putter, ["put"] * 8, "put_many", "put_many", "put_batch")
        self._reads(store)
        self._copy(store, path)
        self._puts(putter, ["put"] * 3, "put_many")

    def _copy(self, store: pyrocketstore.Store, path: Path) -> None:
        """Copy the store as a kill may leave it: a torn record at the end, an unwritten queue."""
        shutil.copytree(path, self.image, ignore=lambda *_: {"lock"})  # this process holds the lock
        shutil.copy(self.journal_path, self.image_journal_path)
        shutil.rmtree(self.image / "consumequeue" / "two", ignore_errors=True)
        end = store.message_store.get_max_phy_offset()
        size = self.settings["mapped_file_size_commit_log"]
        file = self.image / "commitlog" / f"{end - end % size:020d}"
        if file.exists() and end % size < size - 100:
            with file.open("r+b") as log:
                log.seek(end % size)
                log.write(b"\0\0\1\0\xda" + b"torn" * 20)

    def _second(self, store: pyrocketstore.Store, path: Path) -> None:
        putter = self._putter(store, self._journal)
        self._puts(putter, ["put"] * 3, "put_many")
        self._reads(store)

    def _recovered(self, store: pyrocketstore.Store, path: Path) -> None:
        journal = Journal(self.image_journal_path)
        self._puts(self._putter(store, journal), ["put"] * 3, "put_many")
        journal.close()
        self._reads(store)

    def _cleaned(self, store: pyrocketstore.Store, path: Path) -> None:
        cleaned = self.cleaned
        for turn, work in enumerate((cleaned.delete_topic, cleaned.delete_expired)):
            for i in range(40 if turn == 0 else 20):
                with self._step("put"):
                    cleaned.put(store, self.session, ("gone", "kept")[i % 2], keep=turn > 0)
            with self._step("wait_dispatched"):
                store.wait_dispatched()
            with self._step(work.__name__):
                work(store)
        for i in range(10):
            with self._step("put"):
                dead = self.is_dead(path)
                cleaned.put(store, self.session, ("gone", "kept")[i % 2], keep=True)
                if dead:
                    self.false_oks.append("put to a cleaned store")

    def _putter(self, store: pyrocketstore.Store, journal: Journal) -> Putter:
        self._who += 1
        return Putter(store, journal, f"p{self._who}", random.Random(f"{self.seed} {self._who}"))

    def _puts(self, putter: Putter, singles: list[str], *rest: str) -> None:
        for method in (*singles, *rest):
            with self._step(method):
                dead = self.is_dead(Path(putter.store.path))
                putter.put(method, count=12)
                if dead:
                    self.false_oks.append(method)

    def _reads(self, store: pyrocketstore.Store) -> None:
        with self._step("wait_dispatched"):
            store.wait_dispatched()
        for topic in ("one", "batch"):
            with self._step("read"):
                list(store.read(topic))
        with self._step("read_batch"):
            store.read_batch("one", 0, start=0)
        with self._step("query"):
            store.query("one", "p1-1")
        with self._step("query_many"):
            store.query_many("one", ["p1-1", "p1-2"])
        with self._step("get"):
            store.get(0)
        with self._step("verify"):
            store.verify()

    def check(self) -> None:
        """Require, without faults, that every message exists and that both stores work."""
        self._journal.close()
        for path, journal_path in (
            (self.path, self.journal_path),
            (self.image, self.image_journal_path),
        ):
            if not path.exists():
                continue
            journal = Journal(journal_path)
            with pyrocketstore.open(path, **self.settings) as store:
                check(store, read_journal(journal_path))
                self._putter(store, journal).put("put_many")
            journal.close()
            assert not (path / "abort").exists()
            with pyrocketstore.open(path, read_only=True, **self.settings) as store:
                check(store, read_journal(journal_path))
        if self.cleaned.path.exists():
            for _ in range(2):
                with pyrocketstore.open(self.cleaned.path, **self.settings) as store:
                    self.cleaned.check(store)
                    store.put("gone", b"more")
                assert not (self.cleaned.path / "abort").exists()
