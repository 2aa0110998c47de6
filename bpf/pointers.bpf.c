// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Lists a server's threads, with the address of each thread's own variables.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "target.h"
#include "variables.h"

char LICENSE[] SEC("license") = "GPL";

/* Writes each thread's ID and its pointer to its own variables. */
SEC("iter/task")
int list_threads(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	__u64 record[2];

	if (!task || task->tgid != (int)target_tgid)
		return 0;
	record[0] = (__u32)task->pid;
	record[1] = thread_pointer(task);
	bpf_seq_write(ctx->meta->seq, record, sizeof(record));
	return 0;
}
