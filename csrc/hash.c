/* Java's String.hashCode over UTF-8 bytes, decoded as Java decodes them. */
#include "bytes.h"

#define REPLACEMENT 0xFFFDu

static uint32_t add_unit(uint32_t hash, uint32_t unit) { return hash * 31u + unit; }

static int is_continuation(const uint8_t *p, int64_t size, int64_t at) {
    return at < size && (p[at] & 0xC0) == 0x80;
}

/* Takes one code point, or one malformed piece, from the front; gives its length. */
static int64_t take(const uint8_t *p, int64_t size, uint32_t *code) {
    uint32_t lead = p[0];
    *code = REPLACEMENT;
    if (lead < 0x80) {
        *code = lead;
        return 1;
    }
    if (lead >= 0xC2 && lead <= 0xDF) {
        if (!is_continuation(p, size, 1)) return 1;
        *code = (lead & 0x1F) << 6 | (p[1] & 0x3Fu);
        return 2;
    }
    if (lead >= 0xE0 && lead <= 0xEF) {
        if (!is_continuation(p, size, 1)) return 1;
        if (lead == 0xE0 && p[1] < 0xA0) return 1;
        if (lead == 0xED && p[1] >= 0xA0) /* a surrogate: one piece, with what follows it */
            return is_continuation(p, size, 2) ? 3 : 2;
        if (!is_continuation(p, size, 2)) return 2;
        *code = (lead & 0x0F) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
        return 3;
    }
    if (lead >= 0xF0 && lead <= 0xF4) {
        if (!is_continuation(p, size, 1)) return 1;
        if ((lead == 0xF0 && p[1] < 0x90) || (lead == 0xF4 && p[1] > 0x8F)) return 1;
        if (!is_continuation(p, size, 2)) return 2;
        if (!is_continuation(p, size, 3)) return 3;
        *code = (lead & 0x07) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
        return 4;
    }
    return 1;
}

int32_t rs_java_hash_slow(int32_t hash, const uint8_t *p, int64_t size) {
    uint32_t h = (uint32_t)hash;
    while (size > 0) {
        uint32_t code;
        int64_t length = take(p, size, &code);
        p += length;
        size -= length;
        if (code > 0xFFFF) {
            code -= 0x10000;
            h = add_unit(h, 0xD800u + (code >> 10));
            code = 0xDC00u + (code & 0x3FF);
        }
        h = add_unit(h, code);
    }
    return (int32_t)h;
}
