/* SPDX-License-Identifier: GPL-2.0 */
/* Random numbers that are distributed like the times between the events of a Poisson
 * process. This needs only the types u32 and u64. */
#ifndef GM_EXPONENTIAL_H
#define GM_EXPONENTIAL_H

/* gm_exponential turns 32 uniformly random bits into an exponentially distributed number
 * with a mean of at most 2^30, rounded up: it is at most s with the probability
 * 1 - exp(-s/mean). The formula is -ln((random + 1) / 2^32) * mean. Each squaring gives
 * one bit of the logarithm. */
static inline __attribute__((always_inline)) u64 gm_exponential(u32 random, u64 mean)
{
	const u64 ln2 = 2977044472; /* of 2^32 */
	u64 x = (u64)random + 1, whole = 32, bits = 0;
	/* x becomes the mantissa, of 2^31, and whole the exponent. */
	if (x >> 32) {
		x >>= 1;
	} else {
		whole = 31;
		for (u32 step = 16; step; step >>= 1) {
			if (x < 1ULL << (32 - step)) {
				x <<= step;
				whole -= step;
			}
		}
	}
	for (u32 i = 0; i < 28; i++) {
		x = x * x >> 31;
		bits = bits << 1 | x >> 32;
		x >>= x >> 32;
	}
	u64 log = (32ULL << 28) - (whole << 28 | bits); /* -log2, of 2^28, at most 2^33 */
	u64 nat = (log >> 2) * ln2 >> 30;		/* -ln, of 2^28 */
	return (nat * mean >> 28) + 1;
}

#endif
