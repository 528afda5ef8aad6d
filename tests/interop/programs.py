"""Random programs: two engines take turns on one directory, and are killed sometimes.

A program is a list of steps derived from its seed alone. After every step both sides dump a copy of
the directory, and the dumps must equal each other and the plain-Python model.
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
from model import Model, Spec
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.verify.dump import dump_lines
from support.golden_lines import Line, compare_lines, write_queries
from support.random_messages import ROLLBACK_TYPE, random_messages, random_queries, spec_line

ASCII_TOPICS = ("Topic-0", "Topic-1", "%RETRY%group-1")
OTHER_TOPICS = ("тема", "主题-7", "\U0001f680-\U0001f600", "x" * 127)
KINDS = ("batch", "v6", "mixhost", "tx", "delay", "comp", "empty", "collide", "wide", "long")
DELAY_HOURS = 1
QUERIES = 30
#: Small files: every program rolls over several, and a batch fits into each.
FILE_SIZES = (65_536, 131_072)
QUEUE_FILE_SIZES = (200, 400, 4000)
INDEX_SIZES = ((50, 90), (100, 400), (20, 2000))


#: Steps during which the process is killed, and the range of the delay before the kill in ms, with
#: equal probability for each power of ten. 4.9.3 sleeps for a second while it closes.
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
    way: str = "each"  # or one call: columns, together
    acknowledged: int = 0  # number of replies read before the kill
    delay_ms: float = 0.0  # delay of the kill

    def __str__(self) -> str:
        puts = f", {len(self.specs)} puts {self.way}" if self.specs else ""
        delay = f", killed after {self.delay_ms:.1f} ms" if self.delay_ms else ""
        return f"{self.what} {self.side}{puts}{delay}"


class Program(NamedTuple):
    """Steps, and the file sizes of the stores."""

    seed: str
    config: dict[str, Any]
    opening: Opening
    steps: list[Step]


def make(seed: str) -> Program:
    """Return the program of a seed; the last number of the seed is the number of steps."""
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
        "writeWithoutMmap": rng.random() < 0.25,  # ours; unknown to 4.9.3
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
    """Return a method and messages: on our side for the engine, for `Store`, or for both."""
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
        """Run all steps; an error names the seed and the step."""
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
        """Run one step; return the actor that has the store open afterwards."""
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
        """Put the messages of a step, all of which must be acknowledged."""
        for request, specs in self.requests(step):
            actor.send(**request)
            self.take(step, specs, actor.receive())

    def requests(self, step: Step) -> Iterator[tuple[Line, Sequence[Spec]]]:
        """Return the commands for the actor, and the messages of each reply."""
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
        """Add acknowledged messages to the model."""
        if step.way == "columns":
            self.model.put_columns(specs, answer, self.root)
            return
        answers = answer["together"] if step.way == "together" else [answer]
        for spec, one in zip(specs, answers, strict=True):
            self.model.put(spec, one, self.root)

    # ---- opening and killing ------------------------------------------------------------------

    def started(self, wanted: str) -> tuple[Actor, Line]:
        """Return a process of a side, or ours if 4.9.3 would refuse, and the opening command."""
        side = OURS if self.java_refuses(self.root) else wanted
        if side == JAVA and (self.root / "abort").exists():
            # Its recovery drops the newest index files and may begin behind their entries.
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
        """Kill an opening or a close; no message may be lost, whether the step ended or not."""
        actor, request = self.started(step.side)
        with actor:
            actor.ready()
            self.kill_within(actor, request, step)
        self.root.mkdir(exist_ok=True)

    def kill_while_closing(self, step: Step, actor: Actor) -> None:
        """Require that the most recent messages exist, dispatched or not."""
        if self.kill_within(actor, {"do": "close"}, step):
            assert not (self.root / "abort").exists(), "the end was not clean"

    def kill_within(self, actor: Actor, request: Line, step: Step) -> list[Line]:
        """Send commands, kill after the delay of the step, and return the replies so far."""
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
        """Return 4.9.3's dump without hits at the edges of a query's time window.

        The index counts whole seconds from the first message of a file. Whether a message of the
        first second of a window is a hit therefore depends on its file. The first message of a file
        counts too late, by the seconds since the last message of the previous file. After a kill
        4.9.3 may have a message twice, in two files, and our store has it once.
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
        """Return, by offset, the delay (ms) of each message with keys if it begins an index file.

        The delay is the number of whole seconds since the previous message.
        """
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
        """Return True if a file has length 0, since 4.9.3 does not start on such a file.

        4.9.3 leaves one if it is killed between the creation and the resize of a file.
        """
        patterns = ("commitlog/*", "consumequeue/*/*/*")
        return any(not path.stat().st_size for p in patterns for path in root.glob(p))

    def compare(self, number: int) -> None:
        """Compare both sides' dumps of copies with each other and with the model."""
        ours, theirs = self.directory / "ours", self.directory / "java"
        shutil.copytree(self.root, ours)  # keeps modification times
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
