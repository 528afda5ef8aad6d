/* The protocol of bench/README.md for C programs: PROGRAM PATH NAME=VALUE ... prints
 * {"ready": true} and one line of JSON for each input line "round SECONDS"; "quit" ends it. */
#ifndef ROUNDS_H
#define ROUNDS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* `seconds` and `cpu` (of the whole process) cover only the timed part. */
typedef struct unit_result {
    int64_t count;
    int64_t bytes;
    double seconds;
    double cpu;
} unit_result;

/* One unit of work; each program defines its own. */
typedef unit_result (*unit_fn)(void);

static int options_count;
static char **options;

static inline void die(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static inline int64_t option(const char *name, int64_t otherwise) {
    size_t size = strlen(name);
    for (int i = 0; i < options_count; i++) {
        if (strncmp(options[i], name, size) == 0 && options[i][size] == '=') {
            return strtoll(options[i] + size + 1, NULL, 10);
        }
    }
    return otherwise;
}

static inline double seconds_of(clockid_t which) {
    struct timespec at;
    clock_gettime(which, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

static double started, cpu_started;

static inline void start_clock(void) {
    cpu_started = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    started = seconds_of(CLOCK_MONOTONIC);
}

/* Return the measurements since start_clock(). */
static inline unit_result stop_clock(int64_t count, int64_t bytes) {
    double seconds = seconds_of(CLOCK_MONOTONIC) - started;
    return (unit_result){count, bytes, seconds,
                         seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu_started};
}

/* Create a file of `size` bytes whose blocks are allocated and durable; return its descriptor. */
static inline int new_file(const char *path, int64_t size) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) {
        die("open");
    }
    if (posix_fallocate(fd, 0, size) != 0 || fsync(fd) != 0) {
        die("posix_fallocate");
    }
    return fd;
}

static inline void answer_rounds(unit_fn unit) {
    char line[128];
    puts("{\"ready\": true}");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL && strncmp(line, "quit", 4) != 0) {
        double least = 0;
        if (sscanf(line, "round %lf", &least) != 1) {
            errno = EINVAL;
            die("round");
        }
        unit_result all = {0, 0, 0, 0};
        int units = 0;
        do {
            unit_result one = unit();
            all.count += one.count;
            all.bytes += one.bytes;
            all.seconds += one.seconds;
            all.cpu += one.cpu;
            units++;
        } while (all.seconds < least);
        printf("{\"count\": %lld, \"bytes\": %lld, \"seconds\": %.9f, \"cpu\": %.9f, "
               "\"units\": %d, \"answer\": %lld}\n",
               (long long)all.count, (long long)all.bytes, all.seconds, all.cpu, units,
               (long long)(all.count / units));
        fflush(stdout);
    }
}

#endif
