/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The few kernel types and constants that the programs need, so that they build without any
 * machine's kernel headers and identically for both architectures. Saved registers are read at byte
 * offsets that user space passes in, so not even pt_regs is needed.
 */
#pragma once

typedef unsigned char __u8;
typedef signed char __s8;
typedef unsigned short __u16;
typedef short __s16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u32 __wsum;
typedef _Bool bool;
#define true  1
#define false 0
#define NULL  ((void *)0)

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PROG_ARRAY = 3,
	BPF_MAP_TYPE_PERCPU_HASH = 5,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_QUEUE = 22,
};

enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
};

enum map_flag {
	BPF_F_MMAPABLE = 1 << 10,
};

/* The futex system call's operations; the other bits of its argument are flags. */
enum futex_op {
	FUTEX_WAIT = 0,
	FUTEX_WAKE = 1,
	FUTEX_WAIT_BITSET = 9,
	FUTEX_WAKE_BITSET = 10,
	FUTEX_CMD_MASK = 0x7f,
};

enum errno {
	EAGAIN = 11,
};

/* Kernels before 5.15 have no attach cookies; the flavor lets the program check. */
enum bpf_func_id___cookie {
	BPF_FUNC_get_attach_cookie___cookie = 174,
};

/* Kernels before 5.15 do not show a thread's registers. */
enum bpf_func_id___regs {
	BPF_FUNC_task_pt_regs___regs = 175,
};

/* How often a thread got a CPU, when it last began to run, and since when it has been waiting for a
 * CPU, by the clock of its CPU. */
struct sched_info {
	unsigned long pcount;
	__u64 last_arrival;
	__u64 last_queued;
} __attribute__((preserve_access_index));

/* A thread's ID in one of the namespaces that it is in, the innermost of which is the last. */
struct upid {
	int nr;
} __attribute__((preserve_access_index));

struct pid {
	unsigned int level;
	struct upid numbers[1];
} __attribute__((preserve_access_index));

/* A file that a process has opened: its name, which ends with 0, that of the folder which contains
 * it, and its kind. */
struct qstr {
	unsigned int len;
	const unsigned char *name;
} __attribute__((preserve_access_index));

struct dentry {
	struct dentry *d_parent;
	struct qstr d_name;
} __attribute__((preserve_access_index));

struct path {
	struct dentry *dentry;
} __attribute__((preserve_access_index));

struct inode {
	__u16 i_mode;
} __attribute__((preserve_access_index));

struct file {
	struct path f_path;
	struct inode *f_inode;
} __attribute__((preserve_access_index));

/* The files of a process, by descriptor. */
struct fdtable {
	unsigned int max_fds;
	struct file **fd;
} __attribute__((preserve_access_index));

struct files_struct {
	struct fdtable *fdt;
} __attribute__((preserve_access_index));

/* Bits of a file's mode that say what it is. */
enum file_kind {
	S_IFMT = 0170000,
	S_IFREG = 0100000,
	S_IFBLK = 0060000,
};

/* A thread, and what a program that looks at all threads gets. */
struct task_struct {
	int pid;
	int tgid;
	/* A byte from Linux 7.2 on; only unsigned fields may differ in size. */
	unsigned int on_cpu;
	unsigned int flags;
	unsigned int __state;
	struct pid *thread_pid;
	struct sched_info sched_info;
	struct files_struct *files;
} __attribute__((preserve_access_index));

/* Kernels before 5.14 call a thread's state so. */
struct task_struct___old {
	long state;
} __attribute__((preserve_access_index));

/* Where the kernel keeps a thread's pointer to its own variables, on x86-64 and on arm64. */
struct thread_struct___x86 {
	unsigned long fsbase;
} __attribute__((preserve_access_index));

struct task_struct___x86 {
	struct thread_struct___x86 thread;
} __attribute__((preserve_access_index));

struct thread_struct___arm64 {
	struct {
		unsigned long tp_value;
	} uw;
} __attribute__((preserve_access_index));

struct task_struct___arm64 {
	struct thread_struct___arm64 thread;
} __attribute__((preserve_access_index));

enum task_state {
	TASK_RUNNING = 0,
	TASK_UNINTERRUPTIBLE = 2,
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
} __attribute__((preserve_access_index));

/* What bpf_perf_prog_read_value() returns: the event's count, and for how long it was enabled and
 * counted. */
struct bpf_perf_event_value {
	__u64 counter;
	__u64 enabled;
	__u64 running;
};

/* What the syscalls:sys_enter_* and sys_exit_* tracepoints pass, which is the same on all 64-bit
 * kernels. */
struct sys_enter {
	__u64 common;
	__s64 nr;
	__u64 args[6];
};

struct sys_exit {
	__u64 common;
	__s64 nr;
	__s64 ret;
};
