"""Goal: a broker.conf means the same as for 4.9.3's broker, and each ignored line is reported.
Method: the rules of java.util.Properties line by line, every key by name, and the defaults as
printed by the real MessageStoreConfig."""

from __future__ import annotations

import dataclasses
import math
import os
import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import pyrocketstore
from pyrocketstore.config.keys import BROKER_KEYS, NETTY_CLIENT_KEYS, NETTY_SERVER_KEYS
from pyrocketstore.config.message_store_config import (
    BrokerRole,
    FlushDiskType,
    MessageStoreConfig,
    detect_sizes,
    java_name,
    parse_java_value,
)
from pyrocketstore.config.properties_file import read_properties
from pyrocketstore.errors import StoreFormatError
from pyrocketstore.system.env import Env
from support.odd_values import posing

#: Results of the getters of a new MessageStoreConfig of 4.9.3, without paths and nulls.
JAVA_DEFAULTS = """
accessMessageInMemoryMaxRatio=40 bitMapLengthConsumeQueueExt=64 brokerRole=ASYNC_MASTER
checkCRCOnRecover=true cleanFileForciblyEnable=true cleanResourceInterval=10000
commitCommitLogLeastPages=4 commitCommitLogThoroughInterval=200 commitIntervalCommitLog=200
debugLockEnable=false defaultQueryMaxNum=32 deleteCommitLogFilesInterval=100
deleteConsumeQueueFilesInterval=100 deleteWhen=04 destroyMapedFileIntervalForcibly=120000
diskFallRecorded=true diskMaxUsedSpaceRatio=75 duplicationEnable=false enableBatchPush=false
enableConsumeQueueExt=false enableDLegerCommitLog=false enableLmq=false enableMultiDispatch=false
enableScheduleAsyncDeliver=false enableScheduleMessageStats=true
fastFailIfNoBufferInStorePool=false fileReservedTime=72 flushCommitLogLeastPages=4
flushCommitLogThoroughInterval=10000 flushCommitLogTimed=true flushConsumeQueueLeastPages=2
flushConsumeQueueThoroughInterval=60000 flushDelayOffsetInterval=10000 flushDiskType=ASYNC_FLUSH
flushIntervalCommitLog=500 flushIntervalConsumeQueue=1000 flushLeastPagesWhenWarmMapedFile=4096
haHousekeepingInterval=20000 haListenPort=10912 haSendHeartbeatInterval=5000
haSlaveFallbehindMax=268435456 haTransferBatchSize=32768 mappedFileSizeCommitLog=1073741824
mappedFileSizeConsumeQueue=6000000 mappedFileSizeConsumeQueueExt=50331648 maxHashSlotNum=5000000
maxIndexNum=20000000 maxLmqConsumeQueueNum=20000 maxMessageSize=4194304 maxMsgsNumBatch=64
maxTransferBytesOnMessageInDisk=65536 maxTransferBytesOnMessageInMemory=262144
maxTransferCountOnMessageInDisk=8 maxTransferCountOnMessageInMemory=32 messageIndexEnable=true
messageIndexSafe=false offsetCheckInSlave=false osPageCacheBusyTimeOutMills=1000
putMsgIndexHightWater=600000 redeleteHangedFileInterval=120000
scheduleAsyncDeliverMaxPendingLimit=2000 scheduleAsyncDeliverMaxResendNum2Blocked=3
slaveTimeout=3000 syncFlushTimeout=5000 transientStorePoolEnable=false transientStorePoolSize=5
useReentrantLockWhenPutMessage=true warmMapedFileEnable=false
"""
NULL_KEYS = {"dLegerGroup", "dLegerPeers", "dLegerSelfId", "preferredLeaderId", "haMasterAddress"}
PATH_KEYS = {"storePathRootDir", "storePathCommitLog", "readOnlyCommitLogStorePaths"}
#: Settings that are not keys of 4.9.3's MessageStoreConfig.
OWN_KEYS = set(
    """
    brokerIP1 listenPort maxOutstandingPuts maxOutstandingPutBytes maxUnforcedBytes
    maxKeySearchBytes stallWarningMills syncfsLeastFiles writeWithoutMmap syncFlushByService
    retentionAge retentionBytes retentionFreeBytes
    transactionCheckInterval transactionCheckMax transactionTimeOut
    enableCalcFilterBitMap expectConsumerNumUseFilter maxErrorRateOfBloomFilter
    filterDataCleanTimeSpan
    """.split()
)
NAMES = {
    java_name(field.name): field.name
    for field in dataclasses.fields(MessageStoreConfig)
    if field.name not in {"given", "source_path"}
}


class Directories(Env):
    """A file in place of a directory has no entries."""

    def listdir(self, path: str) -> list[str]:
        return super().listdir(path) if os.path.isdir(path) else []


def conf(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "broker.conf"
    path.write_bytes(text.encode("latin-1"))
    return path


def as_java(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return getattr(value, "name", str(value))


def test_every_default_is_the_real_one():
    config = MessageStoreConfig()
    expected = dict(pair.split("=") for pair in JAVA_DEFAULTS.split())
    expected["messageDelayLevel"] = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    known = expected.keys() | NULL_KEYS | PATH_KEYS
    assert known | OWN_KEYS == NAMES.keys()
    assert len(known) == 77
    for key, value in expected.items():
        assert as_java(getattr(config, NAMES[key])) == value, key
    for key in NULL_KEYS:
        assert getattr(config, NAMES[key]) is None, key
    assert config.store_path_root_dir == str(Path.home() / "store")


def test_names_map_both_ways():
    assert len(NAMES) == len(set(NAMES.values()))
    assert NAMES["checkCRCOnRecover"] == "check_crc_on_recover"
    assert NAMES["dLegerSelfId"] == "dleger_self_id"


def test_other_classes_keys_are_complete():
    assert [len(keys) for keys in (BROKER_KEYS, NETTY_SERVER_KEYS, NETTY_CLIENT_KEYS)] == [
        80,
        14,
        14,
    ]


def test_settings_are_checked():
    config = MessageStoreConfig().replace(flush_disk_type="SYNC_FLUSH", max_index_num=7)
    assert config.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert config.given == {"flush_disk_type", "max_index_num"}
    assert config.replace(broker_role=BrokerRole.SLAVE).given == config.given | {"broker_role"}
    with pytest.raises(StoreFormatError, match="nearest is mapped_file_size_commit_log"):
        config.replace(maped_file_size_commit_log=1)
    with pytest.raises(StoreFormatError, match="nearest is max_index_num"):
        config.replace(maxIndexNum=1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_index_num", "7"),
        ("max_index_num", 0),
        ("max_index_num", True),
        ("max_index_num", 1 << 31),
        ("mapped_file_size_commit_log", -1),
        ("check_crc_on_recover", 1),
        ("flush_disk_type", "SOMETIMES"),
        ("broker_role", FlushDiskType.ASYNC_FLUSH),
        ("delete_when", None),
        ("delete_when", 4),
    ],
)
def test_bad_settings_are_refused(name, value):
    with pytest.raises(StoreFormatError, match=name):
        MessageStoreConfig().replace(**{name: value})


@pytest.mark.parametrize(
    "name", ["max_index_num", "delete_when", "broker_ip1", "flush_disk_type", "retention_age"]
)
def test_the_type_of_a_setting_counts(name):
    """It must not be kept for what `isinstance` says of it."""
    for value in posing():
        with pytest.raises(StoreFormatError, match=f"{name}=<Mock>: must be"):
            MessageStoreConfig().replace(**{name: value})


def test_getters_that_change_a_value():
    ratios = {given: MessageStoreConfig(disk_max_used_space_ratio=given) for given in (0, 50, 99)}
    assert [c.disk_max_used_space_ratio for c in ratios.values()] == [10, 50, 95]
    sizes = [MessageStoreConfig(mapped_file_size_consume_queue=size) for size in (1, 20, 41)]
    assert [c.mapped_file_size_consume_queue for c in sizes] == [20, 20, 60]


def test_what_was_set_is_known():
    assert MessageStoreConfig().given == frozenset()
    assert MessageStoreConfig(max_index_num=5).given == {"max_index_num"}
    config = pickle.loads(pickle.dumps(MessageStoreConfig(max_index_num=5)))
    assert config == MessageStoreConfig(max_index_num=5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.max_index_num = 6


def test_a_broker_conf(tmp_path):
    path = conf(
        tmp_path,
        "# a broker\nbrokerClusterName=DefaultCluster\nbrokerIP1=10.0.0.1\nlistenPort = 10921\n"
        "flushDiskType SYNC_FLUSH\nmappedFileSizeCommitLog:\\\n   1048576\nfileReservedTime=+48\n",
    )
    config, warnings = MessageStoreConfig.from_broker_conf(path, strict=True)
    assert warnings == []
    assert config.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert config.mapped_file_size_commit_log == 1 << 20
    assert config.file_reserved_time == 48
    assert config.store_host == "10.0.0.1:10921"
    assert config.ha_listen_port == 10922
    assert config.source_path == str(path)
    assert {"mapped_file_size_commit_log", "file_reserved_time"} <= config.given
    assert "max_index_num" not in config.given


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("brokerIP1=localhost", "brokerIP1 'localhost', listenPort 10911"),
        ("brokerIP1=10.0.0.256", "brokerIP1 '10.0.0.256'"),
        ("listenPort=99999", "listenPort 99999"),
        ("listenPort=-1", "listenPort -1"),
    ],
)
def test_a_reader_needs_no_store_host(tmp_path, line, named):
    path = conf(tmp_path, line)
    root = tmp_path / "store"
    with pyrocketstore.open(root, preset="small") as store:
        store.put("t", b"x")
    with pyrocketstore.open(root, config=path, read_only=True) as store:
        assert [m.body for m in store.read("t")] == [b"x"]
        assert store.verify().ok
    with pytest.raises(StoreFormatError, match=named):
        pyrocketstore.open(root, config=path)
    assert not (root / "abort").exists()
    with pyrocketstore.open(root, config=path, store_host="10.0.0.1:5") as store:
        store.put("t", b"y")
        assert [m.store_host for m in store.read("t")][1] == "10.0.0.1:5"


def test_what_4_9_3_drops_is_dropped_and_said(tmp_path):
    path = conf(
        tmp_path,
        "brokerRole=SYNC_MASTER \nenableLmq=true \nhaSlaveFallbehindMax=10 \nmaxIndexNum=1_0\n"
        "maxHashSlotNum=0x10\nmaxMessageSize=2147483648\nmaxHashSlotNm=3\nmaxMsgsNumBatch=9\n"
        "maxMsgsNumBatch=x\nhaListenPort=1\n",
    )
    config, warnings = MessageStoreConfig.from_broker_conf(path)
    assert config.replace(ha_listen_port=10912) == MessageStoreConfig()
    numbers = [int(text.removeprefix(f"{path}:").split(":")[0]) for text in warnings]
    assert numbers == [1, 2, 3, 4, 5, 6, 7, 9, 10]
    assert "maxHashSlotNum" in warnings[6]
    with pytest.raises(StoreFormatError, match=r"broker\.conf:7"):
        MessageStoreConfig.from_broker_conf(path, strict=True)


def test_root_wins_over_the_file(tmp_path):
    def at(text: str) -> MessageStoreConfig:
        return MessageStoreConfig.from_broker_conf(conf(tmp_path, text), root="/new")[0]

    home = Path.home()
    assert at("").commit_log_path == "/new/commitlog"
    assert at("").store_path_root_dir == "/new"
    assert (
        at("storePathRootDir=/old\nstorePathCommitLog=/old/log").commit_log_path == "/new/commitlog"
    )
    assert (
        at("storePathRootDir=/old\nstorePathCommitLog=/older/log").commit_log_path == "/older/log"
    )
    named = at("storePathRootDir=/new\nstorePathCommitLog=/new/logs")
    assert named.commit_log_path == "/new/logs", "the directory is the one that the file names"
    assert at("storePathRootDir=/\nstorePathCommitLog=/new/logs").commit_log_path == "/new/logs"
    assert at(f"storePathCommitLog={home}/store/commitlog").commit_log_path == "/new/commitlog"
    assert at("storePathCommitLog=/a,/b").commit_log_paths == ("/a", "/b")


def test_ipv6_store_host():
    assert MessageStoreConfig(broker_ip1="2001:db8::1").store_host == "[2001:db8::1]:10911"
    assert MessageStoreConfig().store_host == "127.0.0.1:10911"


# java.util.Properties: each pair was seen in the real class
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        (" \t\fa \t:\f b ", {"a": "b "}),
        ("a b=c", {"a": "b=c"}),
        ("a = = b", {"a": "= b"}),
        ("a", {"a": ""}),
        ("=b", {"": "b"}),
        ("#a=b\n!c=d\n  # e\nf=#g", {"f": "#g"}),
        ("#a\\\nb=c", {"b": "c"}),
        ("a=b\\\n  c\\\r\n\t#d\re=f", {"a": "bc#d", "e": "f"}),
        ("a=b\\\n\nc=d", {"a": "b", "c": "d"}),
        ("\\\n#a=b\nc=d", {"c": "d"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\", {"a": "b"}),
        (r"a\=b\ c\:=d", {"a=b c:": "d"}),
        (r"a=\t\n\r\f\q\u00e9\u0041\\u0041", {"a": "\t\n\r\fqéA\\u0041"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=\u00e9\x0b\x85", {"a": "\u00e9\x0b\x85"}),
        ("\n\r\r\n  \n", {}),
    ],
)
def test_properties_syntax(text, expected):
    entries = read_properties(text.encode("latin-1"))
    assert {key: line.value for key, line in entries.items()} == expected


def test_properties_line_numbers():
    entries = read_properties(b"#\r\na=1\r\n\r\nb=\\\r\n2\rc=3\n")
    assert {key: line.number for key, line in entries.items()} == {"a": 2, "b": 4, "c": 6}


@pytest.mark.parametrize("text", [r"a=\u12", r"a=\u12g4", r"\u=1", r"a=\u00 1"])
def test_malformed_escape_is_refused(text):
    with pytest.raises(StoreFormatError, match="conf:2"):
        read_properties(b"\n" + text.encode(), "conf")


def escaped(text: str) -> str:
    return "".join(f"\\u{ord(c):04x}" if not c.isalnum() or ord(c) > 126 else c for c in text)


@settings(derandomize=True, max_examples=60)
@given(
    st.dictionaries(st.text(st.characters(max_codepoint=0xFFFF)), st.text(max_size=9), max_size=5)
)
@example({"a\\": "\\"})
def test_whatever_was_escaped_reads_back(values):
    values = {k: v for k, v in values.items() if all(ord(c) < 0x10000 for c in v)}
    data = "\r\n".join(f"{escaped(k)}={escaped(v)}" for k, v in values.items()).encode("ascii")
    assert {key: line.value for key, line in read_properties(data).items()} == values


def test_java_numbers():
    assert parse_java_value(int, "+007") == 7
    assert parse_java_value(int, "-2147483648") == -(1 << 31)
    assert parse_java_value(int, "9223372036854775807", True) == (1 << 63) - 1
    assert parse_java_value(bool, "TRUE") is True
    assert parse_java_value(bool, "yes") is False
    for text in ("", "+", "1.0", " 1", "1_0", "0x1", "2147483648", "1L"):
        with pytest.raises(ValueError, match=r"number|range"):
            parse_java_value(int, text)


def make_files(directory: Path, sizes: dict[str, int]) -> None:
    directory.mkdir(parents=True)
    for name, size in sizes.items():
        with (directory / name).open("wb") as file:
            file.truncate(size)


def test_sizes_come_from_the_files(tmp_path):
    log = {f"{i * 4096:020d}": 4096 for i in range(3)}
    make_files(tmp_path / "commitlog", log | {".hidden": 7, f"{3 * 4096:020d}": 0, "9" * 20: 8192})
    make_files(tmp_path / "consumequeue/T/0", {"0" * 20: 400, f"{400:020d}": 400})
    make_files(tmp_path / "consumequeue/T/1", {"0" * 20: 400, f"{400:020d}": 13})
    make_files(tmp_path / "consumequeue/U/0", {"0" * 20: 800})
    make_files(tmp_path / "consumequeue_ext/T/0", {"0" * 20: 77})
    (tmp_path / "consumequeue/V").mkdir()
    (tmp_path / "consumequeue/stray").write_bytes(b"x")
    config = MessageStoreConfig().at_root(tmp_path)
    found = detect_sizes(Directories(), str(tmp_path), config)
    assert found.mapped_file_size_commit_log == 4096
    assert found.mapped_file_size_consume_queue == 400
    assert found.mapped_file_size_consume_queue_ext == 77
    assert found.max_hash_slot_num == config.max_hash_slot_num


def test_given_sizes_stay(tmp_path):
    make_files(tmp_path / "commitlog", {"0" * 20: 4096})
    config = MessageStoreConfig().at_root(tmp_path)
    size = config.mapped_file_size_commit_log
    kept = detect_sizes(
        Directories(), str(tmp_path), config, frozenset({"mapped_file_size_commit_log"})
    )
    assert kept.mapped_file_size_commit_log == size
    asked = config.replace(mapped_file_size_commit_log=size)
    assert detect_sizes(Directories(), str(tmp_path), asked) == asked


def test_sizes_of_nothing_are_the_defaults(tmp_path):
    config = MessageStoreConfig().at_root(tmp_path / "missing")
    assert detect_sizes(Directories(), str(tmp_path / "missing"), config) is config


def test_settings_are_compared_and_shown_as_a_dataclass_does() -> None:
    """`given` and `source_path` say where settings come from, and count for neither."""
    config = MessageStoreConfig(store_path_root_dir="/s", max_index_num=7)
    same = MessageStoreConfig(store_path_root_dir="/s").replace(max_index_num=7)
    assert config == same
    assert hash(config) == hash(same)
    assert config != same.replace(max_index_num=8)
    assert config != 7
    names = [field.name for field in dataclasses.fields(MessageStoreConfig)]
    names = [name for name in names if name not in {"given", "source_path"}]
    values = ", ".join(f"{name}={getattr(config, name)!r}" for name in names)
    assert repr(config) == f"MessageStoreConfig({values})"
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.max_index_num = 8  # type: ignore[misc]


@pytest.mark.parametrize("name", ["clean_resource_interval", "max_message_size"])
@pytest.mark.parametrize("value", [0, -1])
def test_settings_that_must_be_positive(name: str, value: int) -> None:
    with pytest.raises(StoreFormatError, match=f"{name}={value}: must be positive"):
        MessageStoreConfig(**{name: value})


def test_a_least_number_of_files_for_syncfs_is_0_or_more() -> None:
    assert MessageStoreConfig(syncfs_least_files=0).syncfs_least_files == 0
    with pytest.raises(StoreFormatError, match="syncfs_least_files=-1"):
        MessageStoreConfig(syncfs_least_files=-1)


@pytest.mark.parametrize(
    ("value", "age"),
    [
        (timedelta(hours=36), timedelta(hours=36)),
        (90, timedelta(seconds=90)),
        (0.25, timedelta(milliseconds=250)),
        (None, None),
    ],
)
def test_an_age_is_a_timedelta_or_seconds(value: Any, age: timedelta | None) -> None:
    config = MessageStoreConfig(retention_age=value)
    assert config.retention_age == age
    assert config.enables_retention == (age is not None)
    assert not config.enables_cleaning


@pytest.mark.parametrize(
    "value", [0, -1, True, "1d", math.nan, math.inf, 10**30, timedelta(0), timedelta(days=-1)]
)
def test_an_age_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(StoreFormatError, match=r"retention_age=.*: must be a datetime.timedelta"):
        MessageStoreConfig(retention_age=value)


@pytest.mark.parametrize("name", ["retention_bytes", "retention_free_bytes"])
def test_a_limit_of_retention_is_0_or_more(name: str) -> None:
    assert MessageStoreConfig(**{name: 1 << 40}).enables_retention
    assert not MessageStoreConfig(**{name: 0}).enables_retention
    with pytest.raises(StoreFormatError, match=f"{name}=-1: must be 0, for no limit"):
        MessageStoreConfig(**{name: -1})


def test_retention_can_be_set_in_a_broker_conf(tmp_path: Path) -> None:
    path = conf(tmp_path, "retentionAge=3600\nretentionBytes=5000000000\n")
    config, warnings = MessageStoreConfig.from_broker_conf(path)
    assert (config.retention_age, config.retention_bytes) == (timedelta(hours=1), 5_000_000_000)
    assert warnings == []
    path = conf(tmp_path, "retentionAge=1h\n")
    config, warnings = MessageStoreConfig.from_broker_conf(path)
    assert config.retention_age is None
    assert "retentionAge='1h': not a number" in warnings[0]
