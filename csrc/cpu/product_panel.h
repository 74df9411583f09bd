// Row panels of kRows rows by AVX-512: words of 32 bits, [words][kRows]. Included inside a region, behind
// transpose_avx512.h.

// `load(row, word)` gives sixteen words of a row from `word` on. Sixteen rows are stored where kRows of them belong,
// and the next word's store covers what is too much: behind the panel there must be room for 16 - kRows words.
template <std::size_t kRows, class Load>
FASTBERT_INLINE void fill_words(std::size_t rows, std::size_t words, std::byte* panel, Load load) {
    for (std::size_t word = 0; word < words; word += 16) {
        __m512 x[16];
        for (std::size_t row = 0; row < 16; ++row) x[row] = row < rows ? load(row, word) : _mm512_setzero_ps();
        transpose_16(x);
        for (std::size_t i = 0; i < 16; ++i) _mm512_storeu_ps(panel + (word + i) * kRows * 4, x[i]);
    }
}
