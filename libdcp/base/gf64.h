/* gf64: multiplication of polynomials over GF(2) modulo the polynomial of CRC-64/XZ.
 *
 * Bits are reflected, as in the CRC's register: bit 63 is the coefficient of x^0. */
#ifndef DCP_BASE_GF64_H
#define DCP_BASE_GF64_H

#include <stdint.h>

#define DCP_GF64_POLY UINT64_C(0xc96c5795d7870f42) /* x^64 mod P */
#define DCP_GF64_ONE UINT64_C(0x8000000000000000)

/* a·b mod P, with the CPU's carry-less multiply where it has one. */
uint64_t dcp_gf64_mul(uint64_t a, uint64_t b);
/* The same for every CPU. */
uint64_t dcp_gf64_mul_portable(uint64_t a, uint64_t b);
/* a·x^(8n) mod P: what n zero bytes do to a register. */
uint64_t dcp_gf64_shift_bytes(uint64_t a, uint64_t n);

#endif
