/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What kernel and user space agree on about latch waits. User space gets these types from the
 * compiled object's BTF (the generated skeleton), so they exist once.
 */
#pragma once

#include "kernel.h"

#define BUCKETS 25

/* How much the maps hold. */
#define MAX_WRAPPERS  1024
#define MAX_LATCHES   2048
#define MAX_CALLSITES 4096
#define MAX_THREADS   16384
#define MAX_PAGES     4096
#define MAX_HANDOFFS  8192
/* Kinds of wait that one wait function can stand for. */
#define MAX_KINDS	     6
#define MAX_FRAME_ROWS	     4096
#define MAX_PSI_PLACES	     8
#define MAX_PRLOCK_FUNCTIONS 4

/* What reaching a probe site means. */
enum role {
	/* A wait begins here, each time. */
	ROLE_BEGIN,
	/* A wait begins here, or the same one goes on: the site lies in the wait's own loop. */
	ROLE_BEGIN_AGAIN,
	/* The wait is over. */
	ROLE_END,
	/* The wait is probably over, unless ROLE_BEGIN_AGAIN follows at once: the last one counts.
	 */
	ROLE_MAYBE_END,
};

/* By what a latch is told from others: bounded, so that a server cannot fill the maps. */
enum identity {
	/* A number in the latch: its class. */
	IDENTITY_LATCH_ID,
	/* Where the server's code created it: a file name's address and a line. */
	IDENTITY_CREATED,
	/* performance_schema's class of it. */
	IDENTITY_PSI_CLASS,
	/* Its own address, when that is in the server's static data. */
	IDENTITY_STATIC,
	/* The return address of the code that waits for it. */
	IDENTITY_CALLER,
	/* It is part of a metadata lock. */
	IDENTITY_METADATA_LOCK,
	/* A page's latch. */
	IDENTITY_PAGE,
	/* It is the C library's own, of its allocator. */
	IDENTITY_ALLOCATOR,
	/* Site only: static, else performance_schema's class, else the caller. */
	IDENTITY_WORD,
};

/* In which mode a latch is waited for; 0: it has none, or it is not known. */
enum mode {
	MODE_NONE,
	MODE_S,
	MODE_SX,
	MODE_X,
};

/* What of the C library a thread sleeps in. */
enum primitive {
	/* None that is known, or a latch of the server's own. */
	PRIMITIVE_NONE,
	PRIMITIVE_MUTEX,
	PRIMITIVE_RWLOCK_READ,
	PRIMITIVE_RWLOCK_WRITE,
	PRIMITIVE_COND,
	/* malloc and its like. */
	PRIMITIVE_ALLOCATOR,
	/* A function that sleeps for something else: a semaphore, a thread's end, any system call.
	 */
	PRIMITIVE_OTHER,
	/* Of waits only: for a mutex that the thread has to get back because a condition variable
	 * woke it. */
	PRIMITIVE_REACQUIRE,
};

/* Where a value is when a site is reached: a saved register, or memory that one points to. */
struct place {
	/* Byte offset in the saved registers; of a constant its upper half. */
	__u16 reg;
	/* 0: absent; 1: register + displacement; 2: always the same, displacement is the lower
	 * half; 4 or 8: that many bytes at register + displacement. */
	__u16 kind;
	__s32 displacement;
};

/* A branch that ends the wait only if it goes one way, decided from the saved registers. */
enum condition_kind {
	CONDITION_NONE,
	/* x86 condition code (0 to 15) on the flags register. */
	CONDITION_X86,
	/* A64 condition code (0 to 15) on pstate. */
	CONDITION_A64,
	/* The register is zero (cbz). */
	CONDITION_ZERO,
	/* One bit of the register is set (tbnz). */
	CONDITION_BIT_SET,
};

struct condition {
	__u8 kind;
	/* Condition code or bit number. */
	__u8 code;
	/* The outcome at which the wait ends. */
	__u8 ends_when;
	/* For CONDITION_ZERO: compare all 64 bits, not 32. */
	__u8 wide;
	/* Byte offset of the flags or of the register in the saved registers. */
	__u32 reg;
};

/* By what the latch is told from others, and in which mode it is waited for. */
struct latch_kind {
	/* As the server numbers kinds of wait, where one site stands for several. */
	__u16 number;
	__u8 mode;
	__u8 identity;
	/* Offsets of the identity's two parts in the latch, and which bits of the second count. */
	__u16 id_offset;
	__u16 line_offset;
	__u32 line_mask;
};

/* One probe site; the attach cookie is its index. */
struct site {
	__u8 role;
	/* Which wait function it belongs to. */
	__u8 function;
	/* Under which probe its hits are counted. */
	__u16 probe;
	/* Which of its function's kinds of wait this is, where that has several. */
	struct place kind;
	/* At an end: absent, unless sites of many functions are one wait function's. */
	struct place latch;
	/* Call site: a file name's address and line, where the server passes them... */
	struct place file;
	struct place line;
	/* ...otherwise the return address; and the frame pointer, to look further up. */
	struct place caller;
	struct place frame;
	struct condition condition;
};

/* What the waits of a wait function are for. */
struct latch_kinds {
	/* 1, or as many as the sites' `kind` tells apart. */
	__u32 count;
	struct latch_kind kinds[MAX_KINDS];
};

enum limit {
	/* Probe sites. */
	MAX_SITES = 2048,
	/* What the sites' hits are counted under: sites of one name are one probe. */
	MAX_PROBES = 256,
	/* Wait functions of one server. */
	MAX_FUNCTIONS = 32,
	/* Stands in place of one for waits in the C library, which futex programs see. */
	LIBRARY_FUNCTION = MAX_FUNCTIONS,
	/* One in so many hits is timed. */
	TIMED_HITS = 16,
};

/* How the probes of a wait function, or the futex programs, are attached. */
struct attachment {
	/* How many times they were taken off. */
	__u32 generation;
	/* Not 0 if they are off at times, or not all attached yet: waits of which only the end is
	 * seen are no surprise. */
	__u32 by_turns;
	/* Of the futex programs: how many times they were put on or taken off; odd while on. */
	__u32 switches;
	/* Of the futex programs on the kernel's functions, which stay attached: whether even waits
	 * that began before are left alone. */
	__u32 rests;
};

struct latch_key {
	__u64 id;
	__u32 line;
	__u8 identity;
	__u8 mode;
	__u8 function;
	/* enum primitive */
	__u8 primitive;
};

struct callsite_key {
	struct latch_key latch;
	/* File name's address and line, or a return address and 0. */
	__u64 where;
	__u64 line;
};

/* How many waits there were is the sum of the buckets. */
struct waits {
	__u64 sum_ns;
	__u64 max_ns;
	/* Waits during which the futex programs were on all the time, and how long those took. */
	__u64 watched;
	__u64 watched_ns;
	/* In those: sleep, how often, and how many waits slept at least once. */
	__u64 sleep_ns;
	__u64 sleeps;
	__u64 slept;
	/* Address of a latch of this class, for user space to look at. */
	__u64 example;
	__u64 buckets[BUCKETS];
};

struct callsite_waits {
	__u64 count;
	__u64 sum_ns;
};

/* What handoffs add up under; places count from 1, 0 stands for none that is known. */
struct handoff_key {
	struct latch_key latch;
	/* Where the thread ran that woke the waiter. */
	__u8 from;
	/* Where the waiter ran when it had the latch. */
	__u8 to;
	__u8 unused[6];
};

struct handoffs {
	__u64 count;
	__u64 sum_ns;
	/* In which the waiter began to wait in another place than it had the latch in. */
	__u64 migrations;
};

/* Where a page's descriptor has what tells of the page; all offsets are from its latch. */
struct page_layout {
	__s32 space;
	__s32 page_no;
	/* The pointer to the page itself. */
	__s32 frame;
	/* A byte that is 1 in latches of pages and 0 in others; 0: there is none. */
	__u32 flag;
	/* A type of index pages besides those of all servers; 0: there is none. */
	__u16 index_type;
	/* 0: this server's pages are not known. */
	__u16 is_known;
};

/* What waits for pages add up under. */
struct page_key {
	__u32 space;
	/* As in the page's header. */
	__u16 type;
	/* Of an index's page: its level and its index; of others 0. */
	__u16 level;
	__u64 index;
	/* The wait function; none for all that the map had no room for. */
	__u32 function;
	__u32 unused;
};

/* Types of pages that are part of an index, and what stands in place of a type. */
enum page_type {
	PAGE_SDI = 17853,
	PAGE_RTREE = 17854,
	PAGE_INDEX = 17855,
	/* Pages of which nothing is known, or for which the map had no room. */
	PAGE_OTHER = 0xffff,
};

struct page_waits {
	__u64 count;
	__u64 sum_ns;
};

/* A sleep in a lock or condition variable of the C library; word 0 means none. */
struct library_wait {
	__u64 word;
	__u64 begin_ns;
	/* Where the thread ran when it fell asleep. */
	__u64 begin_place;
	struct callsite_key key;
};

/* How to get from an instruction of the C library to its function's caller. */
struct library_frame {
	/* Bytes from the stack pointer here to what it is in the caller. */
	__u32 size;
	/* Where above the stack pointer the return address is; IN_LINK_REGISTER: not saved. */
	__u32 return_at;
	/* What the function is, to those outside of the library. */
	__u32 primitive;
};

#define IN_LINK_REGISTER 0xffffffff

/* Where an instrumented object keeps the pointer to its performance_schema instance. */
struct psi_place {
	/* From the futex word, rounded down to 8 bytes. */
	__u32 offset;
	/* Whether threads sleep on that word by FUTEX_WAIT, and not by FUTEX_WAIT_BITSET; with a
	 * condition variable of glibc before 2.34 as if by the latter. */
	__u8 plain_wait;
	/* The first letter of the kind in the names of such classes. */
	__u8 kind;
	/* Whether it is that of a rw_pr_lock_t. */
	__u8 is_prlock;
	__u8 unused;
};

/* Part of the server's code. */
struct code_range {
	__u64 begin;
	__u64 end;
};

/* A thread's wait; latch 0 means none. */
struct wait {
	__u64 latch;
	__u64 begin_ns;
	/* When it probably ended; 0 while it goes on. */
	__u64 end_ns;
	__u64 sleep_ns;
	/* When the sleep in progress began, 0 while awake, and on which word. */
	__u64 sleep_begin_ns;
	__u64 sleep_word;
	__u32 sleeps;
	/* Of its wait function's probes when it began, and of the futex programs when the thread
	 * fell asleep. */
	__u32 generation;
	__u32 sleep_generation;
	/* Of the futex programs when the wait began. */
	__u32 switches;
	/* Where the thread ran when the wait began and when it probably ended, and where the thread
	 * that woke it last. */
	__u8 begin_place;
	__u8 end_place;
	__u8 waker_place;
	__u8 is_page;
	struct callsite_key key;
	/* What sort of page it waits for, once `is_page`. */
	struct page_key page;
	struct library_wait library;
};

/* Why something was not counted. */
enum lost {
	/* More threads than MAX_THREADS. */
	LOST_THREADS_FULL,
	/* More latch classes than MAX_LATCHES. */
	LOST_LATCHES_FULL,
	/* More call sites than MAX_CALLSITES: the wait itself is counted. */
	LOST_CALLSITES_FULL,
	/* The latch's memory could not be read in the probe. */
	LOST_UNREADABLE,
	/* A wait whose end was not seen. */
	LOST_UNFINISHED,
	/* An end whose begin was not seen, as right after attaching. */
	LOST_NO_BEGIN,
	/* A probe that carries no known site. */
	LOST_NO_SITE,
	/* A sleep in the C library of which it is not known what waits there, nor for what. */
	LOST_LIBRARY_UNKNOWN,
	/* A wait that was open when its probes were taken off for a while. */
	LOST_CUT_OFF,
	/* More handoffs than MAX_HANDOFFS: the wait itself is counted. */
	LOST_HANDOFFS_FULL,
	LOST_CAUSES,
};

/* How often a probe was hit, and how long its program ran in those hits that were timed. */
struct hits {
	__u64 count;
	__u64 timed_ns;
};

/* Hits of what is not a uprobe site; counted after the sites. */
enum tracepoint {
	HIT_FUTEX_ENTER = MAX_PROBES,
	HIT_FUTEX_EXIT,
	HIT_THREAD_EXIT,
	HIT_FUTEX_WAKE,
	MAX_HITS,
};

/* Carries the enums into the object's BTF, from which user space gets them. */
struct vocabulary {
	enum role role;
	enum identity identity;
	enum condition_kind condition;
	enum mode mode;
	enum primitive primitive;
	enum lost lost;
	enum tracepoint tracepoint;
	enum limit limit;
	enum page_type page_type;
};
