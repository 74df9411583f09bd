// Row panels of kRows rows by AVX-512: words of 32 bits, [words][kRows]. Included inside a region.

// Sixteen rows of sixteen words: word j of row i becomes word i of row j.
FASTBERT_INLINE void transpose(__m512i (&x)[16]) {
    __m512i y[16];
    for (int i = 0; i < 16; i += 2) {
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
        x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
        x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
        x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
    for (int i = 0; i < 16; i += 8) {
        for (int j = 0; j < 4; ++j) {
            y[i + j] = _mm512_shuffle_i32x4(x[i + j], x[i + j + 4], 0x88);
            y[i + j + 4] = _mm512_shuffle_i32x4(x[i + j], x[i + j + 4], 0xDD);
        }
    }
    for (int j = 0; j < 8; ++j) {
        x[j] = _mm512_shuffle_i32x4(y[j], y[j + 8], 0x88);
        x[j + 8] = _mm512_shuffle_i32x4(y[j], y[j + 8], 0xDD);
    }
}

// `load(row, word)` gives sixteen words of a row from `word` on. Sixteen rows are stored where kRows of them belong,
// and the next word's store covers what is too much: behind the panel there must be room for 16 - kRows words.
template <std::size_t kRows, class Load>
FASTBERT_INLINE void fill_words(std::size_t rows, std::size_t words, std::byte* panel, Load load) {
    for (std::size_t word = 0; word < words; word += 16) {
        __m512i x[16];
        for (std::size_t row = 0; row < 16; ++row) x[row] = row < rows ? load(row, word) : _mm512_setzero_si512();
        transpose(x);
        for (std::size_t i = 0; i < 16; ++i) _mm512_storeu_si512(panel + (word + i) * kRows * 4, x[i]);
    }
}
