/* Goal: the UTF-8 reader and Java's string hash agree with known answers and never read past the
 * end. Method: test vectors; random and malformed bytes that end at an unreadable page. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bytes.h"

static const struct {
    const char *text;
    int32_t hash;
} vectors[] = {
    {"", 0},
    {"TagA", 2598919},
    {"topic#key", 386934027},
    {"\xF0\x9F\x98\x80", 1772899},               /* U+1F600 */
    {"polygenelubricants", INT32_MIN},
    {"\xED\xA0\x80", 0xFFFD},                    /* a surrogate: one replacement */
    {"\xED\xBF", 0xFFFD},
    {"\xC0\x80", 0xFFFD * 31 + 0xFFFD},          /* overlong: one for each byte */
    {"\xE2\x82", 0xFFFD},                        /* cut short: one replacement */
    {"\xE2\x82" "A", 0xFFFD * 31 + 'A'},
    {"\xF4\x8F\xBF\xBF", 0xDBFF * 31 + 0xDFFF},  /* the last code point */
    {"\xF4\x90", 0xFFFD * 31 + 0xFFFD},
};

static void check_reader(const uint8_t *p, int64_t size) {
    int64_t at = 0;
    uint32_t code = 0;
    while (at < size) {
        int32_t took = rs_utf8_next(p + at, size - at, &code);
        if (took < 1 || took > 4 || took > size - at || code > 0x10FFFF ||
            (code >= 0xD800 && code <= 0xDFFF)) {
            fprintf(stderr, "took %d of %lld bytes for U+%04X\n", (int)took,
                    (long long)(size - at), (unsigned)code);
            exit(1);
        }
        at += took;
    }
    (void)rs_java_hash(0, p, size);
}

int main(void) {
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        const char *text = vectors[i].text;
        int32_t got = rs_java_hash(0, (const uint8_t *)text, (int64_t)strlen(text));
        if (got != vectors[i].hash) {
            fprintf(stderr, "vector %zu: got %d, wanted %d\n", i, (int)got, (int)vectors[i].hash);
            return 1;
        }
    }
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int access = PROT_READ | PROT_WRITE, kind = MAP_PRIVATE | MAP_ANONYMOUS;
    uint8_t *base = mmap(NULL, 2 * page, access, kind, -1, 0);
    if (base == MAP_FAILED || mprotect(base + page, page, PROT_NONE) != 0) return 2;
    /* All lead bytes and all second bytes, cut at every length; then random high bytes. */
    for (unsigned lead = 0x80; lead < 0x100; lead++)
        for (unsigned second = 0; second < 0x100; second++)
            for (size_t size = 1; size <= 4; size++) {
                uint8_t *p = base + page - size;
                memset(p, 0x80, size);
                p[0] = (uint8_t)lead;
                if (size > 1) p[1] = (uint8_t)second;
                check_reader(p, (int64_t)size);
            }
    srand(42);
    for (int round = 0; round < 20000; round++) {
        size_t size = (size_t)rand() % 40;
        uint8_t *p = base + page - size;
        for (size_t i = 0; i < size; i++) p[i] = (uint8_t)(rand() % 4 ? 0x80 | rand() : rand());
        check_reader(p, (int64_t)size);
    }
    printf("hash: ok\n");
    return 0;
}
