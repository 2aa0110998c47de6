/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The interface between kernel and user space for samples of where the server's threads run.
 */
#pragma once

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

/* How much of a statement is read, in bytes, and how long one can be (max_allowed_packet). */
#define STATEMENT_PREFIX  1024
#define STATEMENT_LONGEST (1ULL << 30)

/* The longest name of a user or a schema that is read, with a NUL at its end. */
#define NAME_LONGEST 128

/* What a thread executed that ran. */
enum sampled_executes {
	/* A thread of the server's own, or one between two statements. */
	SAMPLED_NOTHING,
	SAMPLED_STATEMENT,
	/* Its memory could not be read, or holds what is no statement. */
	SAMPLED_UNREAD,
};

/* What a thread executed when a sample interrupted it. */
struct sampled_statement {
	/* Where the thread was. */
	__u64 address;
	/* enum sampled_executes */
	__u32 executes;
	/* The length of the statement, of which `text` has the beginning, and whether it may go on
	 * after that: nothing that ends a statement follows. */
	__u32 length;
	__u32 is_cut;
	__u32 unused;
	__u8 text[STATEMENT_PREFIX];
	/* For whom: names with a NUL at their end, and their lengths with it; 0 where none is
	 * known. */
	__u32 user_length;
	__u32 schema_length;
	__u8 user[NAME_LONGEST];
	__u8 schema[NAME_LONGEST];
};

/* Puts the enums into the object's BTF, so that user space can read them there. */
struct sample_vocabulary {
	enum sampled_call call;
	enum sample_lost lost;
	enum sampled_executes executes;
};
