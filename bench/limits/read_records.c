/* Limit of reads without a mapping: the system calls that such a read cannot do without.
 *
 *     read_records STORE count=N stored=N [index=1] [queues=N] [many=N] [block=BYTES step=N]
 *
 * A file of another process may be truncated at any time, so that a mapping of it can raise SIGBUS,
 * and may be deleted. A read of one record is therefore an fstat, for the names that the file has,
 * and a pread. With index=1 the program first reads the slot and the entry of the record's key: an
 * fstat of the index file and two preads. With queues=N it first reads the record's unit in one of N
 * queues, which have the records in turn: an fstat and a pread. With many=N one fstat of each file
 * serves N records. Nothing is parsed, compared or returned; records and their order are those of
 * small reads.
 *
 * With block=BYTES it reads each step-th record, `many` from the first one on and then these again,
 * as an iterator of a queue does: one pread for the records that lie within so many bytes. */
#include "rounds.h"

#include <dirent.h>
#include <endian.h>

enum { HEADER = 40, ENTRY = 20, SLOTS = 5000000, STRIDE = 7919 };
enum { PATHS = 1024, RECORD_MAX = 64 << 10, QUEUES_MAX = 64, CQ_UNIT = 20 };
static const uint32_t MESSAGE_MAGIC = 0xDAA320A7u; /* a record that is not a BLANK */

typedef struct place {
    int fd;
    int32_t size;
    int64_t at;         /* of the record in its file */
    int64_t phy_offset; /* of the record in the log */
    int64_t slot;       /* of its key, bytes of the index file */
} place;

static place *places;
static int64_t stored, found, count, many, with_index, queues, last, block, step;
static int index_fd = -1, queue_fds[QUEUES_MAX];

static void refuse(const char *what) {
    errno = EINVAL;
    die(what);
}

static uint32_t big32(const uint8_t *data) {
    uint32_t value;
    memcpy(&value, data, sizeof value);
    return be32toh(value);
}

static void read_at(int fd, void *target, int64_t size, int64_t at) {
    if (pread(fd, target, (size_t)size, at) != size) {
        die("pread");
    }
}

/* Open the files of a directory in the order of their names, which are numbers; return how many. */
static int open_all(const char *root, const char *name, int *fds, int64_t *numbers) {
    char path[4096];
    struct dirent **entries;
    int files = 0;
    snprintf(path, sizeof path, "%s/%s", root, name);
    int all = scandir(path, &entries, NULL, alphasort);
    if (all < 0) {
        die(path);
    }
    for (int i = 0; i < all; i++) {
        if (entries[i]->d_name[0] != '.' && files < PATHS) {
            snprintf(path, sizeof path, "%s/%s/%s", root, name, entries[i]->d_name);
            numbers[files] = strtoll(entries[i]->d_name, NULL, 10);
            fds[files] = open(path, O_RDONLY | O_CLOEXEC);
            if (fds[files++] < 0) {
                die(path);
            }
        }
        free(entries[i]);
    }
    free(entries);
    return files;
}

static void find_records(const char *root) {
    int fds[PATHS];
    int64_t begins[PATHS];
    int files = open_all(root, "commitlog", fds, begins);
    for (int i = 0; i < files; i++) {
        uint8_t header[8];
        int64_t at = 0;
        while (found < stored && pread(fds[i], header, sizeof header, at) == sizeof header &&
               big32(header + 4) == MESSAGE_MAGIC) {
            int32_t size = (int32_t)big32(header);
            if (size <= 0 || size > RECORD_MAX) {
                refuse("record");
            }
            places[found++] = (place){fds[i], size, at, begins[i] + at, 0};
            at += size;
        }
    }
}

/* Each record has one key: entry n of the first index file is that of record n - 1. */
static void find_slots(const char *root) {
    int fds[PATHS];
    int64_t times[PATHS];
    if (open_all(root, "index", fds, times) == 0) {
        refuse("index");
    }
    index_fd = fds[0];
    for (int64_t i = 0; i < found; i++) {
        uint8_t entry[ENTRY];
        read_at(index_fd, entry, ENTRY, HEADER + 4L * SLOTS + ENTRY * (i + 1));
        int64_t phy_offset = (int64_t)big32(entry + 4) << 32 | big32(entry + 8);
        if (phy_offset != places[i].phy_offset) {
            refuse("entry");
        }
        places[i].slot = HEADER + 4L * (big32(entry) % SLOTS);
    }
}

/* The store has one topic, and each queue one file. */
static void open_queues(const char *root) {
    char path[4096];
    struct dirent **topics;
    snprintf(path, sizeof path, "%s/consumequeue", root);
    int all = scandir(path, &topics, NULL, alphasort);
    if (all != 3) { /* with . and .. */
        refuse("topics");
    }
    for (int i = 0; i < queues; i++) {
        int fds[PATHS];
        int64_t begins[PATHS];
        snprintf(path, sizeof path, "consumequeue/%s/%d", topics[2]->d_name, i);
        if (open_all(root, path, fds, begins) != 1) {
            refuse("queue files");
        }
        queue_fds[i] = fds[0];
    }
}

static void look(int fd) {
    struct stat about;
    if (fstat(fd, &about) != 0 || about.st_nlink == 0) {
        die("fstat");
    }
}

static unit_result unit(void) {
    static uint8_t record[RECORD_MAX];
    uint8_t slot[4], entry[ENTRY];
    int64_t bytes = 0;
    start_clock();
    for (int64_t i = 1; i <= count; i++) {
        int64_t number = (last + i * STRIDE) % found;
        const place *one = &places[number];
        if (with_index) {
            if ((i - 1) % many == 0) {
                look(index_fd);
            }
            read_at(index_fd, slot, sizeof slot, one->slot);
            read_at(index_fd, entry, ENTRY, HEADER + 4L * SLOTS + ENTRY * (number + 1));
        }
        if (queues > 0) {
            int fd = queue_fds[number % queues];
            look(fd);
            read_at(fd, entry, CQ_UNIT, number / queues * CQ_UNIT);
        }
        if ((i - 1) % many == 0) {
            look(one->fd);
        }
        read_at(one->fd, record, one->size, one->at);
        bytes += one->size;
    }
    unit_result result = stop_clock(count, bytes);
    last = (last + count * STRIDE) % found;
    return result;
}

static unit_result unit_of_blocks(void) {
    static uint8_t *buffer;
    int64_t bytes = 0, done = 0, at = 0;
    if (buffer == NULL && (buffer = malloc((size_t)(block + RECORD_MAX))) == NULL) {
        die("malloc");
    }
    start_clock();
    while (done < count) {
        const place *first = &places[at];
        int64_t stop;
        if (at == 0) {
            look(first->fd);
        }
        do {
            bytes += places[at].size;
            stop = places[at].at + places[at].size;
            at += step;
            done++;
        } while (done % many != 0 && done < count && at < found && places[at].fd == first->fd &&
                 places[at].at + places[at].size - first->at <= block);
        read_at(first->fd, buffer, stop - first->at, first->at);
        if (done % many == 0 || at >= found) {
            at = 0;
        }
    }
    return stop_clock(count, bytes);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        return 2;
    }
    options = argv + 2;
    options_count = argc - 2;
    count = option("count", 1000);
    stored = option("stored", 1000);
    with_index = option("index", 0);
    many = option("many", 1);
    queues = option("queues", 0);
    block = option("block", 0);
    step = option("step", 1);
    places = calloc((size_t)stored, sizeof *places);
    if (places == NULL || many <= 0 || step <= 0 || queues < 0 || queues > QUEUES_MAX) {
        refuse("options");
    }
    find_records(argv[1]);
    if (found == 0) {
        refuse("no record");
    }
    if (with_index) {
        find_slots(argv[1]);
    }
    if (queues > 0) {
        open_queues(argv[1]);
    }
    answer_rounds(block > 0 ? unit_of_blocks : unit);
    return 0;
}
