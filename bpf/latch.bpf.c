// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Latch waits: uprobes show when a thread began and ended waiting for a latch (wait.h), and futex
 * tracepoints how much of that time it slept (futex.h). A sleep in the C library's locks is a
 * separate wait (pthread.h). Each finished wait is added to its latch's histogram here
 * (histogram.h); no event leaves the kernel.
 */
#define METERED MAX_HITS

#include "latch.h"
#include <bpf/bpf_helpers.h>
#include "clock.h"
#include "duty.h"
#include "futex.h"
#include "meter.h"
#include "registers.h"
#include "site.h"
#include "sleep.h"
#include "target.h"
#include "wait.h"

char LICENSE[] SEC("license") = "GPL";

const volatile struct vocabulary vocabulary;

/* The number of arguments of the kernel's function; its result follows them. */
#define FUTEX_WAIT_ARGUMENTS 5

static __always_inline int at_site(void *ctx)
{
	struct site *site;
	struct hits *h;
	__u32 index;
	__u64 now;

	if (!is_target())
		return 0;
	now = bpf_ktime_get_ns();
	site = site_here(ctx, &index);
	if (!site) {
		lose(LOST_NO_SITE);
		return 0;
	}
	h = hit(site->probe);
	if (site->role <= ROLE_BEGIN_AGAIN)
		begin_wait(ctx, site, now);
	else
		end_wait(ctx, site, now);
	add_time(h, now);
	return 0;
}

/* Attached to the returns of functions too: a second program would take the verifier as long again.
 */
SEC("uprobe.multi")
int latch_sites(void *ctx)
{
	return at_site(ctx);
}

/* The same for kernels without uprobe_multi, attached site by site. */
SEC("uprobe")
int latch_site(void *ctx)
{
	return at_site(ctx);
}

/* The kernel's own function for all futex waits. Unlike the system call's tracepoints, it costs
 * only the threads that wait. */
SEC("fentry/futex_wait")
int futex_wait_enter(__u64 *ctx)
{
	__u64 word = 0;

	/* These programs stay attached between turns, because the kernel changes its own code to
	 * attach them. */
	if (!is_target() || !is_on(futex_switches()))
		return 0;
	/* Older verifiers refuse to load an argument that points to a number. */
	bpf_probe_read_kernel(&word, sizeof(word), ctx);
	/* The meaning of the function's flags differs between kernels; the system call's operation
	 * does not. */
	return at_futex_enter(word, user_register(op_register));
}

/* Loaded only if handoffs are counted. */
SEC("fentry/futex_wake")
int futex_wake_enter(__u64 *ctx)
{
	__u64 word = 0;

	if (!is_target() || !is_on(futex_switches()))
		return 0;
	bpf_probe_read_kernel(&word, sizeof(word), ctx);
	hit(HIT_FUTEX_WAKE);
	note_wake(word);
	return 0;
}

SEC("fexit/futex_wait")
int futex_wait_exit(__u64 *ctx)
{
	if (!is_target() || futex_programs_rest())
		return 0;
	return at_futex_exit((__s32)ctx[FUTEX_WAIT_ARGUMENTS]);
}

/* For kernels where that function cannot be traced. */
SEC("tracepoint/syscalls/sys_enter_futex")
int futex_enter(struct sys_enter *ctx)
{
	if (!is_target())
		return 0;
	return at_futex_enter(ctx->args[0], ctx->args[1]);
}

SEC("tracepoint/syscalls/sys_exit_futex")
int futex_exit(struct sys_exit *ctx)
{
	if (!is_target())
		return 0;
	return at_futex_exit(ctx->ret);
}

/* A raw tracepoint, because the other kind needs the right to read tracefs. */
SEC("raw_tp/sched_process_exit")
int thread_exit(void *ctx)
{
	__u32 tid = bpf_get_current_pid_tgid();
	struct wait *w;

	if (!is_target())
		return 0;
	hit(HIT_THREAD_EXIT);
	w = thread_wait();
	if (w) {
		move_on(w);
		bpf_map_delete_elem(&threads, &tid);
	}
	return 0;
}
