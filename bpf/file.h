/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The file that a thread reads, writes or flushes.
 */
#pragma once

#include "latch.h"
#include "kernel.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

/* Whether the kernel has all that is read here. */
static __always_inline bool shows_files(void)
{
	return bpf_core_field_exists(((struct task_struct *)0)->files) &&
	       bpf_core_field_exists(((struct files_struct *)0)->fdt) &&
	       bpf_core_field_exists(((struct fdtable *)0)->max_fds) &&
	       bpf_core_field_exists(((struct fdtable *)0)->fd) &&
	       bpf_core_field_exists(((struct file *)0)->f_path.dentry) &&
	       bpf_core_field_exists(((struct file *)0)->f_inode) &&
	       bpf_core_field_exists(((struct inode *)0)->i_mode) &&
	       bpf_core_field_exists(((struct dentry *)0)->d_parent) &&
	       bpf_core_field_exists(((struct dentry *)0)->d_name.name);
}

/* The file that a thread's process has opened under a descriptor; NULL if there is none. */
static __always_inline struct file *opened(struct task_struct *task, __u64 descriptor)
{
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file **all = BPF_CORE_READ(table, fd);
	struct file *file = NULL;

	if (descriptor >= BPF_CORE_READ(table, max_fds))
		return NULL;
	bpf_probe_read_kernel(&file, sizeof(file), all + descriptor);
	return file;
}

/* The entry of a folder under which a file was opened, which is one of a file system or a disk;
 * NULL for others. The kernel's own files are in no folder. */
static __always_inline struct dentry *entry_of_file(struct task_struct *task, __u64 descriptor)
{
	struct dentry *entry;
	struct file *file;
	__u32 kind;

	if (!shows_files())
		return NULL;
	file = opened(task, descriptor);
	if (!file)
		return NULL;
	kind = BPF_CORE_READ(file, f_inode, i_mode) & S_IFMT;
	entry = BPF_CORE_READ(file, f_path.dentry);
	if ((kind != S_IFREG && kind != S_IFBLK) || BPF_CORE_READ(entry, d_parent) == entry)
		return NULL;
	return entry;
}

/* Reads the name of a file or a folder. */
static __always_inline void read_entry_name(struct seen_name *name, struct dentry *entry)
{
	__builtin_memset(name, 0, sizeof(*name));
	bpf_probe_read_kernel_str(name->text, FILE_NAME, BPF_CORE_READ(entry, d_name.name));
}
