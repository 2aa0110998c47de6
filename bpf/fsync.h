/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The interface between kernel and user space for flushes of files: calls of fsync and fdatasync.
 */
#pragma once

#include "latch.h"

enum fsync_limit {
	/* Names of files that are counted at the same time. */
	MAX_FSYNC_FILES = 1024,
	/* Places for threads that flush at the same time. */
	FSYNC_PLACES = 4096,
	/* What is kept of a file's name, with the zero at its end. */
	FSYNC_NAME = 64,
};

/* The probes whose hits are counted. */
enum fsync_probe {
	FSYNC_BEGINS,
	FSYNC_ENDS,
	FSYNC_PROBES,
};

/* A file, by its name without the folder: the end of it if it is too long. Empty stands for files
 * without a name, and for those for which there is no room. */
struct fsync_file {
	char name[FSYNC_NAME];
};

/* A thread's call that has not ended. */
struct fsync_call {
	__u64 begin_ns;
	/* The thread; 0: none is there. */
	__u32 thread;
	/* The attachment that has seen its beginning. */
	__u32 attachment;
	/* For how many calls it stands. */
	__u64 weight;
	struct fsync_file file;
};

/* Calls that have ended. */
struct fsyncs {
	__u64 sum_ns;
	__u64 count;
	__u64 max_ns;
	__u64 buckets[BUCKETS];
};

/* What could not be counted. */
enum fsync_lost {
	/* Something else changed the same place at the same moment. */
	LOST_FSYNC_BUSY,
	/* The end of a call was not seen: the kernel does not follow so many threads at a time, or
	 * another thread took the place. */
	LOST_FSYNC_END,
	FSYNC_LOST_CAUSES,
};

/* Puts the enums into the object's BTF, so that user space can read them there. */
struct fsync_vocabulary {
	enum fsync_limit limit;
	enum fsync_probe probe;
	enum fsync_lost lost;
};
