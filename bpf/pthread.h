/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Waits of the server's SQL layer, which uses the C library's mutexes, rw-locks and condition
 * variables. A thread that finds one taken sleeps in a futex inside it, and only that is seen:
 * spinning before the sleep, and the uncontended case, cost nothing here.
 *
 * The lock that a futex word belongs to is identified by the instrument after it, by its address if
 * that is static, or else by the waiting code: the function that called into the C library. That
 * call also distinguishes a mutex from a condition variable.
 */
#pragma once

#include "latch.h"
#include "callsite.h"
#include "duty.h"
#include "handoff.h"
#include "histogram.h"
#include "identity.h"
#include "losses.h"
#include "prlock.h"
#include "psi.h"
#include "registers.h"
#include "sampled_wait.h"
#include "sleep.h"
#include <bpf/bpf_helpers.h>

/* The most functions of the C library on the stack above the system call. */
#define MAX_LIBRARY_FRAMES 8

/* Byte offsets in the saved registers: of the stack pointer and, on arm64, of the link register. */
const volatile __u32 sp_register;
const volatile __u32 link_register;

/* The server's function that locks a C library mutex with a latch id after it. */
const volatile __u64 tracked_begin;
const volatile __u64 tracked_end;
const volatile __u32 tracked_id_offset;

/* Keyed by the addresses in the C library at which its functions sleep or call another function. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_FRAME_ROWS);
	__type(key, __u64);
	__type(value, struct library_frame);
} library_frames SEC(".maps");

/* Where the thread called into the C library, what it called, and the meaning of the function that
 * made the system call. 0 if that is not known. */
static __always_inline __u64 library_caller(__u8 *primitive, __u8 *innermost)
{
	__u64 address = user_register(ip_register), sp = user_register(sp_register);

	for (int i = 0; i < MAX_LIBRARY_FRAMES; i++) {
		struct library_frame *frame = bpf_map_lookup_elem(&library_frames, &address);

		if (!frame)
			break;
		if (frame->primitive)
			*primitive = frame->primitive;
		if (!i)
			*innermost = frame->primitive;
		if (frame->return_at == RETURN_IN_REGISTER)
			address = user_register(link_register);
		else if (bpf_probe_read_user(&address, 8, (void *)(sp + frame->return_at)))
			return 0;
		address = unsigned_address(address);
		sp += frame->size;
	}
	return address >= text_begin && address < text_end ? address : 0;
}

/* Identifies the lock that contains a futex word; returns false if that is impossible. */
static __always_inline bool identify_lock(struct callsite_key *at, __u64 word, bool plain_wait)
{
	struct latch_key *key = &at->latch;
	bool is_prlock = is_prlock_function(at->address);

	if (key->primitive == PRIMITIVE_ALLOCATOR) {
		key->identity = IDENTITY_ALLOCATOR;
		return true;
	}
	key->identity = IDENTITY_PSI_CLASS;
	key->id = psi_class_of_word(word, plain_wait, is_prlock);
	if (key->id)
		return true;
	if (!key->primitive)
		return false;
	if (at->address >= tracked_begin && at->address < tracked_end) {
		key->identity = IDENTITY_LATCH_ID;
		return !bpf_probe_read_user(&key->id, 4, (void *)(word + tracked_id_offset));
	}
	if (is_static(word)) {
		key->identity = IDENTITY_STATIC;
		/* Condition variables and rw-locks have two words on which threads sleep, side by
		 * side. */
		key->id = word & ~7ULL;
		return true;
	}
	if (is_prlock && is_metadata_lock(word, plain_wait)) {
		key->identity = IDENTITY_METADATA_LOCK;
		key->id = 0;
		return true;
	}
	key->identity = IDENTITY_CALLER;
	key->id = at->address;
	return key->id;
}

/* Whether the thread sleeps for a mutex. */
static __always_inline bool is_mutex(__u8 primitive)
{
	return primitive == PRIMITIVE_MUTEX || primitive == PRIMITIVE_REACQUIRE;
}

/* Notes that the thread sleeps on a word. While it waits for a latch, only a C library mutex counts
 * as another wait. */
static __always_inline void begin_pthread_wait(struct pthread_wait *w, __u64 word, __u64 op,
					       bool is_waiting)
{
	struct latch_key *key = &w->key.latch;
	__u8 primitive = PRIMITIVE_NONE, innermost = PRIMITIVE_NONE;
	__u64 now = bpf_ktime_get_ns();
	bool plain_wait;

	__builtin_memset(w, 0, sizeof(*w));
	if (!is_turn(LIBRARY_FUNCTION, now))
		return;
	w->key.address = library_caller(&primitive, &innermost);
	/* With FUTEX_WAIT, a condition variable's waiter reacquires the mutex, in a function that
	 * is called for this purpose. A FUTEX_WAIT of the condition variable's function itself
	 * waits for the condition, as in glibc before 2.34. */
	plain_wait = (op & FUTEX_CMD_MASK) == FUTEX_WAIT && innermost != PRIMITIVE_COND;
	/* The condition variable in a rw_pr_lock_t is part of the lock, so its waiters wait for the
	 * lock. */
	if (primitive == PRIMITIVE_COND && plain_wait)
		primitive =
		    is_prlock_function(w->key.address) ? PRIMITIVE_MUTEX : PRIMITIVE_REACQUIRE;
	if (primitive == PRIMITIVE_OTHER || (is_waiting && !is_mutex(primitive)))
		return;
	key->function = LIBRARY_FUNCTION;
	key->primitive = primitive;
	if (primitive == PRIMITIVE_RWLOCK_READ)
		key->mode = MODE_S;
	if (primitive == PRIMITIVE_RWLOCK_WRITE)
		key->mode = MODE_X;
	if (!identify_lock(&w->key, word, plain_wait)) {
		lose(LOST_LIBRARY_UNKNOWN);
		return;
	}
	w->begin_ns = now;
	w->begin_domain = current_domain();
	w->word = word;
}

/* Whether a thread waits for a lock, rather than for an event, or for a mutex after one. */
static __always_inline bool is_contended(__u8 primitive)
{
	return primitive == PRIMITIVE_MUTEX || primitive == PRIMITIVE_RWLOCK_READ ||
	       primitive == PRIMITIVE_RWLOCK_WRITE || primitive == PRIMITIVE_ALLOCATOR;
}

static __always_inline void end_pthread_wait(struct pthread_wait *w, __u64 now)
{
	__u64 ns = now - w->begin_ns;

	learn_word(w->word, &w->key.latch);
	add_wait(&w->key, w->word, ns, true, ns, 1);
	if (is_contended(w->key.latch.primitive))
		sample_wait(&w->key.latch, ns);
	add_handoff(&w->key.latch, w->begin_domain, waker_domain(w->word, w->begin_ns),
		    current_domain(), ns);
}
