"""Random programs: two stores' engines take turns on one directory, and are killed now and then.

A program is a list of steps made from its seed alone. After every step a copy of the directory is
dumped by both sides, and the dumps must equal each other and the plain-Python model.
"""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import face
from actors import JAVA, OURS, Actor, ActorError, Actors, write_conf
from face import STORE_HOSTS, Opening, encoded_rows
from golden_lines import Line, compare_lines, write_queries
from model import Model, Spec
from pyrocketstore.config import MessageStoreConfig
from pyrocketstore.dump import dump_lines
from random_messages import ROLLBACK_TYPE, random_messages, random_queries, spec_line

ASCII_TOPICS = ("Topic-0", "Topic-1", "%RETRY%group-1")
OTHER_TOPICS = ("тема", "主题-7", "\U0001f680-\U0001f600", "x" * 127)
KINDS = ("batch", "v6", "mixhost", "tx", "delay", "comp", "empty", "collide", "wide", "long")
DELAY_HOURS = 1
QUERIES = 30
#: Files so small that every program rolls over several; a batch fits into each.
FILE_SIZES = (65_536, 131_072)
QUEUE_FILE_SIZES = (200, 400, 4000)
INDEX_SIZES = ((50, 90), (100, 400), (20, 2000))


#: Steps inside of which the process is killed, and where it may be then: at how many ms, of which
#: each power of ten is as likely. 4.9.3 sleeps for a second while it closes.
KILLS_INSIDE = ("kill-while-opening", "kill-while-closing")
DELAYS_MS = {
    ("kill-while-opening", OURS): (0.3, 300),
    ("kill-while-opening", JAVA): (10, 2000),
    ("kill-while-closing", OURS): (0.3, 300),
    ("kill-while-closing", JAVA): (700, 3000),
    ("kill-while-putting", OURS): (0.3, 100),
}


class Step(NamedTuple):
    """`what` is open, put, flush, close, kill, or kill-while-opening, -putting or -closing."""

    what: str
    side: str = ""
    specs: Sequence[Spec] = ()
    way: str = "each"  # or in one call: columns, together
    acknowledged: int = 0  # how many answers are heard before the kill
    delay_ms: float = 0.0  # how long the kill waits

    def __str__(self) -> str:
        puts = f", {len(self.specs)} puts {self.way}" if self.specs else ""
        delay = f", killed after {self.delay_ms:.1f} ms" if self.delay_ms else ""
        return f"{self.what} {self.side}{puts}{delay}"


class Program(NamedTuple):
    """What to do, and with which sizes."""

    seed: str
    config: dict[str, Any]
    opening: Opening
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
        "writeWithoutMmap": rng.random() < 0.25,  # ours; 4.9.3 does not know it
    }
    opening = Opening(rng.choice(STORE_HOSTS), rng.random() < 0.25)
    return Program(seed, config, opening, list(_steps(rng, steps, opening)))


def _steps(rng: random.Random, count: int, opening: Opening) -> Iterator[Step]:
    side = ""
    last = rng.choice((OURS, JAVA))
    kinds = rng.sample(KINDS, rng.randrange(2, len(KINDS)))
    # 4.9.3 rebuilds the units of delayed messages with wrong tags codes.
    early = [kind for kind in kinds if kind != "delay"]
    for _ in range(count):
        if not side:
            side = (OURS if last == JAVA else JAVA) if rng.random() < 0.75 else last
            if rng.random() < 0.25:
                yield Step("kill-while-opening", side, delay_ms=_delay(rng, KILLS_INSIDE[0], side))
                last, side = side, ""
            else:
                yield Step("open", side)
            continue
        what = rng.choices(
            ("put", "flush", "close", "kill", "kill-while-putting", "kill-while-closing"),
            (8, 1, 2, 2, 4, 2),
        )[0]
        way, specs, acknowledged, delay_ms = "each", list[Spec](), 0, 0.0
        if what == "put":
            way, specs = _puts(rng, side, rng.randrange(1, 50), kinds, opening)
        elif what == "kill-while-putting":
            way, specs = _puts(rng, side, rng.randrange(2, 60), early, opening)
            acknowledged = rng.randrange(len(specs)) if way == "each" else 0
        elif what == "kill-while-closing":
            way, specs = _puts(rng, side, rng.randrange(1, 20), early, opening)
        if what in KILLS_INSIDE or (what == "kill-while-putting" and way != "each"):
            delay_ms = _delay(rng, what, side)
        yield Step(what, side, specs, way, acknowledged, delay_ms)
        if what not in ("put", "flush"):
            last, side = side, ""


def _delay(rng: random.Random, what: str, side: str) -> float:
    least, most = DELAYS_MS[what, side]
    return float(least * (most / least) ** rng.random())


def _puts(
    rng: random.Random, side: str, count: int, kinds: Sequence[str], opening: Opening
) -> tuple[str, list[Spec]]:
    """How to put, and what: on our side through the engine, or the face, or both in turn."""
    way = rng.choice(("each", "each", "each", "columns", "together")) if side == OURS else "each"
    if way == "columns":
        return way, face.columns(rng, opening, ASCII_TOPICS, count)
    engine = _specs(rng, count, kinds)
    if side == JAVA:
        return way, engine
    max_body = rng.choice((40, 400, 2000, 12_000))
    if way == "together":
        faces = [face.single(rng, opening, ASCII_TOPICS, max_body) for _ in range(count)]
        return way, rng.choice((engine, faces))
    share = rng.choice((0.0, 0.5, 1.0))
    for i in range(count):
        if rng.random() < share:
            make_one = face.batch if rng.random() < 0.2 else face.single
            engine[i] = make_one(rng, opening, ASCII_TOPICS, max_body)
    return way, engine


def _specs(rng: random.Random, count: int, kinds: Sequence[str]) -> list[Spec]:
    topics = ASCII_TOPICS + (OTHER_TOPICS if rng.random() < 0.5 else ())
    max_body = rng.choice((40, 400, 2000, 12_000))
    seed = rng.randrange(1 << 32)
    return random_messages(seed, count, kinds, topics=topics, queues=3, max_body=max_body)


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
        if step.what == "kill-while-opening":
            self.kill_while_opening(step)
            return None
        assert actor is not None
        self.specs += step.specs
        if step.what == "kill-while-putting":
            self.kill_while_putting(step, actor)
            return None
        self.put(step, actor)
        if step.what == "kill-while-closing":
            self.kill_while_closing(step, actor)
            return None
        if step.what == "flush":
            actor.ask("flush")
        actor.ask("wait")
        if step.what == "close":
            actor.ask("close")
            actor.kill()
            assert not (self.root / "abort").exists(), "the end was not clean"
        elif step.what == "kill":
            self.killed(actor)
        return None if step.what in ("close", "kill") else actor

    # ---- puts ---------------------------------------------------------------------------------

    def put(self, step: Step, actor: Actor) -> None:
        """What the step puts, all of it acknowledged."""
        for request, specs in self.requests(step):
            actor.send(**request)
            self.take(step, specs, actor.receive())

    def requests(self, step: Step) -> Iterator[tuple[Line, Sequence[Spec]]]:
        """What to say to the actor, and which messages each answer is about."""
        if step.way == "each":
            for spec in step.specs:
                yield {"do": "put", "spec": json.loads(spec_line(spec))}, [spec]
        elif step.way == "columns":
            first = step.specs[0]
            request = {"do": "columns", "topic": first["topic"], "born_host": first["born_host"]}
            yield request | {"rows": encoded_rows(step.specs)}, step.specs
        else:
            lines = [json.loads(spec_line(spec)) for spec in step.specs]
            yield {"do": "together", "specs": lines}, step.specs

    def take(self, step: Step, specs: Sequence[Spec], answer: Line) -> None:
        """These were acknowledged so."""
        if step.way == "columns":
            self.model.put_columns(specs, answer, self.root)
            return
        answers = answer["together"] if step.way == "together" else [answer]
        for spec, one in zip(specs, answers, strict=True):
            self.model.put(spec, one, self.root)

    # ---- opening and killing ------------------------------------------------------------------

    def started(self, wanted: str) -> tuple[Actor, Line]:
        """A process of that side, or of ours where 4.9.3 would refuse, and what opens the store."""
        side = OURS if self.java_refuses(self.root) else wanted
        if side == JAVA and (self.root / "abort").exists():
            # Its recovery drops the newest index files and may begin behind what was in them.
            self.model.indexed_from = self.model.end
        request = {"do": "open", "path": str(self.root), "conf": str(self.conf)}
        if side == OURS:
            request |= self.program.opening._asdict()
        return self.actors.start(side), request

    def open(self, side: str) -> Actor:
        actor, request = self.started(side)
        try:
            assert actor.ask(**request)["open"], "load() says no"
        except BaseException:
            actor.kill()
            raise
        return actor

    def kill_while_opening(self, step: Step) -> None:
        """Whether it got to the end or not: nothing that was there may go."""
        actor, request = self.started(step.side)
        with actor:
            actor.ready()
            self.kill_within(actor, request, step)
        self.root.mkdir(exist_ok=True)

    def kill_while_closing(self, step: Step, actor: Actor) -> None:
        """What was put just now is there, dispatched or not."""
        if self.kill_within(actor, {"do": "close"}, step):
            assert not (self.root / "abort").exists(), "the end was not clean"

    def kill_within(self, actor: Actor, request: Line, step: Step) -> list[Line]:
        """Say it, wait for as long as the step says, and kill; what was answered until then."""
        actor.send(**request)
        actor.flush()
        time.sleep(step.delay_ms / 1000)
        answers = self.killed(actor)
        if not answers:
            self.actors.inside[step.what, actor.side] += 1
        return answers

    def kill_while_putting(self, step: Step, actor: Actor) -> None:
        requests = list(self.requests(step))
        if step.way == "each":
            for request, _ in requests:
                actor.send(**request)
            answers = [actor.receive() for _ in range(step.acknowledged)]
            answers += self.killed(actor)
        else:
            answers = self.kill_within(actor, requests[0][0], step)
        for (_, specs), answer in zip(requests, answers, strict=False):
            self.take(step, specs, answer)
        pending = [spec for _, specs in requests[len(answers) :] for spec in specs]
        self.model.survive(self.root, pending)

    def killed(self, actor: Actor) -> list[Line]:
        self.was_killed = True
        self.actors.kills[actor.side] += 1
        answers = actor.kill()
        for answer in answers:
            if "error" in answer:
                raise ActorError(f"{actor.side}: {answer['error']}")
        return answers

    # ---- comparing ----------------------------------------------------------------------------

    def without_edges(self, lines: Sequence[str]) -> list[str]:
        """4.9.3's dump without hits at the edges of a query's time.

        The index counts whole seconds from the first message of a file, so a message of the first
        second of a window is a hit or none depending on the file that it is in; and a file's first
        message counts as many seconds too late as passed since the last one in the file before.
        After a kill 4.9.3 may have a message twice, in two files, and we once.
        """
        stored = {record.phy_offset: record.store_timestamp for record in self.model.records}
        late = self.late_as_first()
        found = []
        for line in lines:
            parsed = json.loads(line) if line.startswith('{"query"') else {}
            query = parsed.get("query")
            if query:
                first = query["begin"] + 1000 if query["begin"] else 0
                hits = [
                    hit
                    for hit in query["phy_offsets"]
                    if first <= stored[hit] <= query["end"] - late.get(hit, 0)
                ]
                if hits != query["phy_offsets"]:
                    query |= {"phy_offsets": hits, "index_last_update_phyoffset": 0}
                    line = json.dumps(parsed, separators=(",", ":"))
            found.append(line)
        return found

    def late_as_first(self) -> dict[int, int]:
        """By place, how much later each message with keys is found where it begins an index file,
        ms: the whole seconds since the one before it."""
        late = {}
        before = None
        for record in sorted(self.model.records, key=lambda record: record.phy_offset):
            rolled_back = record.spec["sys_flag"] & ROLLBACK_TYPE == ROLLBACK_TYPE
            if {"KEYS", "UNIQ_KEY"} & set(record.properties) and not rolled_back:
                passed = 0 if before is None else record.store_timestamp - before
                late[record.phy_offset] = max(0, passed) // 1000 * 1000
                before = record.store_timestamp
        return late

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
