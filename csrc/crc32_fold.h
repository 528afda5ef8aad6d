/* The folding kernel, included once for each vector width. crc32.c explains the algebra.
 *
 * The includer defines these macros; this file undefines them at its end:
 *   FOLD_NAME, FOLD_TARGET  the function, and the attribute that enables its instructions
 *   FOLD_V, FOLD_WIDTH      the vector, and its size in bytes
 *   FOLD_LOAD(p)            load a vector from unaligned bytes
 *   FOLD_START(v, crc)      v with crc added to its first four bytes
 *   FOLD_STEP(v, k, next)   v folded forward by the multipliers k, plus next
 *   FOLD_BY(count)          the multipliers that fold a vector over count vectors
 *   FOLD_NARROW(v)          the vector's blocks, all folded into the last one
 * and, for all widths, rs_block with block_load, block_start, block_step, block_by_one,
 * block_tail, block_finish and crc32_short. */

FOLD_TARGET static uint32_t FOLD_NAME(uint32_t crc, const uint8_t *p, size_t size) {
    rs_block block;
    if (size < 16) return crc32_short(crc, p, size);
    if (size < FOLD_WIDTH) {
        block = block_start(block_load(p), ~crc);
        p += 16;
        size -= 16;
    } else {
        FOLD_V a = FOLD_START(FOLD_LOAD(p), ~crc);
        const FOLD_V by_one = FOLD_BY(1);
        p += FOLD_WIDTH;
        size -= FOLD_WIDTH;
        if (size >= 3 * FOLD_WIDTH) {
            /* Four chains, because a multiplication's latency is longer than its issue interval. */
            const FOLD_V by_four = FOLD_BY(4), by_two = FOLD_BY(2);
            FOLD_V b = FOLD_LOAD(p);
            FOLD_V c = FOLD_LOAD(p + FOLD_WIDTH);
            FOLD_V d = FOLD_LOAD(p + 2 * FOLD_WIDTH);
            p += 3 * FOLD_WIDTH;
            size -= 3 * FOLD_WIDTH;
            for (; size >= 4 * FOLD_WIDTH; p += 4 * FOLD_WIDTH, size -= 4 * FOLD_WIDTH) {
                a = FOLD_STEP(a, by_four, FOLD_LOAD(p));
                b = FOLD_STEP(b, by_four, FOLD_LOAD(p + FOLD_WIDTH));
                c = FOLD_STEP(c, by_four, FOLD_LOAD(p + 2 * FOLD_WIDTH));
                d = FOLD_STEP(d, by_four, FOLD_LOAD(p + 3 * FOLD_WIDTH));
            }
            c = FOLD_STEP(a, by_two, c);
            d = FOLD_STEP(b, by_two, d);
            a = FOLD_STEP(c, by_one, d);
        }
        for (; size >= FOLD_WIDTH; p += FOLD_WIDTH, size -= FOLD_WIDTH)
            a = FOLD_STEP(a, by_one, FOLD_LOAD(p));
        block = FOLD_NARROW(a);
    }
    const rs_block by_one = block_by_one();
    for (; size >= 16; p += 16, size -= 16) block = block_step(block, by_one, block_load(p));
    if (size > 0) block = block_tail(block, by_one, p, size);
    return ~block_finish(block);
}

#undef FOLD_NAME
#undef FOLD_TARGET
#undef FOLD_V
#undef FOLD_WIDTH
#undef FOLD_LOAD
#undef FOLD_START
#undef FOLD_STEP
#undef FOLD_BY
#undef FOLD_NARROW
