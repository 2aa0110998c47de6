/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The interface between kernel and user space for waits for locks of the database: for rows, and
 * for metadata.
 */
#pragma once

#include "latch.h"

enum lock_limit {
	/* Instructions at which waits begin. */
	MAX_LOCK_BEGINS = 16,
	/* Kinds of locks. */
	MAX_LOCKS = 64,
	/* Threads that wait at the same time. */
	MAX_LOCK_WAITERS = 8192,
	/* The longest time between two calls in the same wait, in nanoseconds. */
	LOCK_GAP_NS = 2000000000,
};

/* What a thread waits for. */
enum lock_kind {
	LOCK_ROW,
	LOCK_METADATA,
	LOCK_KINDS,
};

/* The probes whose hits are counted. */
enum lock_probe {
	LOCK_BEGINS,
	LOCK_ENDS,
	LOCK_PROBES,
};

/* An instruction at which a wait begins. */
struct lock_site {
	/* Its address in the process. */
	__u64 address;
	/* For metadata: where the pointer to the stage is, which says what kind of lock it is. */
	struct location stage;
	/* enum lock_kind */
	__u32 kind;
	__u32 unused;
};

/* What is waited for: the address of the stage that the server shows meanwhile; 0: a row. */
struct lock_key {
	__u64 stage;
};

/* A thread's wait that has not ended. */
struct lock_wait {
	__u64 begin_ns;
	struct lock_key key;
	/* enum lock_kind */
	__u32 kind;
	__u32 unused;
	/* When the function returned without the lock, to be called again; 0 while it waits. */
	__u64 left_ns;
	/* The thread's pointer to its own variables; 0 if the kernel does not show it. */
	__u64 pointer;
};

/* Waits that have ended. */
struct lock_waits {
	__u64 sum_ns;
	__u64 count;
	__u64 max_ns;
	__u64 buckets[BUCKETS];
};

/* What could not be counted. */
enum lock_lost {
	/* More threads wait than there is room for. */
	LOST_LOCK_WAITERS_FULL,
	/* There are more kinds of locks than there is room for. */
	LOST_LOCKS_FULL,
	/* Something else changed the same place at the same moment. */
	LOST_LOCK_BUSY,
	/* What a thread waits for could not be read. */
	LOST_LOCK_UNKNOWN,
	LOCK_LOST_CAUSES,
};

/* Puts the enums into the object's BTF, so that user space can read them there. */
struct lock_vocabulary {
	enum lock_limit limit;
	enum lock_kind kind;
	enum lock_probe probe;
	enum lock_lost lost;
};
