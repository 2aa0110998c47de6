/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What all threads of the server do at one moment, and the words on which threads sleep for
 * latches. Which latch a word belongs to is learned from the waits that are seen. After that, a
 * look at the threads shows how many wait for the latch, also while the probes of waits are off.
 */
#pragma once

#include "latch.h"
#include "callsite.h"
#include "doing.h"
#include "duty.h"
#include "file.h"
#include "kernel.h"
#include "registers.h"
#include "target.h"
#include "threads.h"
#include "variables.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

/* The latch that threads slept for on a word when that was last seen. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_WORDS);
	__type(key, __u64);
	__type(value, struct latch_key);
} words SEC(".maps");

/* The number of the system call sched_yield. */
const volatile __u32 yield_nr;

/* Whether threads were seen to sleep on this word for a latch that is none of the C library's. */
static __always_inline bool is_of_known_latch(__u64 word)
{
	struct latch_key *known = bpf_map_lookup_elem(&words, &word);

	return known && known->function != LIBRARY_FUNCTION;
}

static __always_inline bool is_same_latch(const struct latch_key *a, const struct latch_key *b)
{
	return a->id == b->id && a->line == b->line && a->identity == b->identity &&
	       a->mode == b->mode && a->function == b->function && a->primitive == b->primitive;
}

/* Notes that a thread slept on a word while it waited for a latch. */
static __always_inline void learn_word(__u64 word, const struct latch_key *latch)
{
	struct latch_key *known = bpf_map_lookup_elem(&words, &word);

	if (!(known && is_same_latch(known, latch)))
		bpf_map_update_elem(&words, &word, latch, BPF_ANY);
}

/* The latch for which a thread waits, if the beginning of the wait was seen and its end will be. */
static __always_inline const struct latch_key *waits_for(const struct wait *w, __u64 word)
{
	if (w->latch && !w->end_ns && w->generation == generation(w->key.latch.function))
		return &w->key.latch;
	if (w->pthread.word && w->pthread.word == word &&
	    w->sleep_generation == generation(LIBRARY_FUNCTION))
		return &w->pthread.key.latch;
	return NULL;
}

/* Whether a system call is for files and disks, by its number. */
const volatile __u8 io_calls[MAX_CALLS];

/* Whether a thread is in a system call in which it waits for no latch, but may hold one for long.
 */
static __always_inline bool is_in_io(struct seen_thread *seen, void *saved)
{
	/* No kernel has so many calls, and a thread in its own code has none. */
	if (!io_calls[saved_register(saved, nr_register) % MAX_CALLS])
		return false;
	seen->place = SEEN_IN_IO;
	seen->word = 0;
	return true;
}

/* How many bytes of a thread's saved registers are of use on this architecture. */
const volatile __u32 registers_bytes;

/* Whether a thread may wait for a latch: it sleeps in a futex, lets others run, or was interrupted
 * in the server's code. */
static __always_inline bool may_wait(struct seen_thread *seen, void *saved)
{
	__s32 nr = saved_register(saved, nr_register);
	__u64 ip = saved_register(saved, ip_register);

	if (nr < 0)
		return ip >= text_begin && ip < text_end;
	if (nr == (__s32)yield_nr) {
		seen->place = SEEN_IN_YIELD;
		return true;
	}
	seen->place = SEEN_IN_FUTEX;
	seen->op = saved_register(saved, op_register);
	seen->word = saved_register(saved, word_register);
	return nr == (__s32)futex_nr && is_wait(seen->op);
}

/* Whether the thread ran on this CPU until this one began to run there. */
static __always_inline bool ran_here(struct task_struct *task)
{
	struct task_struct *own = bpf_get_current_task_btf();

	return bpf_core_field_exists(task->sched_info.last_queued) &&
	       task->sched_info.last_queued == own->sched_info.last_arrival;
}

/* Finds where a thread is that may wait, or hold a latch in a system call for I/O. Returns whether
 * it may. */
static __always_inline bool read_registers(struct task_struct *task, struct seen_thread *seen)
{
	void *saved;

	/* The registers of a thread that runs are elsewhere. */
	if (bpf_core_field_exists(task->on_cpu) && task->on_cpu)
		return false;
	saved = (void *)bpf_task_pt_regs(task);
	if (registers_bytes > sizeof(seen->registers))
		return false;
	if (!may_wait(seen, saved) && !is_in_io(seen, saved))
		return false;
	seen->tid = task->pid;
	seen->ran_here = ran_here(task);
	return !bpf_probe_read_kernel(seen->registers, registers_bytes, saved);
}

/* enum thread_state */
static __always_inline __u64 state_of(struct task_struct *task)
{
	struct task_struct___old *old = (void *)task;
	__u32 state;

	if (bpf_core_field_exists(task->on_cpu) && task->on_cpu)
		return THREAD_ON_CPU;
	state = bpf_core_field_exists(task->__state) ? BPF_CORE_READ(task, __state)
						     : BPF_CORE_READ(old, state);
	if (state == TASK_RUNNING)
		return THREAD_WITHOUT_CPU;
	return state & TASK_UNINTERRUPTIBLE ? THREAD_BLOCKED : THREAD_ASLEEP;
}

/* The ID by which the thread's own process knows it. */
static __always_inline __u64 own_id(struct task_struct *task)
{
	struct pid *pid;
	__u32 level, nr;
	void *number;

	if (!bpf_core_field_exists(task->thread_pid))
		return task->pid;
	pid = BPF_CORE_READ(task, thread_pid);
	level = BPF_CORE_READ(pid, level);
	if (!level)
		return task->pid;
	number = (void *)pid + bpf_core_field_offset(pid->numbers) +
		 level * bpf_core_type_size(struct upid);
	return bpf_probe_read_kernel(&nr, sizeof(nr), number) ? 0 : nr;
}

/* How often a thread got a CPU, its own ID, and whether it ran here; enum scheduled_bit. */
static __always_inline __u64 scheduled(struct task_struct *task)
{
	__u64 times = 0;

	if (bpf_core_field_exists(task->sched_info.pcount))
		times = task->sched_info.pcount;
	return (__u32)times | own_id(task) << SCHEDULED_ID |
	       (__u64)ran_here(task) << SCHEDULED_HERE;
}

/* Whether probes see waits at this time. */
bool sees_waits;

/* What a look shows of one thread in addition, one after the other: together they would not fit on
 * the stack. */
union seen {
	struct seen_thread thread;
	struct seen_name name;
};

/* The byte offset in the saved registers of a system call's first argument, also after the call. */
const volatile __u32 descriptor_register;

/* The entry of the file that a thread in I/O reads, writes or flushes; NULL if it is none. */
static __always_inline struct dentry *file_of(struct task_struct *task)
{
	void *saved = (void *)bpf_task_pt_regs(task);

	return entry_of_file(task, saved_register(saved, descriptor_register));
}

/* Loaded only on kernels that show the registers of threads. Writes what each thread does, its
 * ID and state, how it was scheduled, where its variables are, the latch of a wait that is seen,
 * the registers of threads that may wait or hold a latch in I/O, and the files of the latter. */
SEC("iter/task")
int observe(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	const struct latch_key *latch = NULL;
	struct dentry *file = NULL;
	union seen seen = {};
	bool has_registers;
	__u64 does, record[4];

	if (!task || task->tgid != (int)target_tgid)
		return 0;
	does = doing(task, false);
	if (sees_waits) {
		__u32 tid = task->pid;
		struct wait *w = bpf_map_lookup_elem(&threads, &tid);

		latch = w ? waits_for(w, does) : NULL;
	}
	has_registers = read_registers(task, &seen.thread);
	if (has_registers && seen.thread.place == SEEN_IN_IO)
		file = file_of(task);
	record[0] = does | (latch ? 1ULL << DOING_WAIT_SEEN : 0) |
		    (has_registers ? 1ULL << DOING_REGISTERS : 0);
	record[1] = (__u32)task->pid | state_of(task) << 32;
	record[2] = scheduled(task) | (file ? 1ULL << SCHEDULED_FILE : 0);
	record[3] = thread_pointer(task);
	bpf_seq_write(ctx->meta->seq, record, sizeof(record));
	if (latch)
		bpf_seq_write(ctx->meta->seq, latch, sizeof(*latch));
	if (has_registers)
		bpf_seq_write(ctx->meta->seq, &seen.thread,
			      __builtin_offsetof(struct seen_thread, registers) + registers_bytes);
	if (file) {
		read_entry_name(&seen.name, file);
		bpf_seq_write(ctx->meta->seq, &seen.name, sizeof(seen.name));
		read_entry_name(&seen.name, BPF_CORE_READ(file, d_parent));
		bpf_seq_write(ctx->meta->seq, &seen.name, sizeof(seen.name));
	}
	return 0;
}
