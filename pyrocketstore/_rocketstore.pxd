"""The declarations of csrc, and the checks that turn a status or an errno into an exception."""
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "env.h" nogil:
    enum:
        RS_ENTRY_FILE
    ctypedef struct rs_env:
        int (*open)(const char *path, int flags, int mode) noexcept nogil
        int (*close)(int fd) noexcept nogil
        int (*ftruncate)(int fd, int64_t size) noexcept nogil
        int (*fallocate)(int fd, int64_t position, int64_t size) noexcept nogil
        int (*punch)(int fd, int64_t position, int64_t size) noexcept nogil
        int (*mmap)(int fd, int64_t size, int writable, void **base) noexcept nogil
        int (*munmap)(void *base, int64_t size) noexcept nogil
        int (*msync)(void *base, int64_t size) noexcept nogil
        int (*madvise)(void *base, int64_t size, int advice) noexcept nogil
        int (*fdatasync)(int fd) noexcept nogil
        int (*fsync)(int fd) noexcept nogil
        int64_t (*pread)(int fd, void *buffer, int64_t size, int64_t position) noexcept nogil
        int64_t (*pwrite)(int fd, const void *buffer, int64_t size, int64_t position) noexcept nogil
        int (*rename)(const char *source, const char *target) noexcept nogil
        int (*unlink)(const char *path) noexcept nogil
        int (*mkdir)(const char *path, int mode) noexcept nogil
        int (*rmdir)(const char *path) noexcept nogil
        int (*fsync_directory)(const char *path) noexcept nogil
        int (*lock)(int fd) noexcept nogil
        int64_t (*file_size)(int fd) noexcept nogil
        int64_t (*now_ms)() noexcept nogil
        int64_t (*monotonic_ns)() noexcept nogil
        int (*mlock)(void *base, int64_t size, int on_fault) noexcept nogil
        int (*munlock)(void *base, int64_t size) noexcept nogil
        int (*lock_directory)(const char *path) noexcept nogil
        int (*unlock)(int fd) noexcept nogil
        int (*open_unnamed)(const char *directory, int mode) noexcept nogil
        int (*link_unnamed)(int fd, const char *path) noexcept nogil
        int (*link)(const char *source, const char *target) noexcept nogil
        int64_t (*link_count)(int fd) noexcept nogil
        int64_t (*list_directory)(const char *path, int follow, char **entries) noexcept nogil
        int32_t fsync_is_final
        int32_t fsync_error

    void rs_env_posix(rs_env *env) noexcept

    ctypedef struct rs_event:
        pass
    rs_event *rs_event_new() noexcept
    void rs_event_free(rs_event *event) noexcept
    uint64_t rs_event_sequence(const rs_event *event) noexcept
    void rs_event_signal(rs_event *event) noexcept
    int rs_event_wait(rs_event *event, uint64_t seen, int64_t timeout_ms) noexcept

    ctypedef struct rs_lock:
        pass
    rs_lock *rs_lock_new() noexcept
    void rs_lock_free(rs_lock *lock) noexcept
    int rs_lock_try(rs_lock *lock) noexcept
    void rs_lock_take(rs_lock *lock) noexcept
    int rs_lock_take_for(rs_lock *lock, int64_t timeout_ms) noexcept
    void rs_lock_release(rs_lock *lock) noexcept


cdef extern from "fsync.h" nogil:
    enum:
        RS_FAILED_OPEN
        RS_FAILED_MSYNC
        RS_FAILED_FDATASYNC
        RS_FAILED_FSYNC
        RS_FAILED_FSYNC_DIRECTORY
        RS_FAILED_SYNCFS
        RS_FSYNC_REFUSED
        RS_FAILED_CALL
    int rs_fsync_error(const rs_env *env) noexcept
    int rs_opened(int fd) noexcept
    int rs_msync(const rs_env *env, void *base, int64_t size) noexcept
    int rs_fdatasync(const rs_env *env, int fd) noexcept
    int rs_fsync(const rs_env *env, int fd) noexcept
    int rs_fsync_directory(const rs_env *env, const char *path) noexcept
    int rs_syncfs(const rs_env *env, int fd) noexcept


cdef extern from "bytes.h" nogil:
    int16_t rs_load_be16(const uint8_t *p) noexcept
    int32_t rs_load_be32(const uint8_t *p) noexcept
    int64_t rs_load_be64(const uint8_t *p) noexcept
    void rs_store_be16(uint8_t *p, int16_t value) noexcept
    void rs_store_be32(uint8_t *p, int32_t value) noexcept
    void rs_store_be64(uint8_t *p, int64_t value) noexcept
    enum:
        RS_RECORD_START
    void rs_store_record(uint8_t *to, const uint8_t *record, int64_t size) noexcept

    ctypedef struct rs_cursor:
        const uint8_t *start
        int64_t position
        int64_t size
        int32_t ok
    rs_cursor rs_cursor_over(const uint8_t *start, int64_t size) noexcept
    const uint8_t *rs_cursor_take(rs_cursor *c, int64_t count) noexcept
    int32_t rs_cursor_be32(rs_cursor *c) noexcept
    int64_t rs_cursor_be64(rs_cursor *c) noexcept
    int16_t rs_cursor_be16(rs_cursor *c) noexcept
    int8_t rs_cursor_i8(rs_cursor *c) noexcept

    int64_t rs_load_acquire(const int64_t *p) noexcept
    void rs_store_release(int64_t *p, int64_t value) noexcept
    int64_t rs_fetch_add(int64_t *p, int64_t value) noexcept
    int rs_compare_and_swap(int64_t *p, int64_t expected, int64_t value) noexcept
    int32_t rs_load_acquire32(const int32_t *p) noexcept
    void rs_store_release32(int32_t *p, int32_t value) noexcept
    int32_t rs_load_be32_acquire(const uint8_t *p) noexcept
    void rs_store_be32_release(uint8_t *p, int32_t value) noexcept
    void rs_prefetch(const void *p) noexcept
    void rs_prefetch_read(const void *p) noexcept
    void rs_prefetch_far(const void *p) noexcept

    int rs_lowest_bit(uint64_t v) noexcept
    uint64_t rs_places(const uint8_t *p, int64_t size, uint8_t byte) noexcept
    int64_t rs_find_byte(const uint8_t *p, int64_t size, uint8_t byte) noexcept
    int rs_has_separator(const uint8_t *p, int64_t size, uint8_t mark) noexcept
    void rs_copy_short(uint8_t *to, const uint8_t *source, int64_t size) noexcept
    int32_t rs_utf8_next(const uint8_t *p, int64_t size, uint32_t *code) noexcept
    int32_t rs_java_hash(int32_t hash, const uint8_t *p, int64_t size) noexcept
    int32_t rs_java_hash_latin1(int32_t hash, const uint8_t *p, int64_t size) noexcept
    int32_t rs_java_hash_utf16(int32_t *hash, const uint16_t *p, int64_t size) noexcept
    int32_t rs_java_hash_utf32(int32_t *hash, const uint32_t *p, int64_t size) noexcept


cdef extern from "rocketstore.h" nogil:
    enum:
        RS_MESSAGE_MAGIC_CODE
        RS_BLANK_MAGIC_CODE
        RS_MESSAGE_MAGIC_CODE_V2
        RS_END_FILE_MIN_BLANK_LENGTH
        RS_MESSAGE_POSITION_MAGIC
        RS_MESSAGE_POSITION_BODY_CRC
        RS_MESSAGE_POSITION_QUEUE_ID
        RS_MESSAGE_POSITION_QUEUE_OFFSET
        RS_MESSAGE_POSITION_PHYSICAL_OFFSET
        RS_MESSAGE_POSITION_SYS_FLAG
        RS_MESSAGE_POSITION_BORN_HOST
        RS_HOST_V4_SIZE
        RS_HOST_V6_SIZE
        RS_MESSAGE_FIXED_SIZE
        RS_MESSAGE_MIN_SIZE
        RS_MAX_TOPIC_SIZE
        RS_MAX_PROPERTIES_SIZE
        RS_COMPRESSED_FLAG
        RS_MULTI_TAGS_FLAG
        RS_TRANSACTION_NOT_TYPE
        RS_TRANSACTION_PREPARED_TYPE
        RS_TRANSACTION_COMMIT_TYPE
        RS_TRANSACTION_ROLLBACK_TYPE
        RS_TRANSACTION_MASK
        RS_BORNHOST_V6_FLAG
        RS_STOREHOSTADDRESS_V6_FLAG
        RS_CQ_STORE_UNIT_SIZE
        RS_CQ_EXT_MIN_UNIT_SIZE
        RS_CQ_EXT_END_BLANK_SIZE
        RS_INDEX_HEADER_SIZE
        RS_INDEX_HASH_SLOT_SIZE
        RS_INDEX_ENTRY_SIZE
        RS_INDEX_CHUNK
        RS_CHECKPOINT_SIZE

    int64_t RS_CQ_EXT_MAX_ADDR

    ctypedef enum rs_status:
        RS_OK
        RS_BLANK
        RS_END
        RS_TORN
        RS_BAD_MAGIC
        RS_BAD_CRC
        RS_BAD_SIZE
        RS_BAD_OFFSET
        RS_BAD_PROPERTIES
        RS_OTHER_QUEUE
        RS_END_OF_FILE
        RS_NEED_FILE
        RS_REPEAT
        RS_FULL
        RS_NEED_PYTHON
        RS_RETRY
        RS_IO_ERROR
        RS_NO_MEMORY
        RS_TOO_LARGE
        RS_CLOSED
        RS_BUSY

    ctypedef struct rs_record:
        int64_t queue_offset
        int64_t phy_offset
        int64_t born_timestamp
        int64_t store_timestamp
        int64_t prepared_transaction_offset
        int32_t total_size
        int32_t body_crc
        int32_t queue_id
        int32_t flag
        int32_t sys_flag
        int32_t reconsume_times
        int32_t born_host_size
        int32_t store_host_position
        int32_t store_host_size
        int32_t body_position
        int32_t body_size
        int32_t topic_position
        int32_t topic_size
        int32_t properties_position
        int32_t properties_size

    ctypedef struct rs_span:
        int32_t position
        int32_t size

    ctypedef struct rs_properties:
        rs_span tags
        rs_span keys
        rs_span uniq_key
        rs_span delay
        rs_span multi_dispatch
        rs_span multi_queue_offset

    ctypedef struct rs_outgoing:
        const uint8_t *body
        const uint8_t *topic
        const uint8_t *properties
        int64_t body_size
        int64_t born_timestamp
        int64_t prepared_transaction_offset
        int32_t topic_size
        int32_t properties_size
        int32_t queue_id
        int32_t flag
        int32_t sys_flag
        int32_t reconsume_times
        int32_t born_host_size
        int32_t store_host_size
        uint8_t born_host[20]
        uint8_t store_host[20]

    enum:
        RS_FILL_NONE
        RS_FILL_FOLIOS
        RS_FILL_PAGES

    ctypedef struct rs_mapped_file:
        uint8_t *base
        uint8_t *buffer
        const char *path
        const rs_env *env
        int64_t file_from_offset
        int64_t file_size
        int64_t wrote
        int64_t appended
        int64_t appended_timestamp
        int64_t data_end
        int64_t flushed
        int64_t confirmed
        int64_t allocated
        int64_t confirm_step
        int64_t populate
        int64_t store_timestamp
        rs_lock *fill_lock
        int32_t zero_fill
        int32_t by_write

    ctypedef struct rs_queue:
        rs_mapped_file *file
        int64_t max_physic_offset
        int64_t min_logic_offset
        int64_t unit_count
        int64_t repeated_at
        int32_t needs_python
        int32_t dirty
        int32_t unmapped
        int32_t unmapped_left

    ctypedef struct rs_index_file:
        uint8_t *base
        rs_mapped_file *file
        uint8_t *confirmed_chunks
        int64_t hash_slot_num
        int64_t index_num
        int64_t begin_timestamp
        int64_t end_timestamp
        int64_t begin_phy_offset
        int64_t end_phy_offset
        int32_t hash_slot_count
        int32_t index_count

    ctypedef uint32_t (*rs_crc32_fn)(uint32_t crc, const uint8_t *p, size_t size) noexcept nogil
    uint32_t rs_crc32(uint32_t crc, const uint8_t *p, size_t size) noexcept
    const char **rs_crc32_kernels() noexcept
    rs_crc32_fn rs_crc32_by_name(const char *name) noexcept
    const char *rs_crc32_kernel_name() noexcept
    int rs_crc32_select(const char *name) noexcept
    const char *rs_status_name(int status) noexcept


cdef inline int check(int status, object path, int64_t position) except -1:
    """Raise StoreCorruptionError unless `status` is RS_OK."""
    if status == RS_OK:
        return 0
    from pyrocketstore.errors import StoreCorruptionError
    raise StoreCorruptionError(path, position, rs_status_name(status).decode("ascii"))


cdef inline int check_io(int64_t result, str operation, object path, int64_t position) except -1:
    """Raise StoreIOError where a call of rs_env returned a negated errno."""
    if result >= 0:
        return 0
    from pyrocketstore.errors import StoreIOError
    raise StoreIOError(<int>-result, operation, path, position)


cdef extern from "open_file.h" nogil:
    int rs_open_for_writing(rs_mapped_file *f) noexcept
