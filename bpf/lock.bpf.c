// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Measures waits for locks of the database, which last until another transaction ends: from the
 * begin to the return of the server's own wait functions.
 */
#define METERED LOCK_PROBES

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "buckets.h"
#include "count.h"
#include "location.h"
#include "lock.h"
#include "meter.h"
#include "registers.h"
#include "target.h"
#include "variables.h"

char LICENSE[] SEC("license") = "GPL";

const volatile struct lock_vocabulary vocabulary;

const volatile struct lock_site begins[MAX_LOCK_BEGINS];

/* Byte offset in the saved registers of the one with a function's result. */
const volatile __u32 result_register;

/* The unfinished waits, by thread id. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_LOCK_WAITERS);
	__type(key, __u32);
	__type(value, struct lock_wait);
} lock_waiters SEC(".maps");

/* The finished waits. There are few of them a second, so all CPUs share the entries. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_LOCKS);
	__type(key, struct lock_key);
	__type(value, struct lock_waits);
} locks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LOCK_LOST_CAUSES);
	__type(key, __u32);
	__type(value, __u64);
} lost_locks SEC(".maps");

static const struct lock_waits no_lock_waits;

static __always_inline void lose(__u32 cause)
{
	__u64 *n = bpf_map_lookup_elem(&lost_locks, &cause);

	if (n)
		__sync_fetch_and_add(n, 1);
}

static __always_inline void lose_by(long error, __u32 full)
{
	lose(error == -E2BIG ? full : LOST_LOCK_BUSY);
}

/* Whether the server calls its function again, in the same wait. If the client has gone, it gives
 * up between two calls. */
static __always_inline bool is_between_calls(const struct lock_wait *wait, __u64 now)
{
	return wait->left_ns && now - wait->left_ns < LOCK_GAP_NS;
}

/* Begins a wait, unless this one is going on: the site may be in the wait's own loop, and a wait
 * for metadata may take several calls. */
static __always_inline void begin(__u32 kind, __u64 stage, __u64 now)
{
	__u32 thread = bpf_get_current_pid_tgid();
	struct lock_wait *going_on = bpf_map_lookup_elem(&lock_waiters, &thread);
	struct lock_wait wait = {.begin_ns = now, .kind = kind, .key = {.stage = stage}};
	long error;

	if (going_on && going_on->kind == kind && going_on->key.stage == stage &&
	    (kind == LOCK_ROW || is_between_calls(going_on, now))) {
		going_on->left_ns = 0;
		return;
	}
	wait.pointer = thread_pointer((void *)bpf_get_current_task());
	error = bpf_map_update_elem(&lock_waiters, &thread, &wait, BPF_ANY);
	if (error)
		lose_by(error, LOST_LOCK_WAITERS_FULL);
}

static __always_inline void begin_here(void *ctx, __u64 now)
{
	__u64 address = saved_register(ctx, ip_register);
	__u64 stage = 0;

	for (__u32 i = 0; i < MAX_LOCK_BEGINS; i++) {
		if (begins[i].address != address)
			continue;
		if (begins[i].kind == LOCK_METADATA) {
			struct location at = {
			    .reg = begins[i].stage.reg,
			    .kind = begins[i].stage.kind,
			    .displacement = begins[i].stage.displacement,
			};

			/* A wait that cannot be told from one for a row is not counted. */
			if (!value_at(ctx, &at, &stage) || !stage) {
				lose(LOST_LOCK_UNKNOWN);
				return;
			}
		}
		begin(begins[i].kind, stage, now);
		return;
	}
}

static __always_inline int at_begin(void *ctx)
{
	struct hits *h;
	__u64 now;

	if (!is_target())
		return 0;
	now = bpf_ktime_get_ns();
	h = hit(LOCK_BEGINS);
	begin_here(ctx, now);
	add_time(h, now);
	return 0;
}

static __always_inline void add(const struct lock_key *key, __u64 ns)
{
	long error = 0;
	struct lock_waits *waits = entry_of(&locks, key, &no_lock_waits, &error);
	__u32 bucket = bucket_of(ns);

	if (!waits) {
		lose_by(error, LOST_LOCKS_FULL);
		return;
	}
	__sync_fetch_and_add(&waits->sum_ns, ns);
	__sync_fetch_and_add(&waits->count, 1);
	if (bucket < BUCKETS)
		__sync_fetch_and_add(&waits->buckets[bucket], 1);
	raise_maximum(&waits->max_ns, ns);
}

/* The function returns. One that waits for metadata returns 0 if the time that it was given is
 * over, but not that of the whole wait: the server looks around, and calls it again. */
static __always_inline void end_here(void *ctx, __u64 now)
{
	__u32 thread = bpf_get_current_pid_tgid();
	struct lock_wait *wait = bpf_map_lookup_elem(&lock_waiters, &thread);
	struct lock_key key;
	__u64 begin_ns;

	if (!wait)
		return;
	if (wait->kind == LOCK_METADATA && !(__u32)saved_register(ctx, result_register)) {
		wait->left_ns = now;
		return;
	}
	key = wait->key;
	begin_ns = wait->begin_ns;
	bpf_map_delete_elem(&lock_waiters, &thread);
	add(&key, now - begin_ns);
}

static __always_inline int at_end(void *ctx)
{
	struct hits *h;
	__u64 now;

	if (!is_target())
		return 0;
	now = bpf_ktime_get_ns();
	h = hit(LOCK_ENDS);
	end_here(ctx, now);
	add_time(h, now);
	return 0;
}

SEC("uprobe.multi")
int lock_begins(void *ctx)
{
	return at_begin(ctx);
}

/* Attached to the returns of functions too. */
SEC("uprobe.multi")
int lock_ends(void *ctx)
{
	return at_end(ctx);
}

/* The same for kernels without uprobe_multi, attached site by site. */
SEC("uprobe")
int lock_begin(void *ctx)
{
	return at_begin(ctx);
}

SEC("uprobe")
int lock_end(void *ctx)
{
	return at_end(ctx);
}
