/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The interface between kernel and user space for samples of where the server's threads run.
 */
#pragma once

#include "executed.h"
#include "latch.h"

/* The minimum capacity of the map of samples, which user space enlarges if it samples many CPUs. */
#define MIN_SAMPLED 4096

/* The system calls that samples in the kernel distinguish. */
enum sampled_call {
	CALL_OTHER,
	CALL_FUTEX,
	CALL_GETCPU,
};

/* The instruction itself rather than its function, so that the cost of an instruction can be shown
 * too. */
struct sample_key {
	/* Kernel addresses have their highest bit set. */
	__u64 address;
	/* enum sampled_call; for samples in the kernel only. */
	__u32 call;
	__u32 unused;
};

/* Why a sample is missing from one of the figures. */
enum sample_lost {
	/* More addresses than the map holds; the sample is not counted at all. */
	SAMPLE_LOST_FULL,
	/* More latch classes than MAX_LATCHES; the sample is counted, but not for the latch. */
	SAMPLE_LOST_SPINS_FULL,
	/* The place in a map was being changed by what the sample interrupted. */
	SAMPLE_LOST_BUSY,
	SAMPLE_LOST_CAUSES,
};

/* What a thread executed when a sample interrupted it. */
struct sampled_statement {
	/* Where the thread was. */
	__u64 address;
	struct executed executed;
};

/* Puts the enums into the object's BTF, so that user space can read them there. */
struct sample_vocabulary {
	enum sampled_call call;
	enum sample_lost lost;
	enum executes executes;
};
