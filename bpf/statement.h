/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Reads what the current thread executes, and for whom, from its session in the server's memory.
 */
#pragma once

#include "executed.h"
#include "variables.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

/* A thread that exits, and one of the kernel's for io_uring, which has its creator's registers. */
#define PF_EXITING   0x4
#define PF_IO_WORKER 0x10

/* Stands in place of an offset that is not known. */
#define NOT_KNOWN ((__u64)-1)

/* Where a thread has its statement: the distance of the pointer to its session from its pointer to
 * its own variables, and the offset in the session of the text's address, which its length follows.
 */
const volatile __s64 session_at;
const volatile __u64 text_at;

/* The offset in a session of the address of its schema's name, which its length follows; -1 if it
 * is not known. */
const volatile __u64 schema_at;

/* The offset in a session of the address of its security context; -1 if the session itself has the
 * user's name. The offset of the name's address in whichever of the two has it, -1 if it is not
 * known, and whether the name's length follows. */
const volatile __u64 context_at;
const volatile __u64 user_at;
const volatile bool user_has_length;

/* Reads a name, of which the address is in memory at this place, followed by its length if it
 * `has_length`. Returns its length with its NUL; 0 if it is not certain to be a name as a whole. */
static __always_inline __u32 read_name(__u64 at, bool has_length, __u8 *into)
{
	__u64 name[2];
	long length;

	if (bpf_probe_read_user(name, sizeof(name), (void *)at) || !name[0])
		return 0;
	length = bpf_probe_read_user_str(into, NAME_LONGEST, (void *)name[0]);
	if (length < 2 || length >= NAME_LONGEST)
		return 0;
	if (has_length && (__u64)length != name[1] + 1)
		return 0;
	return length;
}

/* Reads for whom a session works. */
static __always_inline void read_account(struct executed *next, __u64 session)
{
	__u64 holder = session;

	next->schema_length = 0;
	next->user_length = 0;
	if (schema_at != NOT_KNOWN)
		next->schema_length = read_name(session + schema_at, true, next->schema);
	if (user_at == NOT_KNOWN)
		return;
	if (context_at != NOT_KNOWN &&
	    (bpf_probe_read_user(&holder, sizeof(holder), (void *)(session + context_at)) ||
	     !holder))
		return;
	next->user_length = read_name(holder + user_at, user_has_length, next->user);
}

/* Returns whether a text of which this follows may go on. A thread can be interrupted after it has
 * changed the address of its statement, and before the length. */
static __always_inline bool goes_on(__u64 end)
{
	char next;

	return bpf_probe_read_user(&next, sizeof(next), (void *)end) || (next && next != ';');
}

/* Reads the statement that this thread executes, and for whom, if memory may be read now. The
 * thread does not run meanwhile. Pages that are not in memory are not fetched. */
static __always_inline __u32 read_statement(struct executed *next, bool may_be_read)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	__u64 own = thread_pointer(task);
	__u64 session, text[2], part;

	if (BPF_CORE_READ(task, flags) & (PF_EXITING | PF_IO_WORKER))
		return EXECUTES_NOTHING;
	if (!may_be_read)
		return EXECUTES_UNREAD;
	if (!own || bpf_probe_read_user(&session, sizeof(session), (void *)(own + session_at)))
		return EXECUTES_UNREAD;
	if (!session)
		return EXECUTES_NOTHING;
	if (bpf_probe_read_user(text, sizeof(text), (void *)(session + text_at)))
		return EXECUTES_UNREAD;
	if (!text[0] || !text[1])
		return EXECUTES_NOTHING;
	if (text[1] > STATEMENT_LONGEST)
		return EXECUTES_UNREAD;
	part = text[1];
	next->length = part;
	next->is_cut = part > sizeof(next->text) || goes_on(text[0] + part);
	if (part > sizeof(next->text))
		part = sizeof(next->text);
	if (bpf_probe_read_user(next->text, part, (void *)text[0]))
		return EXECUTES_UNREAD;
	read_account(next, session);
	return EXECUTES_STATEMENT;
}

/* Reads what this thread executes. */
static __always_inline void read_executed(struct executed *next, bool may_be_read)
{
	next->executes = read_statement(next, may_be_read);
}
