/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The buckets of histograms, and their maxima.
 */
#pragma once

#include "latch.h"

/* The upper bounds of the buckets, in nanoseconds; user space owns them and fills them in. */
const volatile __u64 bucket_bounds[BUCKETS - 1];

/* The number of bounds below ns, by binary search: five steps for 24 bounds. */
static __always_inline __u32 bucket_of(__u64 ns)
{
	__u32 low = 0;

	for (__u32 step = 16; step; step >>= 1) {
		__u32 probe = low + step - 1;

		if (probe < BUCKETS - 1 && bucket_bounds[probe] < ns)
			low += step;
	}
	return low;
}

/* How many times a maximum is corrected if other CPUs change it too. */
#define MAX_RACES 4

/* Raises a maximum to ns. It is checked again after the store, so that the larger of two racing
 * maxima stays. */
static __always_inline void raise_maximum(volatile __u64 *max, __u64 ns)
{
	for (int i = 0; i < MAX_RACES && *max < ns; i++)
		*max = ns;
}
