/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Futex calls, in which threads sleep and wake each other. A sleep is part of the wait that the
 * thread is in, or a wait of its own (pthread.h).
 */
#pragma once

#include "latch.h"
#include "duty.h"
#include "handoff.h"
#include "losses.h"
#include "meter.h"
#include "pthread.h"
#include "sleep.h"
#include "wait.h"
#include <bpf/bpf_helpers.h>

static __always_inline bool is_wake(__u64 op)
{
	op &= FUTEX_CMD_MASK;
	return op == FUTEX_WAKE || op == FUTEX_WAKE_BITSET;
}

/* Whether the word that a thread sleeps on is part of the latch that it waits for. */
static __always_inline bool is_of_latch(const struct wait *w, __u64 word)
{
	return word - w->latch < sizeof(__u64);
}

/* The thread is about to sleep on a word. If it waits for a latch, its wait is now asleep. If the
 * word belongs to a lock of the C library, a wait for that lock begins as well. */
static __always_inline void fall_asleep(__u64 word, __u64 op)
{
	struct wait *w = thread_wait();
	bool is_waiting;

	if (!w)
		w = new_thread();
	if (!w)
		return;
	if (w->latch && w->end_ns)
		move_on(w);
	w->sleep_generation = generation(LIBRARY_FUNCTION);
	is_waiting = w->latch;
	if (is_waiting) {
		w->sleep_begin_ns = bpf_ktime_get_ns();
		w->sleep_word = word;
	}
	/* InnoDB sleeps for its latches on their words or in condition variables. Meanwhile it may
	 * have to wait for mutexes too. */
	if (is_waiting && ((op & FUTEX_CMD_MASK) != FUTEX_WAIT || is_of_latch(w, word)))
		return;
	/* A wait for a latch whose beginning was not seen. */
	if (!is_waiting && is_of_known_latch(word))
		return;
	begin_pthread_wait(&w->pthread, word, op, is_waiting);
}

/* The thread no longer sleeps; `ret` is the result of its futex call. */
static __always_inline void wake_up(__s64 ret)
{
	struct wait *w = thread_wait();
	/* Otherwise the word had changed before the thread could sleep. */
	bool slept = ret != -EAGAIN;
	__u64 now;

	if (!w)
		return;
	if (w->sleep_generation != generation(LIBRARY_FUNCTION)) {
		/* These programs were off meanwhile, so this may be the end of another sleep. */
		if (w->pthread.word)
			lose(LOST_CUT_OFF);
		w->pthread.word = 0;
		w->sleep_begin_ns = 0;
		return;
	}
	now = bpf_ktime_get_ns();
	if (w->latch && w->sleep_begin_ns) {
		w->sleep_ns += now - w->sleep_begin_ns;
		if (slept)
			w->waker_domain = waker_domain(w->sleep_word, w->sleep_begin_ns);
		/* A sleep in a C library lock is a wait of its own. */
		if (slept && !w->pthread.word)
			learn_word(w->sleep_word, &w->key.latch);
		w->sleep_begin_ns = 0;
		w->sleeps += slept;
	}
	if (w->pthread.word) {
		if (slept)
			end_pthread_wait(&w->pthread, now);
		w->pthread.word = 0;
	}
}

/* A thread enters a futex call, or leaves it with `ret`. */
static __always_inline int at_futex_enter(__u64 word, __u64 op)
{
	struct hits *h = hit(HIT_FUTEX_ENTER);
	__u64 now = is_timed(h) ? bpf_ktime_get_ns() : 0;

	if (is_wait(op))
		fall_asleep(word, op);
	else if (has_domains && is_wake(op))
		note_wake(word);
	add_time(h, now);
	return 0;
}

static __always_inline int at_futex_exit(__s64 ret)
{
	struct hits *h = hit(HIT_FUTEX_EXIT);
	__u64 now = is_timed(h) ? bpf_ktime_get_ns() : 0;

	wake_up(ret);
	add_time(h, now);
	return 0;
}
