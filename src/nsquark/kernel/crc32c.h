/* CRC-32C (Castagnoli): by folding where the processor can, else by its instruction, else by a table. */
#ifndef NSQUARK_CRC32C_H
#define NSQUARK_CRC32C_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint32_t crc32c_table[8][256];

static void crc32c_init(void) {
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t crc = n;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >> 1) ^ 0x82F63B78u : crc >> 1;
        crc32c_table[0][n] = crc;
    }
    for (uint32_t n = 0; n < 256; n++)
        for (int row = 1; row < 8; row++)
            crc32c_table[row][n] = (crc32c_table[row - 1][n] >> 8) ^ crc32c_table[0][crc32c_table[row - 1][n] & 0xFF];
}

static uint32_t crc32c_portable(uint32_t crc, const uint8_t *p, size_t n) {
    for (; n >= 8; n -= 8, p += 8) {
        crc ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        crc = crc32c_table[7][crc & 0xFF] ^ crc32c_table[6][crc >> 8 & 0xFF] ^ crc32c_table[5][crc >> 16 & 0xFF] ^
              crc32c_table[4][crc >> 24] ^ crc32c_table[3][p[4]] ^ crc32c_table[2][p[5]] ^ crc32c_table[1][p[6]] ^
              crc32c_table[0][p[7]];
    }
    while (n--) crc = (crc >> 8) ^ crc32c_table[0][(crc ^ *p++) & 0xFF];
    return crc;
}

/* The instruction takes three cycles and one can begin in each: three lanes are summed side by side. The sum of a
   whole is that of its first part, moved over as many zeros as the second part has bytes, xor that of the second. */
#define CRC32C_LANE 1024
static uint32_t crc32c_over_lane[4][256];

static uint32_t crc32c_move(uint32_t crc) {
    return crc32c_over_lane[0][crc & 0xFF] ^ crc32c_over_lane[1][crc >> 8 & 0xFF] ^
           crc32c_over_lane[2][crc >> 16 & 0xFF] ^ crc32c_over_lane[3][crc >> 24];
}

static void crc32c_init_lanes(void) {
    static const uint8_t zeros[CRC32C_LANE];
    for (int row = 0; row < 4; row++)
        for (uint32_t n = 0; n < 256; n++)
            crc32c_over_lane[row][n] = crc32c_portable(n << 8 * row, zeros, CRC32C_LANE);
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("sse4.2"))) static uint32_t crc32c_hardware(uint32_t crc, const uint8_t *p, size_t n) {
    uint64_t wide = crc, second, third, word[3];
    for (; n >= 3 * CRC32C_LANE; n -= 3 * CRC32C_LANE, p += 2 * CRC32C_LANE) {
        second = third = 0;
        for (const uint8_t *end = p + CRC32C_LANE; p < end; p += 8) {
            memcpy(word, p, 8);
            memcpy(word + 1, p + CRC32C_LANE, 8);
            memcpy(word + 2, p + 2 * CRC32C_LANE, 8);
            wide = __builtin_ia32_crc32di(wide, word[0]);
            second = __builtin_ia32_crc32di(second, word[1]);
            third = __builtin_ia32_crc32di(third, word[2]);
        }
        wide = crc32c_move(crc32c_move((uint32_t)wide) ^ (uint32_t)second) ^ (uint32_t)third;
    }
    for (; n >= 8; n -= 8, p += 8) {
        memcpy(word, p, 8);
        wide = __builtin_ia32_crc32di(wide, word[0]);
    }
    crc = (uint32_t)wide;
    while (n--) crc = __builtin_ia32_crc32qi(crc, *p++);
    return crc;
}
static int crc32c_has_hardware(void) { return __builtin_cpu_supports("sse4.2"); }
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
static uint32_t crc32c_hardware(uint32_t crc, const uint8_t *p, size_t n) {
    uint64_t word;
    for (; n >= 8; n -= 8, p += 8) {
        memcpy(&word, p, 8);
        crc = __crc32cd(crc, word);
    }
    while (n--) crc = __crc32cb(crc, *p++);
    return crc;
}
static int crc32c_has_hardware(void) { return 1; }
#else
static uint32_t crc32c_hardware(uint32_t crc, const uint8_t *p, size_t n) { return crc32c_portable(crc, p, n); }
static int crc32c_has_hardware(void) { return 0; }
#endif

/* Where the processor multiplies polynomials 64 bytes at a time, a long run is folded: four lanes of 64 bytes are moved
   over the next four and added to them, until 256 bytes are left that have the sum of all before. To move the 128 bits
   A * x^64 + B over D bits is to multiply A by x^(D + 64) and B by x^D, modulo the polynomial. Bits are in reverse, and
   the product of two such words is one place short: hence one power less. */
#define CRC32C_FOLDED 256
#define CRC32C_WORTH_FOLDING 512
#if defined(__x86_64__) && ((defined(__clang__) && __clang_major__ >= 9) || (!defined(__clang__) && __GNUC__ >= 9))
#include <immintrin.h>
static uint64_t crc32c_over_folded[2]; /* for A and for B */

static uint64_t crc32c_power(unsigned exponent) {
    uint32_t power = 0x80000000u;
    while (exponent--) power = power & 1 ? (power >> 1) ^ 0x82F63B78u : power >> 1;
    return (uint64_t)power << 32;
}

static int crc32c_init_folding(void) {
    crc32c_over_folded[0] = crc32c_power(8 * CRC32C_FOLDED + 63);
    crc32c_over_folded[1] = crc32c_power(8 * CRC32C_FOLDED - 1);
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
}

#define CRC32C_FOLD(lane, next)                                                                                   \
    _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(lane, by, 0x00), _mm512_clmulepi64_epi128(lane, by, 0x11), \
                              _mm512_loadu_si512(next), 0x96)

__attribute__((target("avx512f,vpclmulqdq,sse4.2"))) static uint32_t crc32c_folded(uint32_t crc, const uint8_t *p,
                                                                                   size_t n) {
    const __m512i by = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)crc32c_over_folded));
    __m512i a = _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_maskz_set1_epi64(1, crc));
    __m512i b = _mm512_loadu_si512(p + 64), c = _mm512_loadu_si512(p + 128), d = _mm512_loadu_si512(p + 192);
    uint8_t left[CRC32C_FOLDED];
    for (p += CRC32C_FOLDED, n -= CRC32C_FOLDED; n >= CRC32C_FOLDED; p += CRC32C_FOLDED, n -= CRC32C_FOLDED) {
        a = CRC32C_FOLD(a, p);
        b = CRC32C_FOLD(b, p + 64);
        c = CRC32C_FOLD(c, p + 128);
        d = CRC32C_FOLD(d, p + 192);
    }
    _mm512_storeu_si512(left, a);
    _mm512_storeu_si512(left + 64, b);
    _mm512_storeu_si512(left + 128, c);
    _mm512_storeu_si512(left + 192, d);
    return crc32c_hardware(crc32c_hardware(0, left, CRC32C_FOLDED), p, n);
}
#else
static int crc32c_init_folding(void) { return 0; }
static uint32_t crc32c_folded(uint32_t crc, const uint8_t *p, size_t n) { return crc32c_hardware(crc, p, n); }
#endif

static uint32_t crc32c_of(const uint8_t *p, size_t n) {
    static int kind = -1, folds;
    if (kind < 0) {
        crc32c_init();
        crc32c_init_lanes();
        folds = crc32c_init_folding();
        kind = crc32c_has_hardware();
    }
    if (folds && n >= CRC32C_WORTH_FOLDING) return ~crc32c_folded(~0u, p, n);
    return ~(kind ? crc32c_hardware(~0u, p, n) : crc32c_portable(~0u, p, n));
}
#endif
