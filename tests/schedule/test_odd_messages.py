"""Goal: no delayed message, setting or file holds up the delivery of another one, and each message
that a put has accepted can be delivered.
Method: damaged messages, offsets, queues and logs of small stores; levels that change."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import MessageExtBrokerInner, PutMessageStatus, Store, StoreFormatError
from pyrocketstore.commit_log._puts import make_result
from pyrocketstore.commit_log.log import MAX_DELAY_LEVELS
from pyrocketstore.consume_queue import retries
from pyrocketstore.files._mapped_file import FileSequence
from pyrocketstore.record._message import properties_to_string
from pyrocketstore.record.message import SCHEDULE_TOPIC
from pyrocketstore.schedule.service import SLEEP_MAX_MS, ScheduleMessageService
from pyrocketstore.system.env import Env
from support.broken_env import broken
from support.gates import wait_until
from support.sizes import SIZES

NOW, NEVER = 1, 2
LEVELS: dict[str, Any] = {**SIZES, "message_delay_level": "0s 2h"}


def opened(path: Path, **settings: Any) -> Store:
    return pyrocketstore.open(path, **{**LEVELS, **settings})


def bodies(store: Store, topic: str = "t") -> list[bytes]:
    if topic not in store.topics():
        return []
    return [message.body for message in store.read(topic)]


def awaited(store: Store, count: int, topic: str = "t") -> list[bytes]:
    wait_until(lambda: store.max_offset(topic, 0) >= count, f"{count} deliveries")
    return bodies(store, topic)


def service_of(store: Store) -> ScheduleMessageService:
    service = store.message_store.services.schedule_service
    assert service is not None
    return service


def put_raw(store: Store, properties: dict[str, str], queue_id: int = NOW - 1) -> None:
    """Put a message straight into the topic of delayed messages."""
    message = MessageExtBrokerInner(
        SCHEDULE_TOPIC, b"raw", queue_id, properties_string=properties_to_string(properties)
    )
    assert store.message_store.put_message(message).status is PutMessageStatus.PUT_OK


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"REAL_TOPIC": "other", "REAL_QID": "x", "DELAY": "1"},
        {"REAL_TOPIC": "other", "REAL_QID": "-1", "DELAY": "1"},
        {"REAL_TOPIC": "other", "REAL_QID": "2147483647", "DELAY": "1"},
        {"REAL_TOPIC": "../../other", "REAL_QID": "0", "DELAY": "1"},
        {"REAL_TOPIC": "x" * 128, "REAL_QID": "0", "DELAY": "1"},
        {"REAL_TOPIC": SCHEDULE_TOPIC, "REAL_QID": "0", "DELAY": "1"},
        {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "0", "DELAY": "1"},
    ],
)
def test_a_message_that_cannot_be_delivered(tmp_path: Path, properties: dict[str, str]) -> None:
    with opened(tmp_path) as store:
        put_raw(store, properties)
        store.put("t", b"good", delay_level=NOW)
        assert awaited(store, 1) == [b"good"]
        assert service_of(store).offsets.next_offset(NOW) == 2
    assert not (tmp_path.parent / "other").exists()


def test_a_message_without_its_level_is_delivered(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put_raw(store, {"REAL_TOPIC": "t", "REAL_QID": "0"})
        store.put("t", b"good", delay_level=NOW)
        assert awaited(store, 2) == [b"raw", b"good"]


def test_a_unit_that_names_another_message_delivers_nothing(tmp_path: Path) -> None:
    """After damage, the bytes of a lost message may have become those of another one."""
    with opened(tmp_path, message_delay_level="1s 2h") as store:
        other = store.put("t", b"never", delay_level=2)
        store.put("t", b"lost!", delay_level=1)
        store.put("t", b"later", delay_level=1)
        store.wait_dispatched()
        queue = tmp_path / "consumequeue" / SCHEDULE_TOPIC / "0" / f"{0:020d}"
        with queue.open("r+b") as units:
            units.write(other.phy_offset.to_bytes(8, "big"))
        assert awaited(store, 1) == [b"later"]


def test_a_file_of_the_queue_that_is_missing_holds_up_no_message_behind_it(tmp_path: Path) -> None:
    """Its messages cannot be found before a recovery."""
    with opened(tmp_path, message_delay_level="1s 2h", mapped_file_size_consume_queue=400) as store:
        for number in range(60):  # three files
            store.put("t", b"%d" % number, delay_level=1)
        store.wait_dispatched()
        queue = store.message_store.get_consume_queue(SCHEDULE_TOPIC, 0)
        assert queue is not None
        files = queue.mapped_file_queue
        first, middle, last = files.mapped_files
        files.mapped_files = FileSequence([first, last])
        expected = [b"%d" % number for number in (*range(20), *range(40, 60))]
        assert awaited(store, 40) == expected
        files.mapped_files = FileSequence([first, middle, last])


def test_a_message_with_a_damaged_body_is_left_out(tmp_path: Path) -> None:
    """Delivered, it would have a valid CRC."""
    with opened(tmp_path, message_delay_level="1s 2h") as store:
        result = store.put("t", b"body", delay_level=1)
        store.put("t", b"good", delay_level=1)
        file = min((tmp_path / "commitlog").iterdir())
        with file.open("r+b") as log:
            position = result.phy_offset - int(file.name)
            log.seek(file.read_bytes().index(b"body", position))
            log.write(b"?")
        assert awaited(store, 1) == [b"good"]


@pytest.mark.parametrize("topic", ["主" * 43, "a\x02b", "a\x01b", SCHEDULE_TOPIC])
def test_a_topic_that_cannot_be_delivered_to_is_refused(tmp_path: Path, topic: str) -> None:
    with opened(tmp_path) as store:
        message = MessageExtBrokerInner(topic, b"x", 0, properties={"DELAY": "1"})
        assert store.message_store.put_message(message).status is PutMessageStatus.MESSAGE_ILLEGAL
        assert store.message_store.get_max_phy_offset() == 0


def test_a_record_that_would_be_too_large_for_its_real_topic_is_refused(tmp_path: Path) -> None:
    """The real topic is longer than SCHEDULE_TOPIC_XXXX: the delivered record is larger."""
    topic = "t" * 127
    with opened(tmp_path, max_message_size=3000) as store:
        for size in range(2500, 2800):
            try:
                store.put(topic, b"x" * size, delay_level=NOW)
            except pyrocketstore.PutError as error:
                assert error.status is PutMessageStatus.MESSAGE_ILLEGAL
                break
        else:
            pytest.fail("no record was too large")
        assert size > 2500
        assert len(awaited(store, size - 2500, topic)) == size - 2500


@pytest.mark.parametrize("offset", [9, 2**63 - 1])
def test_an_offset_behind_the_end_skips_no_later_message(tmp_path: Path, offset: int) -> None:
    """The queue was removed or cut, and gets new messages at once."""
    file = tmp_path / "config" / "delayOffset.json"
    file.parent.mkdir()
    file.write_text(f'{{\n\t"offsetTable":{{1:{offset},7:{offset}\n\t}}\n}}')
    sent = [b"%d" % number for number in range(20)]
    with opened(tmp_path) as store:
        for body in sent:
            store.put("t", body, delay_level=NOW)
        assert awaited(store, 20) == sent
    assert file.read_text() == '{\n\t"offsetTable":{1:20,7:0\n\t}\n}'


def test_a_level_that_the_setting_has_no_longer(tmp_path: Path) -> None:
    with opened(tmp_path, message_delay_level="0s 2h 2s") as store:
        store.put("t", b"third", delay_level=3)
        store.put("t", b"second", delay_level=2)
    with opened(tmp_path) as store:
        assert awaited(store, 1) == [b"third"]
    # A shorter level makes an earlier message due.
    with opened(tmp_path, message_delay_level="0s 0s") as store:
        assert awaited(store, 2) == [b"third", b"second"]


def test_verify_accepts_times_of_delivery_by_earlier_levels(tmp_path: Path) -> None:
    with opened(tmp_path, message_delay_level="1h") as store:
        store.put("t", b"never", delay_level=1)
    with opened(tmp_path, message_delay_level="2h") as store:
        assert store.verify().problems == []
    file = tmp_path / "consumequeue" / SCHEDULE_TOPIC / "0" / f"{0:020d}"
    with file.open("r+b") as units:
        units.seek(12)
        units.write((17).to_bytes(8, "big"))
    with pyrocketstore.open(tmp_path, read_only=True, **SIZES) as store:
        assert "the tags code 17" in store.verify().problems[0].text


@pytest.mark.parametrize(
    "text", ["", "1", "s", "1x", "1_0s", " 1s", "1s  2s", "1.5s", "１x", "9" * 30 + "s"]
)
def test_levels_that_4_9_3_cannot_read(tmp_path: Path, text: str) -> None:
    with pytest.raises(StoreFormatError, match="messageDelayLevel"):
        opened(tmp_path, message_delay_level=text)


def test_many_levels(tmp_path: Path) -> None:
    levels = " ".join(["0s"] * 80 + ["2h"])
    with opened(tmp_path, message_delay_level=levels) as store:
        for level in (1, 64, 65, 80, 81):
            store.put("t", b"%d" % level, delay_level=level)
        assert sorted(awaited(store, 4)) == [b"1", b"64", b"65", b"80"]
        assert [row[:4] for row in store.delayed()] == [(81, 7_200_000, "t", 1)]
    for levels in ("0s " * MAX_DELAY_LEVELS + "0s", "9223372036854775807d"):
        with pytest.raises(StoreFormatError, match="messageDelayLevel"):
            opened(tmp_path, message_delay_level=levels)


def test_messages_that_cleaning_removes_before_they_are_due(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as store:
        for number in range(40):
            store.put("t", b"%d" % number + bytes(4000), delay_level=NEVER)
        store.wait_dispatched()
        log = store.message_store.commit_log.mapped_file_queue
        log.delete_expired_file_by_time(0, clean_immediately=True)
        left = sum(row.message_count for row in store.delayed())
        assert 0 < left < 40
        service_of(store).wakeup()
        offsets = service_of(store).offsets
        wait_until(lambda: offsets.next_offset(NEVER) == 40 - left, "a correction")
        assert "outside of its queue" in caplog.text
        store.put("t", b"now", delay_level=NOW)
        assert awaited(store, 1) == [b"now"]


def test_the_topic_of_delayed_messages_is_never_unused(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put("t", b"now", delay_level=NOW)
        store.put("t", b"never", delay_level=NEVER)
        assert awaited(store, 1) == [b"now"]
        store.message_store.clean_unused_topic([])
        assert store.topics() == [SCHEDULE_TOPIC]
        store.put("t", b"again", delay_level=NOW)
        assert awaited(store, 1) == [b"again"]


def test_a_slave_delivers_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put("t", b"now", delay_level=NEVER)
    text = '{"offsetTable":{1:5,2:7}}'
    file = tmp_path / "config" / "delayOffset.json"
    file.write_text(text)
    with opened(tmp_path, broker_role="SLAVE", message_delay_level="0s 0s") as store:
        assert store.message_store.services.schedule_service is None
        assert bodies(store) == []
    assert file.read_text() == text


@pytest.mark.parametrize(
    "settings",
    [
        {"enable_consume_queue_ext": True},
        {"transient_store_pool_enable": True, "transient_store_pool_size": 3},
        {"flush_disk_type": "SYNC_FLUSH"},
        {"max_unforced_bytes": 1 << 14, "flush_interval_commit_log": 10**7},
        {"enable_schedule_async_deliver": True, "flush_disk_type": "SYNC_FLUSH"},
    ],
)
def test_other_settings(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Each message is delivered once over three clean stops, in order."""
    sent = [b"%d" % number + bytes(300) for number in range(300)]
    for turn in range(3):
        with opened(tmp_path, **settings) as store:
            for body in sent[turn * 100 : turn * 100 + 100]:
                store.put("t", body, tags="A", delay_level=NOW)
            if turn:
                awaited(store, 100 * turn)
    with opened(tmp_path, **settings) as store:
        assert awaited(store, 300) == sent
        assert store.verify().ok
    with opened(tmp_path, **settings) as store:
        assert not service_of(store).has_messages()
        assert bodies(store) == sent


def test_an_idle_service_does_not_poll(tmp_path: Path) -> None:
    with opened(tmp_path, flush_delay_offset_interval=1) as store:
        service = service_of(store)
        store.put("t", b"now", delay_level=NOW)
        awaited(store, 1)
        wait_until(lambda: not service.offsets.is_changed(), "a write of the offsets")
        assert service.run_due() is None
        store.put("t", b"never", delay_level=NEVER)
        store.wait_dispatched()
        assert service.run_due() == SLEEP_MAX_MS


def test_a_refusal_is_logged_once_and_tried_less_often(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as store:
        service = service_of(store)
        put = service._put
        service._put = lambda message: make_result(PutMessageStatus.SERVICE_NOT_AVAILABLE)
        store.put("t", b"one", delay_level=NOW)
        store.wait_dispatched()
        wait_until(lambda: "delivery tries again" in caplog.text, "a refusal")
        pauses = [service.run_due() for _ in range(10)]
        assert pauses == sorted(pauses, key=lambda pause: pause or 0)
        assert pauses[-1] == 10_000
        assert caplog.text.count("delivery tries again") == 1
        service._put = put
        service.wakeup()
        assert awaited(store, 1) == [b"one"]


def test_an_interrupt_after_the_append_delays_no_delivery(tmp_path: Path) -> None:
    """A signal handler may raise at any step after the message is in the log."""
    with opened(tmp_path, flush_delay_offset_interval=1) as store:
        store.put("t", b"first", delay_level=NOW)
        awaited(store, 1)
        wait_until(lambda: not service_of(store).offsets.is_changed(), "a write of the offsets")
        time.sleep(0.05)  # the service waits without a time limit
        engine = store.message_store
        append = engine.commit_log.put_message

        def interrupted(message: Any) -> Any:
            result = append(message)
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            return result

        engine.commit_log.put_message = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            store.put("t", b"now", delay_level=NOW)
        assert awaited(store, 2) == [b"first", b"now"]


def test_where_the_thread_cannot_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(self: ScheduleMessageService) -> None:
        raise RuntimeError("can't start new thread")

    with opened(tmp_path) as store:
        with monkeypatch.context() as patch:
            patch.setattr(ScheduleMessageService, "start", start)
            assert store.put("t", b"one", delay_level=NOW).queue_offset == 0
        store.put("t", b"two", delay_level=NOW)
        assert awaited(store, 2) == [b"one", b"two"]


def test_a_full_device_holds_up_deliveries_and_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue of delayed messages gets no room; then it does, and is repaired."""
    monkeypatch.setattr(retries, "RETRY_INTERVAL_S", 0.001)
    env, is_full = Env(), True

    def fallocate(original: Any, fd: int, *arguments: Any) -> int:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if is_full and "/consumequeue/" in path:
            return -errno.ENOSPC
        return int(original(fd, *arguments))

    with opened(tmp_path, env=env) as store, broken(env, "fallocate", fallocate):
        store.put("t", b"one", delay_level=NOW)
        engine = store.message_store
        wait_until(engine.running_flags.is_write_error, "a failed write")
        is_full = False
        engine.services.repair_service.do_once()
        wait_until(lambda: not engine.running_flags.is_write_error(), "a repair")
        store.put("t", b"two", delay_level=NOW)
        assert awaited(store, 2) == [b"one", b"two"]


def test_the_clock_was_set_forward(tmp_path: Path) -> None:
    env, shift = Env(), 0
    with broken(env, "now_ms", lambda original: original() + shift), opened(tmp_path, env=env) as s:
        s.put("t", b"later", delay_level=NEVER)
        s.wait_dispatched()
        shift = 7_200_001
        service_of(s).wakeup()  # as after SLEEP_MAX_MS
        assert awaited(s, 1) == [b"later"]
