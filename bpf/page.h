/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Finds the page that a latch belongs to. A latch is a page's if the data around it says so: the
 * page that its descriptor points to has, in its header, the tablespace and the number that the
 * descriptor has. Everything reported about the page is then read from that header. This happens
 * when the wait ends: a thread that has waited for a page has it pinned, so it cannot become
 * another page before.
 */
#pragma once

#include "latch.h"
#include "count.h"
#include "losses.h"
#include <bpf/bpf_helpers.h>

const volatile struct page_layout page_layout;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PAGES);
	__type(key, struct page_key);
	__type(value, struct page_waits);
} pages SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, OWN_ENTRIES);
	__type(key, struct own_page_key);
	__type(value, struct page_waits);
} own_pages SEC(".maps");

static const struct page_waits no_page_waits;
/* User space inserts this entry at the start, so that there is always room for it. */
static const struct page_key other_pages = {.type = PAGE_OTHER};

/* The alignment of pages in memory. */
#define MIN_PAGE 1024

/* The beginning of all pages, and what follows it in pages of an index; in network byte order. */
struct page_header {
	__u32 checksum;
	__u32 page_no;
	__u8 neighbours[16];
	__u16 type;
	__u8 flushed[8];
	__u8 space[4];
	__u8 counts[26];
	__u16 level;
	__u8 index[8];
} __attribute__((packed));

_Static_assert(__builtin_offsetof(struct page_header, space) == 34, "as in the file");
_Static_assert(__builtin_offsetof(struct page_header, index) == 66, "as in the file");

static __always_inline __u32 big_endian_32(const __u8 *bytes)
{
	return (__u32)bytes[0] << 24 | (__u32)bytes[1] << 16 | (__u32)bytes[2] << 8 | bytes[3];
}

/* Whether the latch is flagged as a page's. Without flags, any latch may be one. */
static __always_inline bool may_be_page(__u64 latch)
{
	__u8 flag = 0;

	if (!page_layout.flag)
		return true;
	return !bpf_probe_read_user(&flag, 1, (void *)(latch + page_layout.flag)) && flag == 1;
}

static __always_inline bool is_index_type(__u16 type)
{
	return (type >= PAGE_SDI && type <= PAGE_INDEX) || (type && type == page_layout.index_type);
}

/* Finds what the page of the latch is part of; returns false if it is not the latch of a page. */
static __always_inline bool page_of(__u64 latch, struct page_key *key)
{
	struct page_header page;
	__u32 space, page_no;
	__u64 frame;

	if (bpf_probe_read_user(&frame, 8, (void *)(latch + page_layout.frame)) || !frame ||
	    frame % MIN_PAGE ||
	    bpf_probe_read_user(&space, 4, (void *)(latch + page_layout.space)) ||
	    bpf_probe_read_user(&page_no, 4, (void *)(latch + page_layout.page_no)) ||
	    bpf_probe_read_user(&page, sizeof(page), (void *)frame))
		return false;
	if (__builtin_bswap32(page.page_no) != page_no || big_endian_32(page.space) != space)
		return false;
	__builtin_memset(key, 0, sizeof(*key));
	key->space = space;
	key->type = __builtin_bswap16(page.type);
	if (is_index_type(key->type)) {
		key->level = __builtin_bswap16(page.level);
		key->index = (__u64)big_endian_32(page.index) << 32 | big_endian_32(page.index + 4);
	}
	return true;
}

/* Adds a wait of ns to its page, or to the entry of all others if there is no room. */
static __always_inline void add_page_wait(const struct page_key *key, __u64 ns)
{
	struct own_page_key own = {.page = *key, .cpu = bpf_get_smp_processor_id()};
	long error = 0;
	struct page_waits *at =
	    counter_of(&own_pages, &pages, &own, &own.page, &no_page_waits, &error);

	if (!at) {
		lose_entry(error, LOST_PAGES_FULL);
		own.page = other_pages;
		at = counter_of(&own_pages, &pages, &own, &own.page, &no_page_waits, &error);
	}
	if (!at)
		return;
	__sync_fetch_and_add(&at->count, 1);
	__sync_fetch_and_add(&at->sum_ns, ns);
}

/* Notes which page the thread waited for, if any, while the page is certain to be the same. */
static __always_inline void note_page(struct wait *w)
{
	struct latch_key *key = &w->key.latch;
	bool is_bare = key->identity == IDENTITY_CALLER;

	if (!page_layout.is_known || w->is_page)
		return;
	/* A latch with another identity is not a page's, unless its kind of latch has a flag for
	 * pages. */
	if (page_layout.flag ? key->identity != IDENTITY_CREATED : !is_bare)
		return;
	if (!may_be_page(w->latch))
		return;
	w->is_page = page_of(w->latch, &w->page);
	if (is_bare) {
		/* The page identifies the latch better than the waiting code does. */
		if (w->is_page) {
			key->identity = IDENTITY_PAGE;
			key->id = 0;
		}
	} else if (!w->is_page) {
		w->page = other_pages;
		w->is_page = true;
	}
}
