/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The wait of each thread, from the probe that begins it to the one that ends it.
 *
 * A wait's end can be certain (ROLE_END) or only probable (ROLE_MAYBE_END, if the code then retries
 * through its hot path, which must not be probed). In the second case the wait stays open with its
 * probable end noted, until something shows that the thread has moved on.
 */
#pragma once

#include "latch.h"
#include "condition.h"
#include "duty.h"
#include "handoff.h"
#include "histogram.h"
#include "identity.h"
#include "losses.h"
#include "page.h"
#include "sampled_wait.h"
#include "threads.h"
#include <bpf/bpf_helpers.h>

/* A retry follows a probable end within this time: the hot path between them takes tens of
 * nanoseconds, the two probes a few hundred to two thousand. */
#define REOPEN_NS 3000

static const struct wait no_wait;

/* The thread's state. A wait whose end may have gone unseen, because its probes were off meanwhile,
 * is dropped. */
static __always_inline struct wait *thread_wait(void)
{
	__u32 tid = bpf_get_current_pid_tgid();
	struct wait *w = bpf_map_lookup_elem(&threads, &tid);

	if (w && w->latch && !w->end_ns && w->generation != generation(w->key.latch.function)) {
		lose(LOST_CUT_OFF);
		w->latch = 0;
	}
	return w;
}

/* The state of a thread that is seen for the first time; NULL if there is no room for it, which is
 * counted. */
static __always_inline struct wait *new_thread(void)
{
	__u32 tid = bpf_get_current_pid_tgid();
	long error = bpf_map_update_elem(&threads, &tid, &no_wait, BPF_NOEXIST);
	struct wait *w = bpf_map_lookup_elem(&threads, &tid);

	if (!w)
		lose_entry(error, LOST_THREADS_FULL);
	return w;
}

/* Adds the thread's wait, which ended at end_ns, to its latch, and leaves the thread without a
 * wait. */
static __always_inline void finish_wait(struct wait *w, __u64 end_ns)
{
	__u64 ns = end_ns > w->begin_ns ? end_ns - w->begin_ns : 0;
	bool is_watched = is_on(w->switches) && w->switches == futex_switches();

	if (add_wait(&w->key, w->latch, ns, is_watched, w->sleep_ns, w->sleeps) && w->is_page) {
		w->page.function = w->key.latch.function;
		add_page_wait(&w->page, ns);
	}
	add_handoff(&w->key.latch, w->begin_domain, w->waker_domain, w->end_domain, ns);
	w->latch = 0;
}

/* Ends the thread's wait, because the thread was seen doing something else. */
static __always_inline void move_on(struct wait *w)
{
	if (!w->latch)
		return;
	if (w->end_ns)
		finish_wait(w, w->end_ns);
	else
		lose(LOST_UNFINISHED);
	w->latch = 0;
}

/* Whether this beginning belongs to the wait that is already open. */
static __always_inline bool continues(struct wait *w, const struct site *site, __u64 latch,
				      __u64 now)
{
	if (w->latch != latch)
		return false;
	if (w->key.latch.function != site->function)
		/* The function is called by another wait function, whose wait it is. */
		return !w->end_ns;
	if (site->role != ROLE_BEGIN_AGAIN)
		return false;
	if (w->end_ns && now - w->end_ns > REOPEN_NS)
		return false;
	w->end_ns = 0;
	return true;
}

/* A wait for the latch begins at this site, unless it is already open. */
static __always_inline void begin_wait(void *ctx, const struct site *site, __u64 now)
{
	struct wait *w = thread_wait();
	__u64 latch;

	if (!value_at(ctx, &site->latch, &latch) || !latch) {
		lose(LOST_UNREADABLE);
		return;
	}
	if (!w)
		w = new_thread();
	if (!w)
		return;
	if (continues(w, site, latch, now))
		return;
	move_on(w);
	if (!is_turn(site->function, now))
		return;
	__builtin_memset(w, 0, sizeof(*w));
	if (!identify(ctx, site, latch, &w->key)) {
		lose(LOST_UNREADABLE);
		return;
	}
	w->generation = generation(site->function);
	w->switches = futex_switches();
	w->begin_domain = current_domain();
	w->begin_ns = now;
	w->latch = latch;
}

/* An end without its beginning is expected only where the probes are off at times. */
static __always_inline void lose_end(const struct site *site)
{
	if (!by_turns(site->function))
		lose(LOST_NO_BEGIN);
}

/* Lets the time of a wait that seems to end be sampled: each part of it once, because it may
 * continue. Returns whether it was. */
static __always_inline bool sample_time(struct wait *w, __u64 now)
{
	__u64 ns = now > w->begin_ns ? now - w->begin_ns : 0, before = w->sampled_ns;

	w->sampled_ns = ns;
	return ns > before && sample_wait(&w->key.latch, ns - before);
}

/* The thread's wait ends at this site, if it is one for this latch and the branch goes that way. */
static __always_inline void end_wait(void *ctx, const struct site *site, __u64 now)
{
	struct wait *w = thread_wait();
	__u64 latch;

	if (!ends_here(ctx, &site->condition))
		return;
	if (!w || !w->latch) {
		lose_end(site);
		return;
	}
	/* The end of an inner wait function, or of a wait for another latch, is not the end of this
	 * wait. */
	if (w->key.latch.function != site->function)
		return;
	if (site->latch.kind && !value_at(ctx, &site->latch, &latch)) {
		lose(LOST_UNREADABLE);
		return;
	}
	if (site->latch.kind && latch != w->latch)
		return;
	/* The open wait has already ended, so this end is another wait's, whose beginning was not
	 * seen. */
	if (w->end_ns) {
		lose_end(site);
		return;
	}
	note_page(w);
	/* A retry follows the sample, which takes as long as several hits. */
	if (sample_time(w, now) && site->role == ROLE_MAYBE_END)
		now = bpf_ktime_get_ns();
	w->end_domain = current_domain();
	if (site->role == ROLE_MAYBE_END)
		w->end_ns = now;
	else
		finish_wait(w, now);
}
