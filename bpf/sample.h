/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What kernel and user space agree on about samples of where the server's threads run.
 */
#pragma once

#include "latch.h"

/* At least as many addresses as the map of samples holds; user space makes it larger where many
 * CPUs are sampled. */
#define MIN_SAMPLED 4096

/* The system calls that samples in the kernel are told apart by. */
enum sampled_call {
	CALL_OTHER,
	CALL_FUTEX,
	CALL_GETCPU,
};

/* The instruction itself and not its function, so that what an instruction costs can be told too.
 */
struct sample_key {
	/* Addresses of the kernel have their highest bit set. */
	__u64 address;
	/* enum sampled_call; of samples in the kernel only. */
	__u32 call;
	__u32 unused;
};

/* Why a sample is not in one of the figures. */
enum sample_lost {
	/* More addresses than the map holds: it is not counted at all. */
	SAMPLE_LOST_FULL,
	/* More latch classes than MAX_LATCHES: it is counted, but not for the latch. */
	SAMPLE_LOST_SPINS_FULL,
	SAMPLE_LOST_CAUSES,
};

/* Carries the enums into the object's BTF, from which user space gets them. */
struct sample_vocabulary {
	enum sampled_call call;
	enum sample_lost lost;
};
