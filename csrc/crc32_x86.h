/* CRC-32 by carry-less multiplication on x86: PCLMUL (16 bytes a step), VPCLMUL with AVX2 (32) and
 * with AVX-512 (64), and the detection of processor features. crc32.c explains the algebra. */
#include <cpuid.h>
#include <immintrin.h>

#define TARGET_PCLMUL __attribute__((target("pclmul,ssse3,sse4.1")))
#define TARGET_AVX2 __attribute__((target("pclmul,vpclmulqdq,avx2")))
#define TARGET_AVX512 __attribute__((target("pclmul,vpclmulqdq,avx2,avx512f,avx512vl")))
#define BLOCK_FN TARGET_PCLMUL __attribute__((always_inline)) static inline

/* ---- one block of 16 bytes ------------------------------------------------------------------ */
typedef __m128i rs_block;
#define BLOCK_PAIR(bits) \
    _mm_set_epi64x((long long)RS_FOLD_##bits##_SECOND, (long long)RS_FOLD_##bits##_FIRST)

BLOCK_FN rs_block block_load(const uint8_t *p) { return _mm_loadu_si128((const void *)p); }
BLOCK_FN rs_block block_by_one(void) { return BLOCK_PAIR(128); }
BLOCK_FN rs_block block_start(rs_block x, uint32_t crc) {
    return _mm_xor_si128(x, _mm_cvtsi32_si128((int)crc));
}
BLOCK_FN rs_block block_step(rs_block x, rs_block k, rs_block next) {
    rs_block first = _mm_clmulepi64_si128(x, k, 0x00);
    rs_block second = _mm_clmulepi64_si128(x, k, 0x11);
    return _mm_xor_si128(_mm_xor_si128(first, second), next);
}

/* Combine the block and the `size` (1 to 15) bytes after it into one block: fold its first `size`
 * bytes over its other bytes and the new ones. Reads the 16 bytes that end at p + size; the kernels
 * call this after at least 16 bytes. */
BLOCK_FN rs_block block_tail(rs_block x, rs_block by_one, const uint8_t *p, size_t size) {
    rs_block keep = _mm_loadu_si128((const void *)(rs_block_shifts + size));
    rs_block push = _mm_loadu_si128((const void *)(rs_block_shifts + 16 + size));
    /* `keep` shifts the block up by 16 - size bytes, `push` down by size; 0x80 and above select
     * 0. */
    rs_block before = _mm_shuffle_epi8(x, keep);
    rs_block after = _mm_shuffle_epi8(x, push);
    rs_block bytes = block_load(p + size - 16);
    after = _mm_blendv_epi8(after, bytes, push);
    return block_step(before, by_one, after);
}

BLOCK_FN uint32_t block_finish(rs_block x) {
    rs_block inverse = _mm_set_epi64x((long long)RS_INVERSE_32, (long long)RS_INVERSE_96);
    rs_block generator = _mm_cvtsi64_si128((long long)RS_GENERATOR);
    rs_block q = _mm_xor_si128(_mm_clmulepi64_si128(x, inverse, 0x00),
                               _mm_clmulepi64_si128(x, inverse, 0x11));
    q = _mm_xor_si128(q, _mm_srli_si128(_mm_clmulepi64_si128(x, inverse, 0x10), 8));
    return (uint32_t)_mm_extract_epi32(_mm_clmulepi64_si128(q, generator, 0x00), 2);
}

BLOCK_FN uint32_t crc32_short(uint32_t crc, const uint8_t *p, size_t size) {
    uint64_t first, second;
    if (size < 4) return crc32_bytes(crc, p, size);
    crc32_front_pad(~crc, p, size, &first, &second);
    return ~block_finish(_mm_set_epi64x((long long)second, (long long)first));
}

/* ---- the kernels ---------------------------------------------------------------------------- */
#define FOLD_NAME crc32_pclmul
#define FOLD_TARGET TARGET_PCLMUL
#define FOLD_V __m128i
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

TARGET_AVX2 __attribute__((always_inline)) static inline __m256i avx2_step(__m256i v, __m256i k,
                                                                           __m256i next) {
    __m256i first = _mm256_clmulepi64_epi128(v, k, 0x00);
    __m256i second = _mm256_clmulepi64_epi128(v, k, 0x11);
    return _mm256_xor_si256(_mm256_xor_si256(first, second), next);
}
TARGET_AVX2 __attribute__((always_inline)) static inline rs_block avx2_narrow(__m256i v) {
    return block_step(_mm256_castsi256_si128(v), BLOCK_PAIR(128), _mm256_extracti128_si256(v, 1));
}

#define FOLD_NAME crc32_vpclmul_avx2
#define FOLD_TARGET TARGET_AVX2
#define FOLD_V __m256i
#define FOLD_WIDTH 32
#define FOLD_LOAD(p) _mm256_loadu_si256((const void *)(p))
#define FOLD_START(v, crc) _mm256_xor_si256(v, _mm256_set_epi32(0, 0, 0, 0, 0, 0, 0, (int)(crc)))
#define FOLD_STEP(v, k, next) avx2_step(v, k, next)
#define AVX2_BY_1 _mm256_broadcastsi128_si256(BLOCK_PAIR(256))
#define AVX2_BY_2 _mm256_broadcastsi128_si256(BLOCK_PAIR(512))
#define AVX2_BY_4 _mm256_broadcastsi128_si256(BLOCK_PAIR(1024))
#define FOLD_BY(count) AVX2_BY_##count
#define FOLD_NARROW(v) avx2_narrow(v)
#include "crc32_fold.h"

TARGET_AVX512 __attribute__((always_inline)) static inline __m512i avx512_step(__m512i v, __m512i k,
                                                                               __m512i next) {
    __m512i first = _mm512_clmulepi64_epi128(v, k, 0x00);
    __m512i second = _mm512_clmulepi64_epi128(v, k, 0x11);
    return _mm512_ternarylogic_epi64(first, second, next, 0x96); /* a ^ b ^ c */
}
TARGET_AVX512 __attribute__((always_inline)) static inline rs_block avx512_narrow(__m512i v) {
    __m256i by_256 = _mm256_broadcastsi128_si256(BLOCK_PAIR(256));
    return avx2_narrow(
        avx2_step(_mm512_castsi512_si256(v), by_256, _mm512_extracti64x4_epi64(v, 1)));
}

#define FOLD_NAME crc32_vpclmul_avx512
#define FOLD_TARGET TARGET_AVX512
#define FOLD_V __m512i
#define FOLD_WIDTH 64
#define FOLD_LOAD(p) _mm512_loadu_si512((const void *)(p))
#define FOLD_START(v, crc) \
    _mm512_xor_si512(v, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)(crc))))
#define FOLD_STEP(v, k, next) avx512_step(v, k, next)
#define AVX512_BY_1 _mm512_broadcast_i32x4(BLOCK_PAIR(512))
#define AVX512_BY_2 _mm512_broadcast_i32x4(BLOCK_PAIR(1024))
#define AVX512_BY_4 _mm512_broadcast_i32x4(BLOCK_PAIR(2048))
#define FOLD_BY(count) AVX512_BY_##count
#define FOLD_NARROW(v) avx512_narrow(v)
#include "crc32_fold.h"

/* ---- the processor --------------------------------------------------------------------------- */
/* Bits of XCR0: the register files that the operating system saves. */
#define XCR0_YMM 0x6u
#define XCR0_ZMM 0xE6u

static uint32_t saved_registers(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static uint32_t processor_features(void) {
    uint32_t a, b, c, d, features = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    if ((c & bit_PCLMUL) && (c & bit_SSSE3) && (c & bit_SSE4_1)) features |= NEEDS_PCLMUL;
    if (!features || !(c & bit_OSXSAVE)) return features;
    uint32_t saved = saved_registers();
    if ((saved & XCR0_YMM) != XCR0_YMM || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return features;
    if (!(b & bit_AVX2) || !(c & bit_VPCLMULQDQ)) return features;
    features |= NEEDS_VPCLMUL_AVX2;
    if ((saved & XCR0_ZMM) == XCR0_ZMM && (b & bit_AVX512F) && (b & bit_AVX512VL))
        features |= NEEDS_VPCLMUL_AVX512;
    return features;
}

#define PROCESSOR_KERNELS                                              \
    {"vpclmul_avx512", crc32_vpclmul_avx512, NEEDS_VPCLMUL_AVX512},    \
    {"vpclmul_avx2", crc32_vpclmul_avx2, NEEDS_VPCLMUL_AVX2},          \
    {"pclmul", crc32_pclmul, NEEDS_PCLMUL},
