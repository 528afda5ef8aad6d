"""Runs programs, cuts the power at chosen moments, and examines images of each moment.

The name of an image is PROGRAM.MOMENT.IMAGE. ROCKETSTORE_FAULT=NAME examines that image alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from device import Captured, Device
from fault_programs import Journal, Program, Runner, make
from judge import Expected, Judge
from survivors import all_cached, choose, image_of, write

ONLY = os.environ.get("ROCKETSTORE_FAULT", "")
#: Number of moments of a program, and of images of a moment.
MOMENTS = 12
IMAGES = 5
NAME_OF_KILL = "killed before the power was cut"


@contextlib.contextmanager
def memory_directory(tmp_path: Path) -> Iterator[Path]:
    """Yield a directory in memory: the device is simulated, and memory is fast."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    path = Path(tempfile.mkdtemp(prefix="pyrocketstore-", dir=memory))
    logging.disable(logging.ERROR)  # recovery logs many warnings
    try:
        yield path
    finally:
        logging.disable(logging.NOTSET)
        shutil.rmtree(path)


@contextlib.contextmanager
def directory_of(device: Device, about: str) -> Iterator[None]:
    """Remove the device's directory at the end, and add `about` to an error."""
    try:
        yield
        device.release()
    except BaseException as error:
        error.add_note(about)
        raise
    finally:
        shutil.rmtree(device.root)


class Campaign:
    """Runs programs and examines the images of their crashes."""

    def __init__(self, path: Path, only: str = ONLY) -> None:
        self.path = path
        self.only = only
        self.counts: Counter[str] = Counter()
        self.keeps_failures = True
        #: the flush setting whose puts are promised when they return
        self.sync_type = "SYNC_FLUSH"
        #: further settings with which images are opened
        self.settings: dict[str, object] = {}

    @property
    def images(self) -> int:
        """Return the number of images that were examined."""
        return self.counts["images"]

    def program(self, seed: str) -> None:
        """Run one program and examine all its images."""
        program = make(seed)
        path = self.path / "run"
        path.mkdir()
        device = Device(path, seed, captures_max=MOMENTS, rate=0.8)
        sync = program.settings["flush_disk_type"] == self.sync_type
        journal = Journal(sync)
        with directory_of(device, f"program {seed}: {program}"):
            Runner(program, path, device, journal).run()
            self.counts["programs"] += 1
            self.counts["SYNC_FLUSH" if sync else "ASYNC_FLUSH"] += 1
            for number, moment in enumerate(device.captures):
                self.moment(program, journal, moment, f"{seed}.{number}")

    def moment(self, program: Program, journal: Journal, moment: Captured, name: str) -> None:
        """Examine all images of one moment, and a kill at that moment."""
        self.counts[f"crash at {moment.call}"] += 1
        rng = random.Random(name)
        for number in range(IMAGES):
            self.image(program, journal, moment, f"{name}.{number}")
        if rng.random() < 0.25:
            self.killed(program, journal, moment, f"{name}.k")

    def image(self, program: Program, journal: Journal, moment: Captured, name: str) -> None:
        """Examine one image."""
        if not self.only.startswith(name) and self.only:
            return
        rng = random.Random(name)
        choice = choose(rng)
        judge = Judge(self.path, program.settings | self.settings)
        expected = Expected.of(journal, moment)._replace(is_first=journal.is_first)
        try:
            judge.examine(image_of(moment, choice, rng), expected, name)
        except BaseException as error:
            error.add_note(
                f"ROCKETSTORE_FAULT={name} ({choice}), the power cut before {moment.call}"
            )
            error.add_note(f"calls before: {moment.events[-12:]}")
            error.add_note(f"settings: {program.settings}")
            if self.keeps_failures:
                kept = Path(tempfile.mkdtemp(prefix="pyrocketstore-fault-")) / "image"
                write(judge.image, kept)
                error.add_note(f"the image: {kept}")
            raise
        self.counts += judge.counts
        for what in (f"pages {choice.pages}", f"names {choice.names}", f"lengths {choice.lengths}"):
            self.counts[what] += 1
        for number in range(1, judge.number + 1):
            shutil.rmtree(self.path / f"image{number}", ignore_errors=True)

    def killed(self, program: Program, journal: Journal, moment: Captured, name: str) -> None:
        """Kill the process, continue with its files in another one, and then cut the power."""
        if self.only and not self.only.startswith(name):
            return
        path = self.path / "killed"
        write(all_cached(moment), path)
        rng = random.Random(name)
        device = Device(path, name, captures_max=2, rate=0.8)
        device.inherit(moment)
        now = Journal(journal.sync)
        now.is_first = False
        now.given = journal.given[: moment.promised.given]
        now.safe = journal.safe[: moment.promised.safe]
        now.returned = journal.returned[: moment.promised.listed]
        now.listed = len(now.returned)
        runner = Runner(program._replace(seed=name), path, device, now)
        with directory_of(device, f"killed after {moment.call}: {name}"):
            runner.run(rng.choice((0, 3, 12)))
            for number, later in enumerate(device.captures):
                self.counts[NAME_OF_KILL] += 1
                for image in range(2):
                    self.image(program, now, later, f"{name}{number}.{image}")

    def __str__(self) -> str:
        lines = [f"{count:8} {what}" for what, count in sorted(self.counts.items())]
        return "\n".join(lines)
