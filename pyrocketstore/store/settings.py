"""The settings that `open` accepts, with their types, for type checkers."""

from __future__ import annotations

import datetime
import os
from typing import Literal, TypedDict

from pyrocketstore.config.message_store_config import BrokerRole, FlushDiskType

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]


class StoreSettings(TypedDict, total=False):
    """The fields of MessageStoreConfig, which documents their units and defaults."""

    store_path_root_dir: AnyPath
    store_path_commit_log: AnyPath | None
    read_only_commit_log_store_paths: AnyPath | None
    mapped_file_size_commit_log: int
    mapped_file_size_consume_queue: int
    enable_consume_queue_ext: bool
    mapped_file_size_consume_queue_ext: int
    bit_map_length_consume_queue_ext: int
    max_message_size: int
    check_crc_on_recover: bool
    use_reentrant_lock_when_put_message: bool
    os_page_cache_busy_time_out_mills: int
    put_msg_index_hight_water: int
    debug_lock_enable: bool
    duplication_enable: bool
    flush_disk_type: FlushDiskType | Literal["SYNC_FLUSH", "ASYNC_FLUSH"]
    sync_flush_timeout: int
    flush_interval_commit_log: int
    flush_commit_log_timed: bool
    flush_commit_log_least_pages: int
    flush_commit_log_thorough_interval: int
    commit_interval_commit_log: int
    commit_commit_log_least_pages: int
    commit_commit_log_thorough_interval: int
    flush_interval_consume_queue: int
    flush_consume_queue_least_pages: int
    flush_consume_queue_thorough_interval: int
    transient_store_pool_enable: bool
    transient_store_pool_size: int
    fast_fail_if_no_buffer_in_store_pool: bool
    warm_maped_file_enable: bool
    flush_least_pages_when_warm_maped_file: int
    sync_flush_by_service: bool
    syncfs_least_files: int
    write_without_mmap: bool
    clean_resource_interval: int
    delete_commit_log_files_interval: int
    delete_consume_queue_files_interval: int
    destroy_maped_file_interval_forcibly: int
    redelete_hanged_file_interval: int
    delete_when: str
    disk_max_used_space_ratio: int
    file_reserved_time: int
    clean_file_forcibly_enable: bool
    retention_age: datetime.timedelta | float | None
    retention_bytes: int
    retention_free_bytes: int
    max_transfer_bytes_on_message_in_memory: int
    max_transfer_count_on_message_in_memory: int
    max_transfer_bytes_on_message_in_disk: int
    max_transfer_count_on_message_in_disk: int
    access_message_in_memory_max_ratio: int
    disk_fall_recorded: bool
    offset_check_in_slave: bool
    message_index_enable: bool
    message_index_safe: bool
    max_hash_slot_num: int
    max_index_num: int
    max_msgs_num_batch: int
    default_query_max_num: int
    broker_role: BrokerRole | Literal["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"]
    slave_timeout: int
    ha_listen_port: int
    ha_send_heartbeat_interval: int
    ha_housekeeping_interval: int
    ha_transfer_batch_size: int
    ha_master_address: str | None
    ha_slave_fallbehind_max: int
    enable_dleger_commit_log: bool
    dleger_group: str | None
    dleger_peers: str | None
    dleger_self_id: str | None
    preferred_leader_id: str | None
    enable_batch_push: bool
    message_delay_level: str
    flush_delay_offset_interval: int
    enable_schedule_message_stats: bool
    enable_schedule_async_deliver: bool
    schedule_async_deliver_max_pending_limit: int
    schedule_async_deliver_max_resend_num2_blocked: int
    enable_lmq: bool
    enable_multi_dispatch: bool
    max_lmq_consume_queue_num: int
    max_outstanding_puts: int
    max_outstanding_put_bytes: int
    max_unforced_bytes: int
    max_key_search_bytes: int
    stall_warning_mills: int
    transaction_time_out: int
    transaction_check_interval: int
    transaction_check_max: int
    enable_calc_filter_bit_map: bool
    expect_consumer_num_use_filter: int
    max_error_rate_of_bloom_filter: int
    filter_data_clean_time_span: int
    broker_ip1: str | None
    listen_port: int
