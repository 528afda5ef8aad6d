/* The store of RocketMQ 4.9.3 in C: constants, status values, and the structs that the compiled
 * modules share. docs/format.md draws the layouts on disk. No Python.h, no malloc, no I/O. */
#ifndef ROCKETSTORE_H
#define ROCKETSTORE_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "env.h"

/* ---- constants on disk ------------------------------------------------------------------ */
#define RS_MESSAGE_MAGIC_CODE ((int32_t)0xDAA320A7u)    /* a message record */
#define RS_BLANK_MAGIC_CODE ((int32_t)0xCBD43194u)      /* the filler that ends a full file */
#define RS_MESSAGE_MAGIC_CODE_V2 ((int32_t)0xDAA320ABu) /* 5.x: recognised, never accepted */
#define RS_END_FILE_MIN_BLANK_LENGTH 8
#define RS_MESSAGE_POSITION_MAGIC 4
#define RS_MESSAGE_POSITION_BODY_CRC 8
#define RS_MESSAGE_POSITION_QUEUE_ID 12
#define RS_MESSAGE_POSITION_QUEUE_OFFSET 20
#define RS_MESSAGE_POSITION_PHYSICAL_OFFSET 28
#define RS_MESSAGE_POSITION_SYS_FLAG 36
#define RS_MESSAGE_POSITION_BORN_HOST 48 /* storeTimestamp is at 48 + size of the born host */
#define RS_HOST_V4_SIZE 8
#define RS_HOST_V6_SIZE 20
#define RS_MESSAGE_FIXED_SIZE 75      /* a record without hosts, body, topic, properties */
#define RS_MESSAGE_MIN_SIZE (RS_MESSAGE_FIXED_SIZE + 2 * RS_HOST_V4_SIZE)
#define RS_MAX_TOPIC_SIZE 127         /* bytes of UTF-8: the length is one signed byte */
#define RS_MAX_PROPERTIES_SIZE 32767  /* bytes of UTF-8: the length is a signed short */

#define RS_COMPRESSED_FLAG 0x1
#define RS_MULTI_TAGS_FLAG 0x2
#define RS_TRANSACTION_NOT_TYPE 0x0
#define RS_TRANSACTION_PREPARED_TYPE 0x4
#define RS_TRANSACTION_COMMIT_TYPE 0x8
#define RS_TRANSACTION_ROLLBACK_TYPE 0xC
#define RS_TRANSACTION_MASK 0xC
#define RS_BORNHOST_V6_FLAG 0x10
#define RS_STOREHOSTADDRESS_V6_FLAG 0x20

#define RS_CQ_STORE_UNIT_SIZE 20
#define RS_CQ_EXT_MIN_UNIT_SIZE 20
#define RS_CQ_EXT_END_BLANK_SIZE 4
#define RS_CQ_EXT_MAX_ADDR (-2147483649LL) /* a tagsCode <= this is an ext address */
#define RS_INDEX_HEADER_SIZE 40
#define RS_INDEX_HASH_SLOT_SIZE 4
#define RS_INDEX_ENTRY_SIZE 20
#define RS_CHECKPOINT_SIZE 4096

/* ---- status values ----------------------------------------------------------------------- */
typedef enum rs_status {
    RS_OK = 0,
    /* end of a scan of the commit log */
    RS_BLANK = 1,          /* BLANK_MAGIC_CODE: continue in the next file */
    RS_END = 2,            /* never written: size and magic are both zero */
    RS_TORN = 3,           /* the record extends past the available bytes */
    RS_BAD_MAGIC = 4,
    RS_BAD_CRC = 5,
    RS_BAD_SIZE = 6,       /* invalid length field, or inconsistent lengths */
    RS_BAD_OFFSET = 7,     /* the stored physicalOffset differs from the record's position */
    RS_BAD_PROPERTIES = 8, /* the properties text is torn: it contains a NUL byte */
    RS_OTHER_QUEUE = 9,    /* the record is not the one that the queue unit must refer to */
    /* results of appends, queues and indexes */
    RS_END_OF_FILE = 20,   /* does not fit with 8 bytes left over: roll to the next file */
    RS_NEED_FILE = 21,     /* no file to write to: the Python caller must provide one */
    RS_REPEAT = 22,        /* already written: nothing was done */
    RS_FULL = 23,          /* index file without a free entry */
    RS_NEED_PYTHON = 24,   /* an uncommon case that Python handles */
    RS_RETRY = 25,         /* the state that the caller relied on has changed: retry */
    RS_IO_ERROR = 26,      /* a system call failed; the errno is returned separately */
    RS_NO_MEMORY = 27,
    RS_TOO_LARGE = 28,     /* record longer than maxMessageSize */
    RS_CLOSED = 29,
    RS_BUSY = 30           /* the put lock could not be taken in time */
} rs_status;

/* ---- one record, parsed ------------------------------------------------------------------- */
/* Positions count from the record's first byte; every span is within the record. */
typedef struct rs_record {
    int64_t queue_offset;
    int64_t phy_offset; /* as stored */
    int64_t born_timestamp;
    int64_t store_timestamp;
    int64_t prepared_transaction_offset;
    int32_t total_size;
    int32_t body_crc;
    int32_t queue_id;
    int32_t flag;
    int32_t sys_flag;
    int32_t reconsume_times;
    int32_t born_host_size; /* 8 or 20: address and i32 port; starts at 48 */
    int32_t store_host_position;
    int32_t store_host_size;
    int32_t body_position;
    int32_t body_size;
    int32_t topic_position;
    int32_t topic_size;
    int32_t properties_position;
    int32_t properties_size;
} rs_record;

/* A range of a buffer; size -1: absent. */
typedef struct rs_span {
    int32_t position;
    int32_t size;
} rs_span;

/* Values of the properties that the store reads; positions count from the first byte of the
 * properties text. */
typedef struct rs_properties {
    rs_span tags;
    rs_span keys;
    rs_span uniq_key;
    rs_span delay;
    rs_span multi_dispatch;
    rs_span multi_queue_offset;
} rs_properties;

/* Input for encoding one record; the buffers are borrowed. */
typedef struct rs_outgoing {
    const uint8_t *body;
    const uint8_t *topic;
    const uint8_t *properties;
    int64_t body_size;
    int64_t born_timestamp;
    int64_t prepared_transaction_offset;
    int32_t topic_size;
    int32_t properties_size;
    int32_t queue_id;
    int32_t flag;
    int32_t sys_flag; /* the encoder sets the two v6 bits from the host sizes */
    int32_t reconsume_times;
    int32_t born_host_size; /* 8 or 20 */
    int32_t store_host_size;
    uint8_t born_host[RS_HOST_V6_SIZE]; /* address, then port as i32, big-endian */
    uint8_t store_host[RS_HOST_V6_SIZE];
} rs_outgoing;

/* ---- files ------------------------------------------------------------------------------- */
/* How allocated bytes of a file are prepared for stores through its mapping. */
enum {
    RS_FILL_NONE = 0,
    RS_FILL_FOLIOS = 1, /* long writes of zeros: large folios, one page fault each */
    RS_FILL_PAGES = 2   /* zeros page by page: one store dirties one page */
};

/* The part of a MappedFile that code without the GIL may access. Positions are loaded and stored
 * with the acquire/release helpers of bytes.h.
 *
 * With a `buffer`, the writer stores there and advances `appended`, then `appended_timestamp`; a
 * commit copies to the file and advances `wrote`. Without a buffer only `wrote` is used. Readers
 * use only `wrote`. */
typedef struct rs_mapped_file {
    uint8_t *base;    /* NULL while not mapped */
    uint8_t *buffer;  /* as long as the file; the writer stores here; NULL: at base */
    const char *path; /* borrowed from the owner; NULL: the file exists in memory only */
    const rs_env *env;
    int64_t file_from_offset;
    int64_t file_size;
    int64_t wrote;    /* bytes [0, wrote) are in the file and readable */
    int64_t appended;           /* bytes [0, appended) are in the file or in the buffer */
    int64_t appended_timestamp; /* store time of the last append to the buffer */
    int64_t data_end;           /* between this and `appended` the buffer has no data */
    int64_t flushed;
    int64_t confirmed;    /* bytes [0, confirmed) are allocated and filled: ready for stores */
    int64_t allocated;    /* with a fill_lock: bytes [0, allocated) are allocated */
    int64_t confirm_step; /* bytes that one allocation covers ahead */
    int64_t populate;     /* of those, bytes whose pages are prepared ahead */
    int64_t store_timestamp;
    rs_lock *fill_lock;   /* held while filling; NULL: only the file's one writer fills */
    int32_t zero_fill;    /* RS_FILL_... */
    int32_t by_write;     /* 1: bytes reach the file by pwrite; the mapping is read-only */
    uint64_t device;      /* of the file; valid once `inode` is not 0 */
    uint64_t inode;       /* of the file; 0 before its first open for writing */
} rs_mapped_file;

/* The write side of one consume queue: one dispatch thread writes, any thread reads. */
typedef struct rs_queue {
    rs_mapped_file *file; /* the last file, held or `unmapped`; NULL: Python must provide it */
    int64_t max_physic_offset;
    int64_t min_logic_offset; /* bytes */
    int64_t unit_count;       /* logical end of the queue in units, including pre-blank units */
    int64_t repeated_at;      /* the first record after the queue's last message in the log that has
                                 a queue offset of the queue, physical offset; -1: none */
    int32_t needs_python;     /* ext units: the compiled loop passes every record to Python */
    int32_t dirty;            /* written since the last flush */
    int32_t unmapped;         /* 1: `file` is not held mapped, and units are written by pwrite */
    int32_t unmapped_left;    /* units until Python decides again whether to map the file */
} rs_queue;

/* One index file while it is open for writing or reading. */
typedef struct rs_index_file {
    uint8_t *base;
    rs_mapped_file *file;
    uint8_t *confirmed_chunks; /* one byte for each RS_INDEX_CHUNK of the file */
    int64_t hash_slot_num;
    int64_t index_num;
    int64_t begin_timestamp;
    int64_t end_timestamp;
    int64_t begin_phy_offset;
    int64_t end_phy_offset;
    int32_t hash_slot_count;
    int32_t index_count;
} rs_index_file;
#define RS_INDEX_CHUNK 65536

/* ---- packed layouts shared with NumPy ----------------------------------------------------- */
#pragma pack(push, 1)
typedef struct rs_cq_unit {    /* dtype: phy_offset >i8, size >i4, tags_code >i8 */
    uint8_t phy_offset[8];
    uint8_t size[4];
    uint8_t tags_code[8];
} rs_cq_unit;
typedef struct rs_index_entry { /* dtype: key_hash >i4, phy_offset >i8, time_diff >i4, prev >i4 */
    uint8_t key_hash[4];
    uint8_t phy_offset[8];
    uint8_t time_diff[4];
    uint8_t prev_index[4];
} rs_index_entry;
typedef struct rs_index_header {
    uint8_t begin_timestamp[8];
    uint8_t end_timestamp[8];
    uint8_t begin_phy_offset[8];
    uint8_t end_phy_offset[8];
    uint8_t hash_slot_count[4];
    uint8_t index_count[4];
} rs_index_header;
#pragma pack(pop)
static_assert(sizeof(rs_cq_unit) == RS_CQ_STORE_UNIT_SIZE, "a queue unit has 20 bytes");
static_assert(sizeof(rs_index_entry) == RS_INDEX_ENTRY_SIZE, "an index entry has 20 bytes");
static_assert(sizeof(rs_index_header) == RS_INDEX_HEADER_SIZE, "an index header has 40 bytes");

/* ---- CRC-32 (zlib's polynomial), crc32.c --------------------------------------------------- */
typedef uint32_t (*rs_crc32_fn)(uint32_t crc, const uint8_t *p, size_t size);
/* Compute zlib's crc32(crc, p, size) with the fastest kernel that this processor supports. */
uint32_t rs_crc32(uint32_t crc, const uint8_t *p, size_t size);
/* Return the names of this build's kernels, best first, NULL at the end. */
const char *const *rs_crc32_kernels(void);
/* Return the kernel with this name, or NULL if the build or the processor does not have it. */
rs_crc32_fn rs_crc32_by_name(const char *name);
/* Return the name of the kernel that rs_crc32 uses. */
const char *rs_crc32_kernel_name(void);
/* Make rs_crc32 use this kernel, for tests. Return 0, or -1 if the kernel is not available. */
int rs_crc32_select(const char *name);

/* Return a short English text for a status value. */
const char *rs_status_name(int status);

#endif
