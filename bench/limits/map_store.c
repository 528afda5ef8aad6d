/* Limit of asynchronous puts: compute the body's CRC and store the record into a mapped file whose
 * blocks are allocated. There is no lock, queue, index or interpreter.
 *
 *     map_store PATH count=N record=BYTES body=BYTES [helper=1] [zeros=1 | write=1]
 *
 * Pages are faulted in ahead of the writer, by the writer itself or by a helper thread. With
 * `zeros` they are first written as zeros in long writes, which create large folios in the page
 * cache. With `write` nothing is mapped: the program collects records in a buffer that fits into
 * the processor's cache, and writes the buffer. Removing the file is not timed. */
#include "rounds.h"

#include "rocketstore.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define STEP ((int64_t)4 << 20)
#define ZEROS_STEP ((int64_t)2 << 20)
#define BUFFER ((int64_t)256 << 10)

static const char *path;
static uint8_t *record;
static uint8_t *buffer;
static int64_t count, record_size, body_size, helper, zeros, size;
static int file;

static uint8_t *base;
static _Atomic int64_t present;

static void write_all(const uint8_t *data, int64_t length, int64_t position) {
    while (length > 0) {
        ssize_t put = pwrite(file, data, (size_t)length, position);
        if (put <= 0) {
            die("pwrite");
        }
        data += put;
        length -= put;
        position += put;
    }
}

/* Fault in the next step. */
static void populate(int64_t from) {
    int64_t step = zeros ? ZEROS_STEP : STEP;
    step = size - from < step ? size - from : step;
    if (zeros) {
        write_all(buffer, step, from);
    }
    if (madvise(base + from, (size_t)step, MADV_POPULATE_WRITE) != 0) {
        for (int64_t at = from; at < from + step; at += 4096) {
            *(volatile uint8_t *)(base + at) = 0;
        }
    }
    atomic_store_explicit(&present, from + step, memory_order_release);
}

static void *populate_all(void *unused) {
    (void)unused;
    int64_t at;
    while ((at = atomic_load_explicit(&present, memory_order_relaxed)) < size) {
        populate(at);
    }
    return NULL;
}

/* Return once the bytes before `end` are faulted in. */
static inline void await_present(int64_t end) {
    int64_t at;
    while ((at = atomic_load_explicit(&present, memory_order_acquire)) < end) {
        if (helper) {
            sched_yield();
        } else {
            populate(at);
        }
    }
}

static const uint8_t *make_record(void) {
    const uint8_t *body = record + record_size - body_size;
    uint32_t crc = rs_crc32(0, body, (size_t)body_size);
    memcpy(record, &crc, sizeof crc);
    return record;
}

static unit_result store_all(void) {
    base = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (base == MAP_FAILED) {
        die("mmap");
    }
    atomic_store(&present, 0);
    start_clock();
    pthread_t thread;
    if (helper && pthread_create(&thread, NULL, populate_all, NULL) != 0) {
        die("pthread_create");
    }
    for (int64_t i = 0; i < count; i++) {
        await_present((i + 1) * record_size);
        memcpy(base + i * record_size, make_record(), (size_t)record_size);
    }
    if (helper) {
        pthread_join(thread, NULL);
    }
    unit_result done = stop_clock(count, count * body_size);
    munmap(base, (size_t)size);
    return done;
}

static unit_result write_records(void) {
    start_clock();
    int64_t used = 0, written = 0;
    for (int64_t i = 0; i < count; i++) {
        memcpy(buffer + used, make_record(), (size_t)record_size);
        used += record_size;
        if (used > BUFFER - record_size || i + 1 == count) {
            write_all(buffer, used, written);
            written += used;
            used = 0;
        }
    }
    return stop_clock(count, count * body_size);
}

static unit_result unit(void) {
    file = new_file(path, size);
    unit_result done = option("write", 0) ? write_records() : store_all();
    uint32_t last = 0, crc = rs_crc32(0, record + record_size - body_size, (size_t)body_size);
    if (pread(file, &last, sizeof last, (count - 1) * record_size) != sizeof last || last != crc) {
        errno = EIO;
        die("last record");
    }
    close(file);
    unlink(path);
    return done;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        return 2;
    }
    path = argv[1];
    options = argv + 2;
    options_count = argc - 2;
    count = option("count", 1000);
    record_size = option("record", 1100);
    body_size = option("body", 1024);
    helper = option("helper", 0);
    zeros = option("zeros", 0);
    size = count * record_size;
    if (count < 1 || body_size + 4 > record_size || record_size > BUFFER) {
        return 2;
    }
    record = malloc((size_t)record_size);
    buffer = calloc(1, (size_t)ZEROS_STEP);
    if (record == NULL || buffer == NULL) {
        die("malloc");
    }
    memset(record, 0x5a, (size_t)record_size);
    answer_rounds(unit);
    return 0;
}
