"""Goal: columns of text become the maps and tags codes that the store derives from such text.
Method: random texts with gaps between them against the plain reader; positions outside of the data.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from pyrocketstore.columns._decode import properties_maps, tags_codes
from pyrocketstore.errors import StoreFormatError
from support import oracle
from support.arrow_batches import batch_of

PIECES = [b"TAGS\x01", b"a\x01b", b"\x02", b"\x01", b"TagA", "名字😀é".encode(), b"\xff"]
PIECES += [b"\xed\xa0\x80", b"\xf0\x9f", b"k" * 40, "\U0001f600".encode()]


def laid_out(texts: list[bytes]) -> tuple[bytes, Any, Any]:
    data, positions = b"\x02", []
    for text in texts:
        positions.append(len(data))
        data += text + b"\x01"
    return data, np.array(positions, np.int64), np.array([len(t) for t in texts], np.int32)


@pytest.mark.bad_input
@pytest.mark.parametrize("seed", range(20))
def test_random_texts(seed: int) -> None:
    rng = random.Random(seed)
    texts = [b"".join(rng.choices(PIECES, k=rng.randrange(40))) for _ in range(30)]
    data, positions, sizes = laid_out(texts)
    maps = properties_maps(data, positions, sizes)
    wanted = [oracle.string_to_properties(oracle.java_text(text)) for text in texts]
    assert [list(m.items()) for m in maps.to_list()] == [list(m.items()) for m in wanted]
    batch_of({"m": maps}).validate(full=True)
    codes = tags_codes(data, positions, sizes)
    assert codes.dtype == np.int64
    assert codes.tolist() == [oracle.java_hash(text) for text in texts]


def test_known_codes() -> None:
    texts = [b"TagA", b"", b"topic#key", "\U0001f600".encode(), b"polygenelubricants"]
    codes = [2598919, 0, 386934027, 1772899, -(2**31)]
    assert tags_codes(*laid_out(texts)).tolist() == codes


def test_more_properties_than_a_record_could_hold() -> None:
    text = b"\x02".join(b"k%d\x01%d" % (i % 70_000, i) for i in range(100_000))
    maps = properties_maps(text, np.zeros(1, np.int64), np.array([len(text)], np.int32))
    assert list(maps[0].items()) == list(oracle.string_to_properties(text.decode()).items())


@pytest.mark.bad_input
def test_positions_outside_of_the_data() -> None:
    for position, size in [(-1, 1), (3, 1), (0, 4), (2**62, 1), (0, -1)]:
        place = np.array([position], np.int64), np.array([size], np.int32)
        for function in (properties_maps, tags_codes):
            with pytest.raises(StoreFormatError, match="outside"):
                function(b"abc", *place)
    for function in (properties_maps, tags_codes):
        with pytest.raises(StoreFormatError, match="one entry"):
            function(b"abc", np.zeros(2, np.int64), np.zeros(1, np.int32))
        assert len(function(b"", np.zeros(0, np.int64), np.zeros(0, np.int32))) == 0
