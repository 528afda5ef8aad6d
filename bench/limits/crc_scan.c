/* Limit of a scan: the CRC of every body-sized chunk of the log's files. Records are not parsed.
 *
 *     crc_scan STORE record=BYTES body=BYTES [threads=2] [reads=1]
 *
 * With two threads, each takes whole files. With reads=1 the program reads the pages instead of
 * mapping them; a scan must read to survive a bad page or a file that is truncated meanwhile. */
#include "rounds.h"

#include "rocketstore.h"
#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>

static const char *log_path;
static int64_t record_size, body_size, threads, reads;
static struct {
    const uint8_t *base;
    int64_t size;
    int fd;
} files[1024];
static int files_count;

static atomic_int next_file;
static _Atomic int64_t records_done;
static _Atomic uint32_t sink; /* keeps the compiler from removing the CRC */

static void map_all(void) {
    DIR *directory = opendir(log_path);
    struct dirent *entry;
    if (directory == NULL) {
        die(log_path);
    }
    while ((entry = readdir(directory)) != NULL && files_count < 1024) {
        char path[4096];
        struct stat about;
        if (entry->d_name[0] == '.') {
            continue;
        }
        snprintf(path, sizeof path, "%s/%s", log_path, entry->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &about) != 0) {
            die(path);
        }
        /* The unused end of a file is a hole. */
        off_t hole = lseek(fd, 0, SEEK_HOLE);
        int64_t size = hole > 0 ? (int64_t)hole : about.st_size;
        void *base = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
        if (base == MAP_FAILED) {
            die("mmap");
        }
        files[files_count].base = base;
        files[files_count].fd = fd;
        files[files_count++].size = size;
    }
    closedir(directory);
}

/* Size of one pread, rounded down to whole records. */
enum { READ_BYTES = 512 << 10 };

static const uint8_t *records_at(int file, int64_t at, int64_t size, uint8_t *window) {
    if (!reads) {
        return files[file].base + at;
    }
    if (pread(files[file].fd, window, (size_t)size, at) != size) {
        die("pread");
    }
    return window;
}

static void *check_all(void *unused) {
    (void)unused;
    int64_t count = 0;
    int64_t step = READ_BYTES / record_size * record_size;
    uint8_t *window = malloc(READ_BYTES);
    uint32_t all = 0;
    int i;
    if (window == NULL) {
        die("malloc");
    }
    while ((i = atomic_fetch_add(&next_file, 1)) < files_count) {
        int64_t end = files[i].size / record_size * record_size;
        for (int64_t at = 0; at < end; at += step) {
            int64_t size = end - at < step ? end - at : step;
            const uint8_t *records = records_at(i, at, size, window);
            for (int64_t record = 0; record < size; record += record_size) {
                all ^= rs_crc32(0, records + record, (size_t)body_size);
                count++;
            }
        }
    }
    free(window);
    atomic_fetch_add(&records_done, count);
    atomic_fetch_xor(&sink, all);
    return NULL;
}

static unit_result unit(void) {
    pthread_t helper;
    atomic_store(&next_file, 0);
    atomic_store(&records_done, 0);
    start_clock();
    if (threads > 1 && pthread_create(&helper, NULL, check_all, NULL) != 0) {
        die("pthread_create");
    }
    check_all(NULL);
    if (threads > 1) {
        pthread_join(helper, NULL);
    }
    int64_t count = atomic_load(&records_done);
    return stop_clock(count, count * record_size);
}

int main(int argc, char **argv) {
    char path[4096];
    if (argc < 2) {
        return 2;
    }
    snprintf(path, sizeof path, "%s/commitlog", argv[1]);
    log_path = path;
    options = argv + 2;
    options_count = argc - 2;
    record_size = option("record", 1100);
    body_size = option("body", 1024);
    threads = option("threads", 1); /* or 2 */
    reads = option("reads", 0);
    map_all();
    answer_rounds(unit);
    return 0;
}
