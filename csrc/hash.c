/* UTF-8 as Java's decoder reads it, and String.hashCode over the result. */
#include "bytes.h"

#define REPLACEMENT 0xFFFDu

static inline int is_continuation(uint8_t b) { return (b & 0xC0) == 0x80; }

/* How long the sequence is that `lead` opens. The range of the second byte keeps overlong forms,
 * surrogates and values above U+10FFFF out; every later byte is any continuation byte. */
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
    if (lead == 0xED && p[1] >= 0xA0 && p[1] <= 0xBF) /* a surrogate: Java takes it as one error */
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
