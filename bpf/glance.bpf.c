// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Glances: on which words threads of the server sleep, asked in an interrupt of the clock that
 * samples CPU time. A glance costs a thirtieth of a look, because no thread has to wake for it and
 * nothing is read but the threads' registers. What the words mean is known from looks.
 *
 * Only Linux 6.12 and newer load this.
 */
#define METERED MAX_HITS

#include "latch.h"
#include "glance.h"
#include <bpf/bpf_helpers.h>
#include "doing.h"
#include "meter.h"
#include "target.h"

char LICENSE[] SEC("license") = "GPL";

const volatile struct glance_vocabulary vocabulary;

enum task_iteration {
	THREADS_OF_PROCESS = 2,
};

struct bpf_iter_task {
	__u64 opaque[3];
} __attribute__((aligned(8)));

extern int bpf_iter_task_new(struct bpf_iter_task *it, struct task_struct *task,
			     unsigned int flags) __ksym;
extern struct task_struct *bpf_iter_task_next(struct bpf_iter_task *it) __ksym;
extern void bpf_iter_task_destroy(struct bpf_iter_task *it) __ksym;
extern struct task_struct *bpf_task_from_pid(int pid) __ksym;
extern void bpf_task_release(struct task_struct *task) __ksym;
extern void bpf_rcu_read_lock(void) __ksym;
extern void bpf_rcu_read_unlock(void) __ksym;

/* User space reads this where it is. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, GLANCE_CPUS);
	__type(key, __u32);
	__type(value, struct glances);
} glances SEC(".maps");

/* Writes the words on which threads sleep behind the head of a glance. Returns false if there are
 * too many threads, or too little room. */
static __always_inline bool glance_at_threads(struct glances *all, struct task_struct *process,
					      __u64 room)
{
	void *own = bpf_get_current_task_btf();
	__u64 begin = all->written + GLANCE_HEAD;
	struct bpf_iter_task it;
	struct task_struct *task;

	all->threads = 0;
	all->sleepers = 0;
	bpf_rcu_read_lock();
	bpf_iter_task_new(&it, process, THREADS_OF_PROCESS);
	while ((task = bpf_iter_task_next(&it))) {
		__u64 word;

		if (++all->threads > MAX_GLANCED)
			break;
		/* The clock has interrupted the thread that runs here, so its registers are
		 * known. */
		word = doing(task, task == own);
		if (word >> DOING_KIND)
			continue;
		if (all->sleepers < room)
			all->slots[(begin + all->sleepers) % GLANCE_SLOTS] = word;
		all->sleepers++;
	}
	bpf_iter_task_destroy(&it);
	bpf_rcu_read_unlock();
	return all->threads <= MAX_GLANCED && all->sleepers <= room;
}

/* Where this CPU writes its glances; NULL if it is to make none. */
static __always_inline struct glances *own_glances(void)
{
	__u64 cpu = bpf_get_smp_processor_id() + 1;

	for (__u32 i = 0; i < GLANCE_CPUS; i++) {
		__u32 index = i;
		struct glances *all = bpf_map_lookup_elem(&glances, &index);

		if (all && all->cpu == cpu)
			return all;
	}
	return NULL;
}

static __always_inline void glance(struct glances *all, __u64 now)
{
	struct task_struct *process;
	__u64 used, room;
	bool is_whole;

	used = all->written - all->read + GLANCE_HEAD;
	room = used < GLANCE_SLOTS ? GLANCE_SLOTS - used : 0;
	process = bpf_task_from_pid(target_tgid);
	if (!process)
		return;
	is_whole = glance_at_threads(all, process, room);
	bpf_task_release(process);
	if (!is_whole)
		return;
	all->slots[all->written % GLANCE_SLOTS] = now;
	all->slots[(all->written + 1) % GLANCE_SLOTS] = all->sleepers;
	all->slots[(all->written + 2) % GLANCE_SLOTS] = bpf_ktime_get_ns() - now;
	all->written += GLANCE_HEAD + all->sleepers;
}

/* Whether a glance is due, as often as its interval allows on average. Those that were missed are
 * not made up for. */
static __always_inline bool is_due(struct glances *all, __u64 now)
{
	__u64 next = all->due_ns + all->interval_ns;

	if (now < all->due_ns)
		return false;
	all->due_ns = next > now ? next : now;
	return true;
}

SEC("perf_event")
int glance_by_clock(void *ctx)
{
	struct glances *all = own_glances();
	__u64 now = bpf_ktime_get_ns();
	struct hits *h;

	if (!all || !is_due(all, now))
		return 0;
	h = hit(HIT_GLANCE);
	glance(all, now);
	/* Nothing interrupts an interrupt, so it has taken that long. */
	if (is_timed(h))
		__sync_fetch_and_add(&h->timed_ns, bpf_ktime_get_ns() - now);
	return 0;
}
