/* CRC-32 with zlib's polynomial: the algebra, the portable kernels, and the selection of a kernel.
 *
 * A message is a polynomial over GF(2): its first bit is the highest coefficient. The CRC is
 * (message * x^32) mod G for a G of degree 32, except that the first 32 bits are inverted before
 * and the result after. The first bit is the lowest bit of the first byte. In a word that was
 * loaded little-endian, bit i of 64 is therefore the coefficient of x^(63-i): everything is
 * reflected, and the reflected register of a CRC is a little-endian word as well. Addition is XOR.
 *
 * Only the remainder matters. A block A of 128 bits can therefore be replaced by any short
 * polynomial that is congruent to A * x^d, added to the block d bits later. With A = L * x^64 + H
 * (L comes first in memory),
 *
 *     A * x^d  is congruent to  L * (x^(d+64) mod G) + H * (x^d mod G)
 *
 * which is two carry-less multiplications of 64 by 64 bits, and has less than 128 bits. In the
 * product of two reflected words, bit k is the coefficient of x^(126-k): read as 128 bits, it is
 * the product times x. The multipliers are therefore x^(d+63) and x^(d-1) mod G. Chains of blocks
 * with distance d are folded over the message in this way (crc32_fold.h), then added to one block.
 *
 * The last block is divided by G. 1/G is a series in 1/x with coefficients g(k), k >= 32. The
 * quotient of A * x^32 by G is the integer part of (L * x^96 + H * x^32) * sum g(k) x^-k. Only its
 * lowest 32 coefficients matter, because the remainder is the part of quotient * G below x^32. For
 * H they depend on g(32..95), one 64-bit window; for L on g(65..159), in the windows at 32 and at
 * 96. Three multiplications compute the quotient, a fourth the remainder. Each window is aligned so
 * that the result is one 32-bit lane. */
#include "rocketstore.h"

#include <string.h>

#include "crc32_tables.h"

/* ---- portable ------------------------------------------------------------------------------- */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define LE32(v) __builtin_bswap32(v)
#define LE64(v) __builtin_bswap64(v)
#else
#define LE32(v) (v)
#define LE64(v) (v)
#endif

static inline uint32_t load_le32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return LE32(v);
}
static inline uint64_t load_le64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return LE64(v);
}

static uint32_t crc32_bytes(uint32_t crc, const uint8_t *p, size_t size) {
    crc = ~crc;
    for (size_t i = 0; i < size; i++) crc = (crc >> 8) ^ rs_crc32_slices[0][(crc ^ p[i]) & 0xFF];
    return ~crc;
}

/* Eight bytes a step: one table look-up for each byte, all independent of each other. */
static uint32_t crc32_slice8(uint32_t crc, const uint8_t *p, size_t size) {
    crc = ~crc;
    for (; size >= 8; p += 8, size -= 8) {
        uint64_t word = load_le64(p) ^ crc;
        crc = 0;
        for (int i = 0; i < 8; i++) crc ^= rs_crc32_slices[7 - i][(word >> (8 * i)) & 0xFF];
    }
    return crc32_bytes(~crc, p, size);
}

/* ---- kernels for this processor ------------------------------------------------------------- */
enum {
    NEEDS_NOTHING = 0,
    NEEDS_PCLMUL = 1,
    NEEDS_VPCLMUL_AVX2 = 2,
    NEEDS_VPCLMUL_AVX512 = 4,
    NEEDS_ARM_CRC = 8,
    NEEDS_ARM_PMULL = 16
};

#if defined(__GNUC__) && defined(__x86_64__)
#define HAVE_BLOCKS 1
#elif defined(__GNUC__) && defined(__aarch64__) && !defined(__AARCH64EB__)
#define HAVE_BLOCKS 1
#endif

#if defined(HAVE_BLOCKS)
/* Byte indices for shuffles: the 16 from [n] shift a block up by 16 - n bytes, the 16 from [16 + n]
 * shift it down by n; 0x80 selects a zero. */
static const uint8_t rs_block_shifts[48] = {
    0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
    0,    1,    2,    3,    4,    5,    6,    7,    8,    9,    10,   11,   12,   13,   14,   15,
    0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
};
#endif

#if defined(HAVE_BLOCKS) && defined(__x86_64__)
/* Load 4 to 15 bytes as a block with leading zeros. The zeros have no effect, because the register
 * is added to the first four bytes after them. */
static inline void crc32_front_pad(uint32_t crc, const uint8_t *p, size_t size, uint64_t *first,
                                   uint64_t *second) {
    unsigned bits = 8 * (unsigned)size;
    if (size >= 8) {
        uint64_t start = load_le64(p) ^ crc;
        *first = bits == 64 ? 0 : start << (128 - bits);
        *second = load_le64(p + size - 8) ^ ((uint64_t)crc >> (bits - 64));
    } else {
        uint64_t start = load_le32(p) ^ crc;
        uint64_t last = load_le32(p + size - 4) ^ (uint64_t)(crc >> (bits - 32));
        *first = 0;
        *second = start << (64 - bits) | last << 32;
    }
}
#include "crc32_x86.h"
#elif defined(HAVE_BLOCKS)
#include "crc32_arm.h"
#else
#define PROCESSOR_KERNELS
static uint32_t processor_features(void) { return 0; }
#endif

/* ---- selection ------------------------------------------------------------------------------ */
typedef struct crc32_kernel {
    const char *name;
    rs_crc32_fn run;
    uint32_t needs;
} crc32_kernel;

/* Best first. */
static const crc32_kernel kernels[] = {PROCESSOR_KERNELS{"slice8", crc32_slice8, NEEDS_NOTHING}};
#define KERNEL_COUNT (sizeof kernels / sizeof kernels[0])

static uint32_t crc32_first_call(uint32_t crc, const uint8_t *p, size_t size);
/* The only state. Concurrent first calls all store the same value. */
static rs_crc32_fn chosen = crc32_first_call;

static rs_crc32_fn chosen_kernel(void) {
    rs_crc32_fn run = __atomic_load_n(&chosen, __ATOMIC_RELAXED);
    if (run != crc32_first_call) return run;
    uint32_t features = processor_features();
    size_t i = 0;
    while ((kernels[i].needs & features) != kernels[i].needs) i++; /* slice8 needs nothing */
    /* Keep the kernel that another thread selected meanwhile. */
    rs_crc32_fn before = crc32_first_call;
    if (__atomic_compare_exchange_n(&chosen, &before, kernels[i].run, 0, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED))
        return kernels[i].run;
    return before;
}

static uint32_t crc32_first_call(uint32_t crc, const uint8_t *p, size_t size) {
    return chosen_kernel()(crc, p, size);
}

uint32_t rs_crc32(uint32_t crc, const uint8_t *p, size_t size) {
    return __atomic_load_n(&chosen, __ATOMIC_RELAXED)(crc, p, size);
}

const char *const *rs_crc32_kernels(void) {
    static const char *const names[] = {
#if defined(HAVE_BLOCKS) && defined(__x86_64__)
        "vpclmul_avx512", "vpclmul_avx2", "pclmul",
#elif defined(HAVE_BLOCKS)
        "arm_pmull", "arm_crc",
#endif
        "slice8", NULL};
    static_assert(sizeof names / sizeof names[0] == KERNEL_COUNT + 1, "one name for each kernel");
    return names;
}

rs_crc32_fn rs_crc32_by_name(const char *name) {
    uint32_t features = processor_features();
    for (size_t i = 0; i < KERNEL_COUNT; i++) {
        if (strcmp(kernels[i].name, name) != 0) continue;
        return (kernels[i].needs & features) == kernels[i].needs ? kernels[i].run : NULL;
    }
    return NULL;
}

const char *rs_crc32_kernel_name(void) {
    rs_crc32_fn run = chosen_kernel();
    size_t i = 0;
    while (kernels[i].run != run) i++;
    return kernels[i].name;
}

int rs_crc32_select(const char *name) {
    rs_crc32_fn run = rs_crc32_by_name(name);
    if (run == NULL) return -1;
    __atomic_store_n(&chosen, run, __ATOMIC_RELAXED);
    return 0;
}
