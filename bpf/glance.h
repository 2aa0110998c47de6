/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The interface between kernel and user space for glances.
 */
#pragma once

#include "kernel.h"

enum glance_limit {
	/* CPUs that glance, numbers that are kept for each until user space reads them, a power of
	 * two, and how many of them a glance begins with. */
	GLANCE_CPUS = 8,
	GLANCE_SLOTS = 8192,
	GLANCE_HEAD = 3,
	/* The most threads that an interrupt may look at: it takes 0.1 to 0.2 us for each. */
	MAX_GLANCED = 1024,
};

/* What glances of one CPU have shown. */
struct glances {
	/* The CPU plus 1; 0: there is none. User space decides. */
	__u64 cpu;
	/* The least time between glances, which user space decides, and when the next is due, by
	 * CLOCK_MONOTONIC. */
	__u64 interval_ns;
	__u64 due_ns;
	/* How many numbers were written so far, and how many of them user space has read. The place
	 * of each is its number modulo GLANCE_SLOTS. */
	__u64 written;
	__u64 read;
	/* The number of threads in the glance in progress, and how many of them sleep. In a
	 * register, the verifier would follow each of its values. */
	__u64 threads;
	__u64 sleepers;
	/* Of each glance: when it was, by CLOCK_MONOTONIC; how many threads slept on a word; how
	 * long the glance took, in nanoseconds; and the word of each. */
	__u64 slots[GLANCE_SLOTS];
};

/* Puts these types into the object's BTF, so that user space can read them there. */
struct glance_vocabulary {
	enum glance_limit limit;
	struct glances glances;
};
