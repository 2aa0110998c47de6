/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The interface between kernel and user space for what threads execute.
 */
#pragma once

#include "kernel.h"

/* How much of a statement is read, in bytes, and how long one can be (max_allowed_packet). */
#define STATEMENT_PREFIX  1024
#define STATEMENT_LONGEST (1ULL << 30)

/* The longest name of a user or a schema that is read, with a NUL at its end. */
#define NAME_LONGEST 128

enum executes {
	/* A thread of the server's own, or one between two statements. */
	EXECUTES_NOTHING,
	EXECUTES_STATEMENT,
	/* Its memory could not be read, or holds what is no statement. */
	EXECUTES_UNREAD,
};

/* What a thread executes. */
struct executed {
	/* enum executes */
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
