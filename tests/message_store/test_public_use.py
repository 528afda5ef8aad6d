"""Goal: a program can work with DefaultMessageStore from public names alone.
Method: put single messages and a batch, pull and decode them, and read the store's files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyrocketstore
from pyrocketstore import (
    DefaultMessageStore,
    GetMessageStatus,
    Message,
    MessageExtBatch,
    MessageExtBrokerInner,
    MessageStoreConfig,
    PutMessageStatus,
    StoreCorruptionError,
    StoreFormatError,
    StoreTypeError,
    decode_record,
    encode_messages,
    low_level,
    properties_to_string,
    string_to_properties,
)

SIZES = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 20000,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}


def test_a_program_of_public_names(tmp_path: Path) -> None:
    store = DefaultMessageStore(MessageStoreConfig().at_root(str(tmp_path)).replace(**SIZES))
    assert store.load()
    store.start()
    try:
        named = {"TAGS": "paid", "KEYS": "order-7"}
        single = MessageExtBrokerInner("orders", b"one", 0)
        single.properties, single.properties_string = named, properties_to_string(named)
        assert store.put_message(single).status is PutMessageStatus.PUT_OK
        messages = [Message("orders", b"two"), Message("orders", b"three", properties=named)]
        batch = MessageExtBatch("orders", encode_messages(messages), 0)
        assert store.put_messages(batch).message_count == 2
        assert store.wait_dispatched()
        found = store.get_message("group", "orders", 0, 0, 32, None)
        assert found.status is GetMessageStatus.FOUND
        pulled = found.messages()
        found.release()
        assert [message.body for message in pulled] == [b"one", b"two", b"three"]
    finally:
        store.shutdown()
    data = next((tmp_path / "commitlog").iterdir()).read_bytes()
    first = decode_record(data, 0, check_crc=True)
    assert (first.body, string_to_properties(first.properties_string)) == (b"one", named)
    assert first == pulled[0]
    with pytest.raises(StoreCorruptionError):
        decode_record(data[1:])


def test_the_parts_are_importable(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, env=low_level.Env(), **SIZES) as store:
        store.put("T", b"x", keys="k")
    size = SIZES["mapped_file_size_commit_log"]
    queue = low_level.MappedFileQueue(low_level.Env(), str(tmp_path / "commitlog"), size)
    assert queue.load()
    file = queue.mapped_files[0]
    assert isinstance(file, low_level.MappedFile)
    queue.shutdown(0)
    undocumented = [name for name in low_level.__all__ if not getattr(low_level, name).__doc__]
    assert undocumented == []
    assert low_level.__all__ == sorted(low_level.__all__)


ODD_NUMBERS = [0.5, float("nan"), True, None, "1", b"1", [], 2**63, 10**5000]


@pytest.mark.parametrize("value", ODD_NUMBERS, ids=lambda value: type(value).__name__)
def test_wrong_numbers_of_the_parts(tmp_path: Path, value: Any) -> None:
    env, root = low_level.Env(), str(tmp_path)
    file = low_level.MappedFile(env, f"{root}/{0:020d}", 4096, create=True)
    index = low_level.IndexFile(env, f"{root}/index", 7, 20, create=True)
    checkpoint = low_level.StoreCheckpoint(env, f"{root}/checkpoint")
    checkpoint.physic_msg_timestamp = 7
    for call in (
        lambda: file.set_positions(value),
        lambda: setattr(file, "wrote", value),
        lambda: setattr(file, "flushed", value),
        lambda: setattr(file, "store_timestamp", value),
        lambda: file.zero_tail(value),
        lambda: index.put_hash(value, 0, 0),
        lambda: index.put_hash(1, value, 0),
        lambda: index.select_hash(value, 1, 0, 9),
        lambda: index.select_hash(1, value, 0, 9),
        lambda: setattr(checkpoint, "physic_msg_timestamp", value),
        lambda: checkpoint.begin_log_file(value, 0),
        lambda: checkpoint.begin_log_file(0, value),
    ):
        with pytest.raises(StoreFormatError):
            call()
    checkpoint.flush()
    assert low_level.StoreCheckpoint(env, f"{root}/checkpoint").physic_msg_timestamp == 7
    assert (file.wrote, file.flushed, file.store_timestamp) == (0, 0, 0)
    file.destroy()
    index.destroy()
    assert os.listdir(root) == ["checkpoint"]


def test_wrong_arguments_of_the_parts(tmp_path: Path) -> None:
    env, root = low_level.Env(), str(tmp_path)
    ext = low_level.ConsumeQueueExt("t", 0, f"{root}/ext", 1000, env)
    paths = low_level.MultiPathMappedFileQueue(env, (root,), (), 20)
    wrong: Any = 1.5
    nothing: Any = None
    for of_type in (
        lambda: ext.put(wrong),
        lambda: ext.end_of_units(np.arange(3)),  # type: ignore[arg-type]
        lambda: paths.add_file(wrong),
        lambda: low_level.StoreCheckpoint(nothing, f"{root}/checkpoint"),
        lambda: low_level.MappedFileQueue(nothing, root, 20),
        lambda: low_level.MappedFileQueue(env, root, wrong),
    ):
        with pytest.raises(StoreTypeError, match="must be a"):
            of_type()
    for size in (0, -5):
        with pytest.raises(StoreFormatError, match=f"mapped_file_size {size}: must be 1"):
            low_level.MappedFileQueue(env, root, size)
    with pytest.raises(StoreFormatError, match="store_paths is empty"):
        low_level.MultiPathMappedFileQueue(env, (), (), 20)
    assert os.listdir(root) == []


def test_bytes_with_gaps_are_refused_by_the_parts(tmp_path: Path) -> None:
    file = low_level.MappedFile(low_level.Env(), f"{tmp_path}/{0:020d}", 4096, create=True)
    index = low_level.IndexFile(low_level.Env(), f"{tmp_path}/index", 7, 20, create=True)
    hashes = memoryview(np.arange(4, dtype=np.int32))[::2]
    offsets = np.arange(2)
    for call in (
        lambda: file.append_message(memoryview(b"abcdef")[::2]),
        lambda: file.overwrite(0, memoryview(b"abcdef")[::2]),
        lambda: index.put_hashes(hashes, offsets, offsets),  # type: ignore[arg-type]
        lambda: index.select_hashes(hashes, 1, 0, 9),  # type: ignore[arg-type]
    ):
        with pytest.raises(BufferError, match="not C-contiguous"):
            call()
    assert file.wrote == 0
    file.destroy()
    index.destroy()


def test_a_message_is_not_made_by_its_class() -> None:
    with pytest.raises(StoreTypeError, match=r"made by decode_record\(\)"):
        pyrocketstore.MessageExt()
