"""Goal: Bloom filters and the text of consumerFilter.json are those of 4.9.3, for random
parameters, names and calls.
Method: a driver asks the filter jar's BloomFilter and the broker's ConsumerFilterManager."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from pyrocketstore.consumer.consumer_filters import ConsumerFilters
from pyrocketstore.filter.bloom import BloomFilter
from pyrocketstore.filter.sql92 import Sql92Filter
from pyrocketstore.system.env import Env
from support.java_store import require_java
from support.seed import SEED

pytestmark = [pytest.mark.java, pytest.mark.slow]

COUNT = 300
LETTERS = "abcXYZ09%|_-#é𝟓 \t"
FILTERS = ("a > 5", "a = 'it''s' AND b IS NULL", "c = 'é\\'", "a = '\"'", "TRUE")


def name(rng: random.Random) -> str:
    return "".join(rng.choice(LETTERS) for _ in range(rng.randrange(1, 40)))


def test_bloom_filters() -> None:
    rng = random.Random(SEED)
    requests = [
        {
            "error_rate": rng.randrange(1, 100),
            "expected": rng.choice((1, 2, 32, 64, rng.randrange(1, 5000))),
            "names": [name(rng) for _ in range(8)],
        }
        for _ in range(COUNT)
    ]
    for request, answer in zip(requests, require_java().filter(requests), strict=True):
        bloom = BloomFilter(request["error_rate"], request["expected"])
        assert (bloom.hash_count, bloom.bit_count) == (answer["hash_count"], answer["bit_count"])
        found = [" ".join(map(str, bloom.positions(one))) for one in request["names"]]
        assert ",".join(found) == answer["positions"], (request, SEED)


def without_times(text: str) -> str:
    return re.sub(r'("bornTime"|"clientVersion"):\d+', r"\1:0", text)


def test_the_text_of_the_file(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    calls = []
    for _ in range(20):
        names = [f"t{rng.randrange(1000)}" for _ in range(rng.randrange(1, 30))]
        groups = [f"{rng.choice('%-ab')}{rng.randrange(1000)}" for _ in range(30)]
        calls.append(
            [
                [rng.choice(names), rng.choice(groups), rng.choice(FILTERS)]
                for _ in range(rng.randrange(1, 60))
            ]
        )
    answers = require_java().filter([{"registered": one} for one in calls])
    for number, (registered, answer) in enumerate(zip(calls, answers, strict=True)):
        root = tmp_path / str(number)
        filters = ConsumerFilters(Env(), str(root), 20, 64, 1 << 40, lambda: 0)
        filters.load()
        for topic, group, where in registered:
            filters.register(group, topic, Sql92Filter(where))
        filters.persist()
        text = Path(filters.path).read_text("utf-8")
        assert without_times(text) == without_times(answer["text"]), (registered, SEED)
