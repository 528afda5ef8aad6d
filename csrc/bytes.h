/* Access to bytes on disk, which are big-endian and untrusted: loads and stores of fixed width, a
 * bounds-checked cursor, positions that two threads share, and Java's string hash. */
#ifndef ROCKETSTORE_BYTES_H
#define ROCKETSTORE_BYTES_H

#include <assert.h>
#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

static inline uint16_t rs_bswap16(uint16_t v) { return __builtin_bswap16(v); }
static inline uint32_t rs_bswap32(uint32_t v) { return __builtin_bswap32(v); }
static inline uint64_t rs_bswap64(uint64_t v) { return __builtin_bswap64(v); }

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define RS_BE16(v) (v)
#define RS_BE32(v) (v)
#define RS_BE64(v) (v)
#else
#define RS_BE16(v) rs_bswap16(v)
#define RS_BE32(v) rs_bswap32(v)
#define RS_BE64(v) rs_bswap64(v)
#endif

/* Eight bytes, the first one in the lowest bits. */
static inline uint64_t rs_load_le64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return rs_bswap64(RS_BE64(v));
}
static inline uint64_t rs_load_le32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return rs_bswap32(RS_BE32(v));
}
static inline int16_t rs_load_be16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return (int16_t)RS_BE16(v);
}
static inline int32_t rs_load_be32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return (int32_t)RS_BE32(v);
}
static inline int64_t rs_load_be64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return (int64_t)RS_BE64(v);
}
static inline void rs_store_be16(uint8_t *p, int16_t value) {
    uint16_t v = RS_BE16((uint16_t)value);
    memcpy(p, &v, sizeof v);
}
static inline void rs_store_be32(uint8_t *p, int32_t value) {
    uint32_t v = RS_BE32((uint32_t)value);
    memcpy(p, &v, sizeof v);
}
static inline void rs_store_be64(uint8_t *p, int64_t value) {
    uint64_t v = RS_BE64((uint64_t)value);
    memcpy(p, &v, sizeof v);
}

/* Copies a record to where a kill may leave half of it, and where other processes read. The start,
 * TOTALSIZE and MAGICCODE, is stored last, in one step: without it nothing is a record. */
enum { RS_RECORD_START = 8 };
static inline void rs_store_record(uint8_t *to, const uint8_t *record, int64_t size) {
    if (size < RS_RECORD_START) {
        memcpy(to, record, (size_t)size);
        return;
    }
    memcpy(to + RS_RECORD_START, record + RS_RECORD_START, (size_t)(size - RS_RECORD_START));
    __atomic_thread_fence(__ATOMIC_RELEASE);
    memcpy(to, record, RS_RECORD_START);
}

/* ---- bounded cursor ------------------------------------------------------------------------ */
/* A step past the end clears `ok` permanently and returns zero or NULL; test `ok` once at the
 * end. */
typedef struct rs_cursor {
    const uint8_t *start;
    int64_t position;
    int64_t size;
    int32_t ok;
} rs_cursor;

static inline rs_cursor rs_cursor_over(const uint8_t *start, int64_t size) {
    rs_cursor c = {start, 0, size < 0 ? 0 : size, size >= 0};
    return c;
}
static inline const uint8_t *rs_cursor_take(rs_cursor *c, int64_t count) {
    if (!c->ok || count < 0 || count > c->size - c->position) {
        c->ok = 0;
        return 0;
    }
    const uint8_t *p = c->start + c->position;
    c->position += count;
    assert(c->position <= c->size);
    return p;
}
static inline int32_t rs_cursor_be32(rs_cursor *c) {
    const uint8_t *p = rs_cursor_take(c, 4);
    return p ? rs_load_be32(p) : 0;
}
static inline int64_t rs_cursor_be64(rs_cursor *c) {
    const uint8_t *p = rs_cursor_take(c, 8);
    return p ? rs_load_be64(p) : 0;
}
static inline int16_t rs_cursor_be16(rs_cursor *c) {
    const uint8_t *p = rs_cursor_take(c, 2);
    return p ? rs_load_be16(p) : 0;
}
static inline int8_t rs_cursor_i8(rs_cursor *c) {
    const uint8_t *p = rs_cursor_take(c, 1);
    return p ? (int8_t)*p : 0;
}

/* ---- positions shared between threads ------------------------------------------------------- */
static inline int64_t rs_load_acquire(const int64_t *p) {
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
static inline void rs_store_release(int64_t *p, int64_t value) {
    __atomic_store_n(p, value, __ATOMIC_RELEASE);
}
static inline int64_t rs_fetch_add(int64_t *p, int64_t value) {
    return __atomic_fetch_add(p, value, __ATOMIC_ACQ_REL);
}
/* Return 1 if *p was `expected`; it is now `value`. */
static inline int rs_compare_and_swap(int64_t *p, int64_t expected, int64_t value) {
    return __atomic_compare_exchange_n(p, &expected, value, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}
static inline int32_t rs_load_acquire32(const int32_t *p) {
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
static inline void rs_store_release32(int32_t *p, int32_t value) {
    __atomic_store_n(p, value, __ATOMIC_RELEASE);
}
/* Big-endian words at 4-byte aligned addresses that one thread stores while others load. */
static inline int32_t rs_load_be32_acquire(const uint8_t *p) {
    return (int32_t)RS_BE32(__atomic_load_n((const uint32_t *)(const void *)p, __ATOMIC_ACQUIRE));
}
static inline void rs_store_be32_release(uint8_t *p, int32_t value) {
    __atomic_store_n((uint32_t *)(void *)p, RS_BE32((uint32_t)value), __ATOMIC_RELEASE);
}
/* Prefetch the cache line of `p` for a write; harmless for any address. */
static inline void rs_prefetch(const void *p) { __builtin_prefetch(p, 1, 3); }
static inline void rs_prefetch_read(const void *p) { __builtin_prefetch(p, 0, 3); }
/* Prefetch into the second-level cache, which holds the lines of dozens of upcoming records. */
static inline void rs_prefetch_far(const void *p) { __builtin_prefetch(p, 0, 2); }

/* ---- UTF-8 as Java's decoder reads it -------------------------------------------------------- */
/* Decode one code point from `p`, `size` > 0, and return its length in bytes, at least 1. Malformed
 * bytes decode to U+FFFD, one for each maximal subpart; ED A0..BF with an optional continuation
 * byte is one. Defined in hash.c. */
int32_t rs_utf8_next(const uint8_t *p, int64_t size, uint32_t *code);

/* ---- properties text ------------------------------------------------------------------------- */
static inline uint64_t rs_zero_bytes(uint64_t v) { /* not 0 if a byte of `v` is 0 */
    return (v - 0x0101010101010101u) & ~v & 0x8080808080808080u;
}
static inline int rs_lowest_bit(uint64_t v) { return __builtin_ctzll(v); } /* v: not 0 */

/* Return not 0 if a byte of `v` is 1, 2 or the byte that `marks` repeats. */
static inline uint64_t rs_marked(uint64_t v, uint64_t marks) {
    return rs_zero_bytes(v ^ 0x0101010101010101u) | rs_zero_bytes(v ^ 0x0202020202020202u) |
           rs_zero_bytes(v ^ marks);
}

/* Return whether one of the bytes is U+0001 or U+0002, which separate names and values, or `mark`,
 * which is 1 for none. */
static inline int rs_has_separator(const uint8_t *p, int64_t size, uint8_t mark) {
    const uint64_t marks = mark * 0x0101010101010101u;
    uint64_t eight, found = 0;
    uint32_t first, last;
    if (size < 4) { /* the first, the middle and the last one are all; 3 is no mark */
        if (size <= 0) return 0;
        return rs_marked(0x0303030303000000u | (uint64_t)p[0] << 16 |
                             (uint64_t)p[size >> 1] << 8 | p[size - 1], marks) != 0;
    }
    if (size < 8) { /* the last four may overlap the first */
        memcpy(&first, p, sizeof first);
        memcpy(&last, p + size - 4, sizeof last);
        return rs_marked((uint64_t)first << 32 | last, marks) != 0;
    }
    for (int64_t at = 0; at < size - 8; at += 8) {
        memcpy(&eight, p + at, sizeof eight);
        found |= rs_marked(eight, marks);
    }
    memcpy(&eight, p + size - 8, sizeof eight);
    return (found | rs_marked(eight, marks)) != 0;
}

/* memcpy for texts that are mostly short: without a call up to 16 bytes. */
static inline void rs_copy_short(uint8_t *to, const uint8_t *from, int64_t size) {
    uint64_t first, last;
    uint32_t begin, end;
    if (size > 16) {
        memcpy(to, from, (size_t)size);
    } else if (size >= 8) {
        memcpy(&first, from, sizeof first);
        memcpy(&last, from + size - 8, sizeof last);
        memcpy(to, &first, sizeof first);
        memcpy(to + size - 8, &last, sizeof last);
    } else if (size >= 4) {
        memcpy(&begin, from, sizeof begin);
        memcpy(&end, from + size - 4, sizeof end);
        memcpy(to, &begin, sizeof begin);
        memcpy(to + size - 4, &end, sizeof end);
    } else if (size > 0) {
        to[0] = from[0];
        to[size >> 1] = from[size >> 1];
        to[size - 1] = from[size - 1];
    }
}

/* ---- the places of a byte -------------------------------------------------------------------- */
/* Bit i of the result: p[i] is `byte`. */
static inline uint64_t rs_places_in_16(const uint8_t *p, uint8_t byte) {
#if defined(__SSE2__)
    const __m128i equal = _mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)(const void *)p),
                                         _mm_set1_epi8((char)byte));
    return (uint32_t)_mm_movemask_epi8(equal);
#else
    const uint64_t low = 0x7F7F7F7F7F7F7F7Fu;
    uint64_t places = 0;
    for (int half = 8; half >= 0; half -= 8) {
        const uint64_t v = rs_load_le64(p + half) ^ byte * 0x0101010101010101u;
        const uint64_t zero = ~(((v & low) + low) | v | low); /* 0x80 for each byte that is 0 */
        places = places << 8 | ((zero >> 7) * 0x0102040810204080u) >> 56;
    }
    return places;
#endif
}

/* Bit i of the result: p[i] is `byte`, for i below 64 and below `size`. At least one byte. */
static inline uint64_t rs_places(const uint8_t *p, int64_t size, uint8_t byte) {
    uint8_t few[16] = {0};
    uint64_t places = 0;
    int64_t at = 0;
    if (size >= 64)
        return rs_places_in_16(p, byte) | rs_places_in_16(p + 16, byte) << 16 |
               rs_places_in_16(p + 32, byte) << 32 | rs_places_in_16(p + 48, byte) << 48;
    if (size < 16) { /* no byte behind the text may be read */
        rs_copy_short(few, p, size);
        return rs_places_in_16(few, byte) & ((1u << size) - 1);
    }
    for (; at <= size - 16; at += 16) places |= rs_places_in_16(p + at, byte) << at;
    if (at < size) places |= rs_places_in_16(p + size - 16, byte) << (size - 16);
    return places;
}

/* Return the first place of `byte`, or `size` without one. */
static inline int64_t rs_find_byte(const uint8_t *p, int64_t size, uint8_t byte) {
    for (int64_t at = 0; at < size; at += 64) {
        const uint64_t places = rs_places(p + at, size - at, byte);
        if (places) return at + rs_lowest_bit(places);
    }
    return size;
}

/* ---- Java's String.hashCode over UTF-8 ------------------------------------------------------- */
/* Extend `hash` (0 for a new string) by the UTF-16 units that Java decodes `p` to: two surrogates
 * above U+FFFF, and U+FFFD for malformed bytes as in rs_utf8_next. Defined in hash.c. */
int32_t rs_java_hash_slow(int32_t hash, const uint8_t *p, int64_t size);

/* Extend a hash by the buffer of a Python str: code points of 1, 2 or 4 bytes. The last two
 * functions return 0 and leave *hash unchanged if there is a lone surrogate; hash its UTF-8 form
 * instead. */
int32_t rs_java_hash_latin1(int32_t hash, const uint8_t *p, int64_t size);
int32_t rs_java_hash_utf16(int32_t *hash, const uint16_t *p, int64_t size);
int32_t rs_java_hash_utf32(int32_t *hash, const uint32_t *p, int64_t size);

/* Return the hash of eight units below 256, the first one in the lowest bits. Neighbours join:
 * eight numbers of 8 bits become four of 16 bits, and these two of 32 bits. */
static inline uint32_t rs_hash_of_8(uint64_t v) {
    v = (v & 0x00FF00FF00FF00FFu) * 31u + (v >> 8 & 0x00FF00FF00FF00FFu);
    v = (v & 0x0000FFFF0000FFFFu) * 961u + (v >> 16 & 0x0000FFFF0000FFFFu);
    return (uint32_t)v * 923521u + (uint32_t)(v >> 32);
}

/* Return the last `size` bytes, 1 to 8, of those that end at p + size; zeros, which add nothing to
 * a hash, come first. No byte before p is read, but if `more` of them are there. */
static inline uint64_t rs_last_bytes(const uint8_t *p, int64_t size, int more) {
    const int64_t zeros = 8 * (8 - size);
    uint64_t v = 0;
    if (more || size == 8) return rs_load_le64(p + size - 8) >> zeros << zeros;
    if (size >= 4) return rs_load_le32(p) << zeros | rs_load_le32(p + size - 4) << 32;
    for (int64_t i = 0; i < size; i++) v |= (uint64_t)p[i] << (zeros + 8 * i);
    return v;
}

static inline int32_t rs_java_hash(int32_t hash, const uint8_t *p, int64_t size) {
    static const uint32_t powers[9] = {1,       31,       961,       29791,     923521,
                                       28629151, 887503681, 1742810335, 2487512833u}; /* of 31 */
    uint32_t h = (uint32_t)hash;
    uint64_t v;
    int64_t at = 0;
    for (; size - at > 8; at += 8) {
        v = rs_load_le64(p + at);
        if (v & 0x8080808080808080u) return rs_java_hash_slow((int32_t)h, p + at, size - at);
        h = h * powers[8] + rs_hash_of_8(v);
    }
    if (at >= size) return hash; /* an empty text */
    v = rs_last_bytes(p + at, size - at, at > 0);
    if (v & 0x8080808080808080u) return rs_java_hash_slow((int32_t)h, p + at, size - at);
    return (int32_t)(h * powers[size - at] + rs_hash_of_8(v));
}

#endif
