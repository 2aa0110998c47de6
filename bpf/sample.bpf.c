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
#include "target.h"
#include "threads.h"
#include "variables.h"

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

/* A thread that exits, and one of the kernel's for io_uring, which has its creator's registers. */
#define PF_EXITING   0x4
#define PF_IO_WORKER 0x10

/* Whether memory may be read while the thread is in the kernel. Some kernels check the copy there
 * under a lock that the thread may have. */
const volatile bool reads_in_kernel;

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
static __always_inline void read_account(struct sampled_statement *next, __u64 session)
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

/* Reads what this thread executes. It is interrupted meanwhile. Pages that are not in memory are
 * not fetched. */
static __always_inline __u32 read_statement(struct sampled_statement *next)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	__u64 own = thread_pointer(task);
	__u64 session, text[2], part;

	if (BPF_CORE_READ(task, flags) & (PF_EXITING | PF_IO_WORKER))
		return SAMPLED_NOTHING;
	if (is_in_kernel(next->address) && !reads_in_kernel)
		return SAMPLED_UNREAD;
	if (!own || bpf_probe_read_user(&session, sizeof(session), (void *)(own + session_at)))
		return SAMPLED_UNREAD;
	if (!session)
		return SAMPLED_NOTHING;
	if (bpf_probe_read_user(text, sizeof(text), (void *)(session + text_at)))
		return SAMPLED_UNREAD;
	if (!text[0] || !text[1])
		return SAMPLED_NOTHING;
	if (text[1] > STATEMENT_LONGEST)
		return SAMPLED_UNREAD;
	part = text[1];
	next->length = part;
	next->is_cut = part > sizeof(next->text) || goes_on(text[0] + part);
	if (part > sizeof(next->text))
		part = sizeof(next->text);
	if (bpf_probe_read_user(next->text, part, (void *)text[0]))
		return SAMPLED_UNREAD;
	read_account(next, session);
	return SAMPLED_STATEMENT;
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
	next->executes = read_statement(next);
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
