/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The kernel's functions for walking over the threads of a process. Programs that a clock runs may
 * call them since Linux 6.12.
 */
#pragma once

#include "kernel.h"
#include <bpf/bpf_helpers.h>

/* What `flags` means. */
enum task_iteration {
	THREADS_OF_PROCESS = 2,
};

struct bpf_iter_task {
	__u64 opaque[3];
} __attribute__((aligned(8)));

extern int bpf_iter_task_new(struct bpf_iter_task *it, struct task_struct *task,
			     unsigned int flags) __ksym __weak;
extern struct task_struct *bpf_iter_task_next(struct bpf_iter_task *it) __ksym __weak;
extern void bpf_iter_task_destroy(struct bpf_iter_task *it) __ksym __weak;
extern struct task_struct *bpf_task_from_pid(int pid) __ksym __weak;
extern void bpf_task_release(struct task_struct *task) __ksym __weak;
extern void bpf_rcu_read_lock(void) __ksym __weak;
extern void bpf_rcu_read_unlock(void) __ksym __weak;
