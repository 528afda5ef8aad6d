/* CRC-32 on 64-bit ARM: the crc instructions (8 bytes a step), and folding with PMULL (16 bytes a
 * step) for longer inputs. crc32.c explains the algebra. */
#include <arm_acle.h>
#include <arm_neon.h>
#if defined(__linux__)
#include <sys/auxv.h>
#define ARM_HWCAP_PMULL (1ul << 4)
#define ARM_HWCAP_CRC32 (1ul << 7)
#endif

#if defined(__clang__)
#define TARGET_CRC __attribute__((target("crc")))
#define TARGET_PMULL __attribute__((target("crc,aes")))
#else
#define TARGET_CRC __attribute__((target("+crc")))
#define TARGET_PMULL __attribute__((target("+crc+crypto")))
#endif
#define BLOCK_FN TARGET_PMULL __attribute__((always_inline)) static inline

TARGET_CRC static uint32_t crc32_arm_crc(uint32_t crc, const uint8_t *p, size_t size) {
    crc = ~crc;
    for (; size >= 8; p += 8, size -= 8) crc = __crc32d(crc, load_le64(p));
    if (size & 4) {
        crc = __crc32w(crc, load_le32(p));
        p += 4;
    }
    if (size & 2) {
        crc = __crc32h(crc, (uint16_t)(p[0] | p[1] << 8));
        p += 2;
    }
    if (size & 1) crc = __crc32b(crc, *p);
    return ~crc;
}

/* ---- one block of 16 bytes ------------------------------------------------------------------ */
typedef uint64x2_t rs_block;
#define BLOCK_PAIR(bits) vcombine_u64(vcreate_u64(RS_FOLD_##bits##_FIRST), \
                                      vcreate_u64(RS_FOLD_##bits##_SECOND))

BLOCK_FN rs_block block_load(const uint8_t *p) { return vreinterpretq_u64_u8(vld1q_u8(p)); }
BLOCK_FN rs_block block_by_one(void) { return BLOCK_PAIR(128); }
BLOCK_FN rs_block block_start(rs_block x, uint32_t crc) {
    return veorq_u64(x, vcombine_u64(vcreate_u64(crc), vcreate_u64(0)));
}
BLOCK_FN rs_block block_step(rs_block x, rs_block k, rs_block next) {
    poly64x2_t a = vreinterpretq_p64_u64(x), b = vreinterpretq_p64_u64(k);
    poly128_t low = vmull_p64(vgetq_lane_p64(a, 0), vgetq_lane_p64(b, 0));
    uint64x2_t first = vreinterpretq_u64_p128(low);
    uint64x2_t second = vreinterpretq_u64_p128(vmull_high_p64(a, b));
    return veorq_u64(veorq_u64(first, second), next);
}

/* Combine as in crc32_x86.h; indices outside the block select zeros. */
BLOCK_FN rs_block block_tail(rs_block x, rs_block by_one, const uint8_t *p, size_t size) {
    uint8x16_t keep = vld1q_u8(rs_block_shifts + size);
    uint8x16_t push = vld1q_u8(rs_block_shifts + 16 + size);
    uint8x16_t block = vreinterpretq_u8_u64(x);
    uint8x16_t after = vbslq_u8(vcgeq_u8(push, vdupq_n_u8(0x80)), vld1q_u8(p + size - 16),
                                vqtbl1q_u8(block, push));
    return block_step(vreinterpretq_u64_u8(vqtbl1q_u8(block, keep)), by_one,
                      vreinterpretq_u64_u8(after));
}

/* The crc instructions multiply by x^32 and divide, which completes the CRC. */
BLOCK_FN uint32_t block_finish(rs_block x) {
    return __crc32d(__crc32d(0, vgetq_lane_u64(x, 0)), vgetq_lane_u64(x, 1));
}
#define crc32_short crc32_arm_crc

#define FOLD_NAME crc32_pmull_any
#define FOLD_TARGET TARGET_PMULL
#define FOLD_V rs_block
#define FOLD_WIDTH 16
#define FOLD_LOAD(p) block_load(p)
#define FOLD_START(v, crc) block_start(v, crc)
#define FOLD_STEP(v, k, next) block_step(v, k, next)
#define BLOCK_BY_1 BLOCK_PAIR(128)
#define BLOCK_BY_2 BLOCK_PAIR(256)
#define BLOCK_BY_4 BLOCK_PAIR(512)
#define FOLD_BY(count) BLOCK_BY_##count
#define FOLD_NARROW(v) (v)
#include "crc32_fold.h"

/* Smaller inputs do not fill the four chains; the crc instructions are faster for them. */
#define PMULL_MIN_SIZE 64

static uint32_t crc32_arm_pmull(uint32_t crc, const uint8_t *p, size_t size) {
    if (size < PMULL_MIN_SIZE) return crc32_arm_crc(crc, p, size);
    return crc32_pmull_any(crc, p, size);
}

/* ---- the processor --------------------------------------------------------------------------- */
static uint32_t processor_features(void) {
#if defined(__linux__)
    unsigned long bits = getauxval(AT_HWCAP);
    if (!(bits & ARM_HWCAP_CRC32)) return 0;
    return bits & ARM_HWCAP_PMULL ? NEEDS_ARM_CRC | NEEDS_ARM_PMULL : NEEDS_ARM_CRC;
#elif defined(__APPLE__)
    return NEEDS_ARM_CRC | NEEDS_ARM_PMULL; /* every 64-bit Apple processor that runs macOS */
#else
    return 0;
#endif
}

#define PROCESSOR_KERNELS                               \
    {"arm_pmull", crc32_arm_pmull, NEEDS_ARM_PMULL},    \
    {"arm_crc", crc32_arm_crc, NEEDS_ARM_CRC},
