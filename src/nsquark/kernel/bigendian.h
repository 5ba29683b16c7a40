/* Numbers as they stand on the wire and in the files, wherever they lie. */
#ifndef NSQUARK_BIGENDIAN_H
#define NSQUARK_BIGENDIAN_H

#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the compiled kernel is for little-endian machines; use the pure one"
#endif

static inline uint32_t nq_get32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
static inline uint64_t nq_get64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
static inline void nq_put32(uint8_t *p, uint32_t v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); }
static inline void nq_put64(uint8_t *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); }

#endif
