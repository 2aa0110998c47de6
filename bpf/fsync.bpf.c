// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Measures how long each fsync and fdatasync of the server takes, by file.
 */
#define METERED FSYNC_PROBES

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "buckets.h"
#include "count.h"
#include "file.h"
#include "fsync.h"
#include "meter.h"
#include "registers.h"
#include "target.h"

char LICENSE[] SEC("license") = "GPL";

const volatile struct fsync_vocabulary vocabulary;

/* The byte offset in the saved registers of a system call's first argument, and of a kernel
 * function's. */
const volatile __u32 descriptor_register;
const volatile __u32 argument_register;

/* One in so many calls is timed, by chance, and counts as many. */
__u32 one_in = 1;

/* How often the programs were attached. Calls that an earlier attachment has seen begin do not
 * count. */
__u32 attachment = 1;

/* The unfinished calls, by the last digits of the thread's id. The threads of a server mostly have
 * ids in a row, so that two that flush at the same time hardly ever share a place. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FSYNC_PLACES);
	__type(key, __u32);
	__type(value, struct fsync_call);
} fsync_calls SEC(".maps");

/* The finished calls. There are few of them a second, so all CPUs share the entries. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_FSYNC_FILES);
	__type(key, struct fsync_file);
	__type(value, struct fsyncs);
} fsync_files SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FSYNC_LOST_CAUSES);
	__type(key, __u32);
	__type(value, __u64);
} lost_fsyncs SEC(".maps");

static const struct fsyncs no_fsyncs;
static const struct fsync_file no_file;

/* Counts the loss of a call that stands for so many. */
static __always_inline void lose(__u32 cause, __u64 weight)
{
	__u64 *n = bpf_map_lookup_elem(&lost_fsyncs, &cause);

	if (n)
		__sync_fetch_and_add(n, weight);
}

/* Reads the name of a file, or the end of the name. */
static __always_inline void read_name(struct fsync_file *name, struct file *file)
{
	struct dentry *entry = BPF_CORE_READ(file, f_path.dentry);
	const unsigned char *text = BPF_CORE_READ(entry, d_name.name);
	__u32 length;

	if (bpf_probe_read_kernel_str(name->name, FSYNC_NAME, text) < FSYNC_NAME)
		return;
	length = BPF_CORE_READ(entry, d_name.len);
	if (length >= FSYNC_NAME)
		bpf_probe_read_kernel_str(name->name, FSYNC_NAME, text + length - (FSYNC_NAME - 1));
}

/* The place of this thread. */
static __always_inline struct fsync_call *place_of(__u32 thread)
{
	__u32 place = thread % FSYNC_PLACES;

	return bpf_map_lookup_elem(&fsync_calls, &place);
}

static __always_inline void begin_call(struct file *file, __u64 now)
{
	__u32 thread = bpf_get_current_pid_tgid();
	struct fsync_call *call = place_of(thread);
	__u32 weight = one_in;
	bool is_chosen = weight <= 1 || bpf_get_prandom_u32() % weight == 0;

	if (!call)
		return;
	/* The end of this call must not be taken for that of an earlier one. */
	if (call->thread && (is_chosen || call->thread == thread)) {
		if (call->attachment == attachment)
			lose(LOST_FSYNC_END, call->weight);
		call->thread = 0;
	}
	if (!is_chosen)
		return;
	call->begin_ns = now;
	call->thread = thread;
	call->attachment = attachment;
	call->weight = weight;
	call->file = no_file;
	if (file)
		read_name(&call->file, file);
}

static __always_inline int at_begin(struct file *file)
{
	__u64 now = bpf_ktime_get_ns();
	struct hits *h = hit(FSYNC_BEGINS);

	begin_call(file, now);
	add_time(h, now);
	return 0;
}

/* The entry for a file, or that for all others if there is no room for it. */
static __always_inline struct fsyncs *fsyncs_of(const struct fsync_file *file)
{
	long error = 0;
	struct fsyncs *all = entry_of(&fsync_files, file, &no_fsyncs, &error);

	return all ? all : entry_of(&fsync_files, &no_file, &no_fsyncs, &error);
}

static __always_inline void add(const struct fsync_call *call, __u64 ns)
{
	struct fsyncs *all = fsyncs_of(&call->file);
	__u32 bucket = bucket_of(ns);

	if (!all) {
		lose(LOST_FSYNC_BUSY, call->weight);
		return;
	}
	__sync_fetch_and_add(&all->sum_ns, call->weight * ns);
	__sync_fetch_and_add(&all->count, call->weight);
	if (bucket < BUCKETS)
		__sync_fetch_and_add(&all->buckets[bucket], call->weight);
	raise_maximum(&all->max_ns, ns);
}

static __always_inline void end_call(const struct fsync_call *ended, __u32 thread, __u64 now)
{
	/* Otherwise another thread was taking the place while it was read. */
	if (ended->thread == thread && ended->begin_ns <= now)
		add(ended, now - ended->begin_ns);
	else
		lose(LOST_FSYNC_END, ended->weight);
}

static __always_inline int at_end(void)
{
	__u64 now = bpf_ktime_get_ns();
	struct hits *h = hit(FSYNC_ENDS);
	__u32 thread = bpf_get_current_pid_tgid();
	struct fsync_call *call = place_of(thread);

	if (call && call->thread == thread) {
		/* Another thread may take the place from now on. */
		struct fsync_call ended = *call;

		call->thread = 0;
		if (ended.attachment == attachment)
			end_call(&ended, thread, now);
	}
	add_time(h, now);
	return 0;
}

/* Attached to the kernel's functions for the two system calls, whose argument is where the
 * registers of the thread are saved. Their names differ by architecture, so user space sets them.
 */
static __always_inline int begin(__u64 saved)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();

	if (!is_target())
		return 0;
	return at_begin(opened(task, saved_register((void *)saved, descriptor_register)));
}

static __always_inline int end(void)
{
	return is_target() ? at_end() : 0;
}

SEC("fentry")
int fsync_begins(__u64 *ctx)
{
	return begin(ctx[0]);
}

SEC("fexit")
int fsync_ends(__u64 *ctx)
{
	return end();
}

SEC("fentry")
int fdatasync_begins(__u64 *ctx)
{
	return begin(ctx[0]);
}

SEC("fexit")
int fdatasync_ends(__u64 *ctx)
{
	return end();
}

/* The same for kernels that cannot trace these functions. */
SEC("kprobe")
int call_begins(void *ctx)
{
	return begin(saved_register(ctx, argument_register));
}

SEC("kretprobe")
int call_ends(void *ctx)
{
	return end();
}

/* The same for kernels that have no kprobes either. Other file systems have no such tracepoints. */
SEC("raw_tp")
int ext4_begins(__u64 *ctx)
{
	return is_target() ? at_begin((struct file *)ctx[0]) : 0;
}

SEC("raw_tp")
int ext4_ends(__u64 *ctx)
{
	return end();
}
