// Transpose sixteen vectors of sixteen lanes of any 32-bit type. Included inside a target region for AVX-512.
FASTBERT_INLINE void transpose_lanes(__m512 (&rows)[16]) {
    __m512 pairs[16], fours[16];
    for (int i = 0; i < 16; i += 2) {
        pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        for (int j = 0; j < 2; ++j) {
            fours[i + 2 * j] = _mm512_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0x44);
            fours[i + 2 * j + 1] = _mm512_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0xEE);
        }
    }
    // fours[4 g + j] now holds columns j, j + 4, j + 8, j + 12 of rows 4 g to 4 g + 3, one per quarter.
    for (int j = 0; j < 4; ++j) {
        const __m512 low_01 = _mm512_shuffle_f32x4(fours[j], fours[4 + j], 0x44);
        const __m512 high_01 = _mm512_shuffle_f32x4(fours[j], fours[4 + j], 0xEE);
        const __m512 low_23 = _mm512_shuffle_f32x4(fours[8 + j], fours[12 + j], 0x44);
        const __m512 high_23 = _mm512_shuffle_f32x4(fours[8 + j], fours[12 + j], 0xEE);
        rows[j] = _mm512_shuffle_f32x4(low_01, low_23, 0x88);
        rows[j + 4] = _mm512_shuffle_f32x4(low_01, low_23, 0xDD);
        rows[j + 8] = _mm512_shuffle_f32x4(high_01, high_23, 0x88);
        rows[j + 12] = _mm512_shuffle_f32x4(high_01, high_23, 0xDD);
    }
}
