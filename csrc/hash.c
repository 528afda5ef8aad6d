/* UTF-8 decoding as in Java, and String.hashCode over the decoded text or over UTF-16 units. */
#include "bytes.h"

#define REPLACEMENT 0xFFFDu

static inline int is_continuation(uint8_t b) { return (b & 0xC0) == 0x80; }

/* Return the length of the sequence that starts with `lead`, and the valid range of its second
 * byte. The range excludes overlong forms, surrogates and values above U+10FFFF. All later bytes
 * may be any continuation byte. */
static int sequence_shape(uint8_t lead, uint8_t *low, uint8_t *high) {
    *low = 0x80;
    *high = 0xBF;
    if (lead < 0xC2) return 1; /* a stray continuation byte, or C0 and C1: always overlong */
    if (lead < 0xE0) return 2;
    if (lead < 0xF0) {
        if (lead == 0xE0) *low = 0xA0;
        if (lead == 0xED) *high = 0x9F;
        return 3;
    }
    if (lead < 0xF5) {
        if (lead == 0xF0) *low = 0x90;
        if (lead == 0xF4) *high = 0x8F;
        return 4;
    }
    return 1;
}

int32_t rs_utf8_next(const uint8_t *p, int64_t size, uint32_t *code) {
    uint8_t lead = p[0], low, high;
    if (lead < 0x80) {
        *code = lead;
        return 1;
    }
    *code = REPLACEMENT;
    int length = sequence_shape(lead, &low, &high);
    if (length == 1 || size < 2) return 1;
    if (lead == 0xED && p[1] >= 0xA0 && p[1] <= 0xBF) /* a surrogate: one error in Java */
        return size > 2 && is_continuation(p[2]) ? 3 : 2;
    if (p[1] < low || p[1] > high) return 1;
    uint32_t value = (uint32_t)lead & (0x7Fu >> length);
    value = value << 6 | (p[1] & 0x3Fu);
    for (int i = 2; i < length; i++) {
        if (i >= size || !is_continuation(p[i])) return i;
        value = value << 6 | (p[i] & 0x3Fu);
    }
    *code = value;
    return length;
}

int32_t rs_java_hash_slow(int32_t hash, const uint8_t *p, int64_t size) {
    uint32_t h = (uint32_t)hash;
    int64_t at = 0;
    while (at < size) {
        uint32_t code;
        at += rs_utf8_next(p + at, size - at, &code);
        if (code > 0xFFFF) {
            h = h * 31u + (0xD800u + ((code - 0x10000u) >> 10));
            code = 0xDC00u + (code & 0x3FFu);
        }
        h = h * 31u + code;
    }
    return (int32_t)h;
}

/* Four units a step: their multiplications are independent of each other. */
#define HASH_UNITS(h, p, size)                                                                     \
    do {                                                                                           \
        int64_t at_ = 0;                                                                           \
        for (; at_ + 4 <= (size); at_ += 4)                                                        \
            (h) = (h) * 923521u + (p)[at_] * 29791u + (p)[at_ + 1] * 961u + (p)[at_ + 2] * 31u +   \
                  (p)[at_ + 3];                                                                    \
        for (; at_ < (size); at_++) (h) = (h) * 31u + (p)[at_];                                    \
    } while (0)

int32_t rs_java_hash_latin1(int32_t hash, const uint8_t *p, int64_t size) {
    uint32_t h = (uint32_t)hash;
    HASH_UNITS(h, p, size);
    return (int32_t)h;
}

int32_t rs_java_hash_utf16(int32_t *hash, const uint16_t *p, int64_t size) {
    uint32_t h = (uint32_t)*hash;
    for (int64_t i = 0; i < size; i++) {
        if ((p[i] & 0xF800u) == 0xD800u) return 0;
        h = h * 31u + p[i];
    }
    *hash = (int32_t)h;
    return 1;
}

int32_t rs_java_hash_utf32(int32_t *hash, const uint32_t *p, int64_t size) {
    uint32_t h = (uint32_t)*hash;
    for (int64_t i = 0; i < size; i++) {
        uint32_t code = p[i];
        if ((code & 0xFFFFF800u) == 0xD800u) return 0;
        if (code > 0xFFFF) {
            h = h * 31u + (0xD800u + ((code - 0x10000u) >> 10));
            code = 0xDC00u + (code & 0x3FFu);
        }
        h = h * 31u + code;
    }
    *hash = (int32_t)h;
    return 1;
}
