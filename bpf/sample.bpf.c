// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Samples where the server spends its CPU time. A clock on each CPU interrupts whatever runs there;
 * if that is a thread of the server, its current instruction is counted. Only the statements of
 * some samples leave the kernel as they are.
 */
#include "sample.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "clock.h"
#include "count.h"
#include "duty.h"
#include "registers.h"
#include "statement.h"
#include "target.h"
#include "threads.h"

char LICENSE[] SEC("license") = "GPL";

const volatile struct sample_vocabulary vocabulary;

/* System call numbers of this architecture. */
const volatile __s64 futex_number;
const volatile __s64 getcpu_number;

/* What the kernel passes to a program on an event. This is not part of its interface, so it is
 * found by its types. */
struct bpf_perf_event_data_kern {
	void *regs;
} __attribute__((preserve_access_index));

/* Where each architecture stores the number of the system call that a thread is in. A negative
 * number means none. */
struct pt_regs___x86 {
	unsigned long orig_ax;
} __attribute__((preserve_access_index));

struct pt_regs___arm64 {
	__s32 syscallno;
} __attribute__((preserve_access_index));

/* The number of samples by address, since user space last collected them. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MIN_SAMPLED);
	__type(key, struct sample_key);
	__type(value, __u64);
} samples SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct hits);
} sample_hits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SAMPLE_LOST_CAUSES);
	__type(key, __u32);
	__type(value, __u64);
} lost_samples SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} getcpu_calls SEC(".maps");

/* Samples of threads that ran the server's code while they waited, by latch. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_LATCHES);
	__type(key, struct latch_key);
	__type(value, __u64);
} spins SEC(".maps");

/* Whether memory may be read while the thread is in the kernel. Some kernels check the copy there
 * under a lock that the thread may have. */
const volatile bool reads_in_kernel;

/* Statements are read in one of so many samples; 0: in none. User space sets it again when it
 * changes the frequency. */
__u32 samples_per_statement;

/* What threads executed, until user space takes it. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 1);
	__type(value, struct sampled_statement);
} statements SEC(".maps");

/* Where a statement is put together: the stack has no room for it. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sampled_statement);
} next_statement SEC(".maps");

static __always_inline bool is_in_kernel(__u64 address)
{
	return (__s64)address < 0;
}

/* The system call that this thread is in. Kernels before 5.15 do not show it. */
static __always_inline __u32 current_call(void)
{
	__s64 number = -1;
	void *regs;

	if (!bpf_core_enum_value_exists(enum bpf_func_id___regs, BPF_FUNC_task_pt_regs___regs))
		return CALL_OTHER;
	regs = (void *)bpf_task_pt_regs(bpf_get_current_task_btf());
	if (bpf_core_field_exists(struct pt_regs___x86, orig_ax))
		number = BPF_CORE_READ((struct pt_regs___x86 *)regs, orig_ax);
	else if (bpf_core_field_exists(struct pt_regs___arm64, syscallno))
		number = BPF_CORE_READ((struct pt_regs___arm64 *)regs, syscallno);
	if (number == futex_number)
		return CALL_FUTEX;
	if (number == getcpu_number)
		return CALL_GETCPU;
	return CALL_OTHER;
}

/* Counts the loss of what has no entry in a map, for which `cause` is no room, or another error. */
static __always_inline void lose(long error, __u32 cause)
{
	__u64 *n;

	if (error != -E2BIG)
		cause = SAMPLE_LOST_BUSY;
	n = bpf_map_lookup_elem(&lost_samples, &cause);
	if (n)
		*n += 1;
}

/* A thread that waits while it is on a CPU, outside of the kernel, is spinning. */
static __always_inline void add_spin(void)
{
	__u32 tid = bpf_get_current_pid_tgid(), function;
	struct wait *w = bpf_map_lookup_elem(&threads, &tid);
	struct attachment *probes;
	struct latch_key key;
	long error;

	if (!w || !w->latch || w->end_ns)
		return;
	key = w->key.latch;
	function = key.function;
	probes = bpf_map_lookup_elem(&attachments, &function);
	/* While its probes were off, the wait may have ended unseen. */
	if (!probes || probes->generation != w->generation)
		return;
	error = add_to(&spins, &key, 1);
	if (error)
		lose(error, SAMPLE_LOST_SPINS_FULL);
}

/* Notes what this thread executes, if it is this sample's turn. If nobody takes what was noted,
 * there is no room for more, which says nothing about statements. */
static __always_inline void note_statement(__u64 address)
{
	struct sampled_statement *next;
	__u32 zero = 0;

	if (!samples_per_statement || bpf_get_prandom_u32() % samples_per_statement)
		return;
	next = bpf_map_lookup_elem(&next_statement, &zero);
	if (!next)
		return;
	next->address = address;
	read_executed(&next->executed, reads_in_kernel || !is_in_kernel(address));
	bpf_map_push_elem(&statements, next, BPF_ANY);
}

static __always_inline void sample(struct bpf_perf_event_data_kern *ctx)
{
	struct sample_key key = {};
	__u64 now = bpf_ktime_get_ns();
	struct hits *h;
	__u32 zero = 0;
	void *regs = NULL;
	long error;

	regs = BPF_CORE_READ(ctx, regs);
	key.address = saved_register(regs, ip_register);
	if (is_in_kernel(key.address))
		key.call = current_call();
	else
		add_spin();
	error = add_to(&samples, &key, 1);
	if (error)
		lose(error, SAMPLE_LOST_FULL);
	note_statement(key.address);
	h = bpf_map_lookup_elem(&sample_hits, &zero);
	if (h) {
		h->count += 1;
		h->timed_ns += bpf_ktime_get_ns() - now;
	}
}

SEC("perf_event")
int cpu_sample(struct bpf_perf_event_data_kern *ctx)
{
	if (is_target())
		sample(ctx);
	bpf_tail_call(ctx, &at_clock, 0);
	return 0;
}

/* A thread asks the kernel which CPU it runs on, although the C library could have answered without
 * a system call. */
SEC("tracepoint/syscalls/sys_enter_getcpu")
int getcpu_enter(void *ctx)
{
	__u32 zero = 0;
	__u64 *n;

	if (!is_target())
		return 0;
	n = bpf_map_lookup_elem(&getcpu_calls, &zero);
	if (n)
		*n += 1;
	return 0;
}
