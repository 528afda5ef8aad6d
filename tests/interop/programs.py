"""Random programs: two stores' engines take turns on one directory, and are killed now and then.

A program is a list of steps made from its seed alone. After every step a copy of the directory is
dumped by both sides, and the dumps must equal each other and the plain-Python model.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from actors import JAVA, OURS, Actor, Actors, write_conf
from golden_lines import compare_lines, write_queries
from model import Model, Spec, encoded_row
from pyrocketstore.config import MessageStoreConfig
from pyrocketstore.dump import dump_lines
from random_messages import random_messages, random_queries, spec_line

ASCII_TOPICS = ("Topic-0", "Topic-1", "%RETRY%group-1")
OTHER_TOPICS = ("тема", "主题-7", "\U0001f680-\U0001f600", "x" * 127)
KINDS = ("batch", "v6", "mixhost", "tx", "delay", "comp", "empty", "collide", "wide", "long")
DELAY_HOURS = 1
STORE_HOST = "127.0.0.1:10911"
QUERIES = 30
#: Files so small that every program rolls over several; a batch fits into each.
FILE_SIZES = (65_536, 131_072)
QUEUE_FILE_SIZES = (200, 400, 4000)
INDEX_SIZES = ((50, 90), (100, 400), (20, 2000))


class Step(NamedTuple):
    """`what` is open, put, columns, flush, close, kill or kill-while-putting."""

    what: str
    side: str = ""
    specs: Sequence[Spec] = ()
    acknowledged: int = 0  # how many answers are heard before the kill

    def __str__(self) -> str:
        puts = f", {len(self.specs)} puts" if self.specs else ""
        return f"{self.what} {self.side}{puts}"


class Program(NamedTuple):
    """What to do, and with which sizes."""

    seed: str
    config: dict[str, Any]
    steps: list[Step]


def make(seed: str) -> Program:
    """The program of a seed, which says the same every time; its last number counts the steps."""
    rng = random.Random(seed)
    steps = int(seed.rpartition(".")[2])
    slots, entries = rng.choice(INDEX_SIZES)
    config = {
        "mappedFileSizeCommitLog": rng.choice(FILE_SIZES),
        "mappedFileSizeConsumeQueue": rng.choice(QUEUE_FILE_SIZES),
        "maxHashSlotNum": slots,
        "maxIndexNum": entries,
        "flushDiskType": rng.choice(("ASYNC_FLUSH", "ASYNC_FLUSH", "SYNC_FLUSH")),
        "messageDelayLevel": " ".join([f"{DELAY_HOURS}h"] * 18),
    }
    return Program(seed, config, list(_steps(rng, steps)))


def _steps(rng: random.Random, count: int) -> Iterator[Step]:
    side = ""
    last = rng.choice((OURS, JAVA))
    kinds = rng.sample(KINDS, rng.randrange(2, len(KINDS)))
    for _ in range(count):
        if not side:
            side = (OURS if last == JAVA else JAVA) if rng.random() < 0.75 else last
            yield Step("open", side)
            continue
        what = rng.choices(
            ("put", "flush", "close", "kill", "kill-while-putting"), (8, 1, 3, 2, 4)
        )[0]
        specs: list[Spec] = []
        if what == "put":
            specs = _specs(rng, rng.randrange(1, 40), kinds)
            if side == OURS and rng.random() < 0.3:
                what, specs = "columns", _columns(rng, rng.randrange(1, 60))
        elif what == "kill-while-putting":
            # 4.9.3 rebuilds the units of delayed messages with wrong tags codes.
            specs = _specs(rng, rng.randrange(2, 60), [k for k in kinds if k != "delay"])
        acknowledged = rng.randrange(len(specs)) if specs else 0
        yield Step(what, side, specs, acknowledged)
        if what not in ("put", "columns", "flush"):
            last, side = side, ""


def _specs(rng: random.Random, count: int, kinds: Sequence[str]) -> list[Spec]:
    topics = ASCII_TOPICS + (OTHER_TOPICS if rng.random() < 0.5 else ())
    max_body = rng.choice((40, 400, 2000, 12_000))
    seed = rng.randrange(1 << 32)
    return random_messages(seed, count, kinds, topics=topics, queues=3, max_body=max_body)


def _columns(rng: random.Random, count: int) -> list[Spec]:
    """Messages that the face's put_many can make: one topic, its own hosts and times."""
    topic = rng.choice(ASCII_TOPICS)
    base = {"topic": topic, "sys_flag": 0, "flag": 0, "reconsume_times": 0, "born_timestamp": -1}
    base |= {"born_host": "192.168.1.7:1234", "store_host": STORE_HOST}
    specs = []
    for i in range(count):
        pairs = [("TAGS", rng.choice(("TagA", "标签1")))] if rng.random() < 0.7 else []
        pairs += [("KEYS", rng.choice((f"c{i}", "Aa", "键 BB")))] if rng.random() < 0.7 else []
        body = rng.randbytes(rng.randrange(900))
        specs.append(base | {"queue_id": rng.randrange(3), "body": body, "properties": pairs})
    return specs


class Runner:
    """Runs a program on one directory and compares after every step."""

    def __init__(self, program: Program, actors: Actors, directory: Path) -> None:
        self.program = program
        self.actors = actors
        self.directory = directory
        self.root = directory / "store"
        self.conf = write_conf(directory / "broker.conf", program.config)
        self.model = Model(program.config["mappedFileSizeCommitLog"], DELAY_HOURS * 3_600_000)
        self.specs: list[Spec] = []
        self.was_killed = False

    def run(self) -> None:
        """All steps; an error tells the seed and the step."""
        actor: Actor | None = None
        try:
            for number, step in enumerate(self.program.steps):
                try:
                    actor = self.do(step, actor)
                    self.compare(number)
                except BaseException as error:
                    error.add_note(f"program {self.program.seed}, step {number}: {step}")
                    raise
        finally:
            if actor is not None:
                actor.kill()

    def do(self, step: Step, actor: Actor | None) -> Actor | None:
        """One step; the actor that has the store open afterwards."""
        if step.what == "open":
            return self.open(step.side)
        assert actor is not None
        self.specs += step.specs
        if step.what == "put":
            for spec in step.specs:
                self.model.put(spec, actor.ask("put", spec=json.loads(spec_line(spec))))
        elif step.what == "columns":
            rows = [encoded_row(spec) for spec in step.specs]
            born_host = step.specs[0]["born_host"]
            topic = step.specs[0]["topic"]
            answer = actor.ask("columns", topic=topic, rows=rows, born_host=born_host)
            self.model.put_columns(step.specs, answer, self.root)
        elif step.what == "flush":
            actor.ask("flush")
        if step.what == "kill-while-putting":
            self.kill_while_putting(step, actor)
            return None
        actor.ask("wait")
        if step.what == "close":
            actor.ask("close")
            actor.kill()
            assert not (self.root / "abort").exists(), "the end was not clean"
        elif step.what == "kill":
            self.killed(actor)
        return None if step.what in ("close", "kill") else actor

    def open(self, side: str) -> Actor:
        if self.java_refuses(self.root):
            side = OURS
        if side == JAVA and (self.root / "abort").exists():
            # Its recovery drops the newest index files and may begin behind what was in them.
            self.model.indexed_from = self.model.end
        actor = self.actors.start(side)
        try:
            answer = actor.ask("open", path=str(self.root), conf=str(self.conf))
            assert answer["open"], "load() says no"
        except BaseException:
            actor.kill()
            raise
        return actor

    def kill_while_putting(self, step: Step, actor: Actor) -> None:
        for spec in step.specs:
            actor.send("put", spec=json.loads(spec_line(spec)))
        answers = [actor.receive() for _ in range(step.acknowledged)]
        answers += self.killed(actor)
        for spec, answer in zip(step.specs, answers, strict=False):
            self.model.put(spec, answer)
        self.model.survive(self.root, step.specs[len(answers) :])

    def killed(self, actor: Actor) -> list[dict[str, Any]]:
        self.was_killed = True
        self.actors.kills[actor.side] += 1
        return actor.kill()

    def without_edges(self, lines: Sequence[str]) -> list[str]:
        """4.9.3's dump without hits at the edges of a query's time.

        The index counts whole seconds from the first message of a file, so a message of the first
        second of a window is a hit or none depending on the file that it is in. After a kill 4.9.3
        may have it twice, in two files, and we once.
        """
        stored = {record.phy_offset: record.store_timestamp for record in self.model.records}
        found = []
        for line in lines:
            parsed = json.loads(line) if line.startswith('{"query"') else {}
            query = parsed.get("query")
            if query and query["begin"]:
                first = query["begin"] + 1000
                hits = [h for h in query["phy_offsets"] if first <= stored[h] <= query["end"]]
                if hits != query["phy_offsets"]:
                    query |= {"phy_offsets": hits, "index_last_update_phyoffset": 0}
                    line = json.dumps(parsed, separators=(",", ":"))
            found.append(line)
        return found

    def java_refuses(self, root: Path) -> bool:
        """4.9.3 does not start on a file without length, which it leaves behind when it is killed
        between making the file and giving it a size."""
        patterns = ("commitlog/*", "consumequeue/*/*/*")
        return any(not path.stat().st_size for p in patterns for path in root.glob(p))

    def compare(self, number: int) -> None:
        """Both sides' dumps of copies, and the model."""
        ours, theirs = self.directory / "ours", self.directory / "java"
        shutil.copytree(self.root, ours)  # keeps the times of the files
        shutil.copytree(ours, theirs)
        times = [record.store_timestamp for record in self.model.records] or [0]
        rows = random_queries(number, self.specs, (min(times), max(times)), QUERIES)
        queries = write_queries(self.directory / "queries.tsv", rows)
        config, warnings = MessageStoreConfig.from_broker_conf(self.conf, root=ours)
        assert not warnings
        our_lines = list(dump_lines(ours, config, queries))
        their_lines = self.actors.dump(theirs, self.conf, queries)
        unclean = self.was_killed or (ours / "abort").exists()
        self.model.check(our_lines)
        if their_lines is None:
            assert self.java_refuses(ours), "4.9.3 cannot load it"
        else:
            their_lines = self.without_edges(their_lines) if unclean else their_lines
            compare_lines(their_lines, our_lines, unclean=unclean)
        shutil.rmtree(ours)
        shutil.rmtree(theirs)
