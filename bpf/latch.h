/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The interface between kernel and user space for latch waits. User space gets these types from the
 * compiled object's BTF (the generated skeleton), so they are defined only once.
 */
#pragma once

#include "kernel.h"

/* Sizes that both sides know. */
enum limit {
	/* Buckets of a histogram; the last one has no upper bound. */
	BUCKETS = 25,
	/* Probe sites. */
	MAX_SITES = 2048,
	/* Probes under which the sites' hits are counted: sites of one name share a probe. */
	MAX_PROBES = 256,
	/* Wait functions of one server. */
	MAX_FUNCTIONS = 32,
	/* Stands for a wait function in the keys of waits in the C library, which the futex
	 * programs see. */
	LIBRARY_FUNCTION = MAX_FUNCTIONS,
	/* Kinds of wait that one wait function can represent. */
	MAX_KINDS = 6,
	/* Return addresses in code that many latches share. */
	MAX_WRAPPERS = 1024,
	/* Instructions at which the C library's functions sleep or call each other. */
	MAX_FRAME_ROWS = 4096,
	/* Pointers to performance_schema instances in the instrumented types. */
	MAX_PSI_POINTERS = 8,
	/* Functions that lock a rw_pr_lock_t. */
	MAX_PRLOCK_FUNCTIONS = 4,
	/* CPUs whose domain is known. */
	MAX_CPUS = 1024,
	/* Recent futex wakes that are remembered, a power of two. */
	MAX_WAKES = 1024,
	/* Threads, and the keys under which waits are counted. */
	MAX_THREADS = 16384,
	MAX_LATCHES = 2048,
	MAX_CALLSITES = 4096,
	MAX_PAGES = 4096,
	MAX_WORDS = 8192,
	MAX_HANDOFFS = 8192,
	/* Entries of its own that a CPU has in each map, on average. */
	OWN_ENTRIES = 128,
	/* One in this many hits is timed. */
	TIMED_HITS = 16,
	/* More than the numbers of system calls, a power of two. */
	MAX_CALLS = 512,
	/* The general registers and what follows them where the kernel saves a thread's registers,
	 * on the architecture that has more of them. */
	SEEN_REGISTERS = 34,
	/* The longest name of a file, with the 0 that ends it. */
	FILE_NAME = 256,
};

/* What reaching a probe site means. */
enum role {
	/* A wait begins here, each time. */
	ROLE_BEGIN,
	/* A wait begins here, or the same one continues, because the site lies in the wait's own
	 * loop. */
	ROLE_BEGIN_AGAIN,
	/* The wait is over. */
	ROLE_END,
	/* The wait is probably over, unless ROLE_BEGIN_AGAIN follows at once. The last one
	 * counts. */
	ROLE_MAYBE_END,
};

/* What identifies a latch. The number of identities is bounded, so that a server cannot fill the
 * maps. */
enum identity {
	/* A number in the latch: its class. */
	IDENTITY_LATCH_ID,
	/* The line of the server's source that created it: a file name's address and a number. */
	IDENTITY_CREATED,
	/* Its performance_schema class. */
	IDENTITY_PSI_CLASS,
	/* Its own address, which is in the server's static data. */
	IDENTITY_STATIC,
	/* The return address of the code that waits for it. */
	IDENTITY_CALLER,
	/* Nothing but its type: it is part of a metadata lock. */
	IDENTITY_METADATA_LOCK,
	/* Nothing but its type: it is a page's latch. */
	IDENTITY_PAGE,
	/* Nothing but its type: it belongs to the C library's allocator. */
	IDENTITY_ALLOCATOR,
	/* For sites only: the first of STATIC, PSI_CLASS and CALLER that is possible. */
	IDENTITY_WORD,
};

/* The mode in which a latch is waited for; 0: it has none, or the mode is not known. */
enum mode {
	MODE_NONE,
	MODE_S,
	MODE_SX,
	MODE_X,
};

/* The C library object that a thread sleeps in. */
enum primitive {
	/* No known object, or a latch of the server's own. */
	PRIMITIVE_NONE,
	PRIMITIVE_MUTEX,
	PRIMITIVE_RWLOCK_READ,
	PRIMITIVE_RWLOCK_WRITE,
	PRIMITIVE_COND,
	/* malloc and its like. */
	PRIMITIVE_ALLOCATOR,
	/* A function that sleeps for something else: a semaphore, the end of a thread, any system
	 * call. */
	PRIMITIVE_OTHER,
	/* For waits only: a mutex that the thread has to reacquire because a condition variable
	 * woke it. */
	PRIMITIVE_REACQUIRE,
};

/* How a value follows from its location. The numbers of the last two are the sizes in bytes. */
enum location_kind {
	/* There is no such value. */
	LOCATION_ABSENT = 0,
	/* The value is register + displacement. */
	LOCATION_SUM = 1,
	/* The value is known: `reg` is its upper half, `displacement` its lower half. */
	LOCATION_CONSTANT = 2,
	/* The value is in memory, at register + displacement. */
	LOCATION_MEMORY_32 = 4,
	LOCATION_MEMORY_64 = 8,
};

/* Where a value is when a site is reached: in a saved register, or in memory that one points to. */
struct location {
	/* Byte offset in the saved registers. */
	__u16 reg;
	/* enum location_kind */
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
	/* enum condition_kind */
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

/* How the latch is identified, and the mode in which it is waited for. */
struct latch_kind {
	/* The server's own number for this kind of wait, if one site represents several. */
	__u16 number;
	/* enum mode */
	__u8 mode;
	/* enum identity */
	__u8 identity;
	/* The offsets of the identity's two parts in the latch, and the bits of the second that
	 * count. */
	__u16 id_offset;
	__u16 line_offset;
	__u32 line_mask;
};

/* One probe site; the attach cookie is its index. */
struct site {
	/* enum role */
	__u8 role;
	/* The wait function that it belongs to. */
	__u8 function;
	/* The probe under which its hits are counted. */
	__u16 probe;
	/* Which of its function's kinds of wait this is, if the function has several. */
	struct location kind;
	/* At an end: absent, unless sites of many functions belong to one wait function. */
	struct location latch;
	/* The call site: a file name's address and line, if the server passes them... */
	struct location file;
	struct location line;
	/* ...otherwise the return address, and the frame pointer for finding frames further up. */
	struct location caller;
	struct location frame;
	struct condition condition;
};

/* What the waits of a wait function are for. */
struct latch_kinds {
	/* 1, or the number of kinds that the sites' `kind` distinguishes. */
	__u32 count;
	struct latch_kind kinds[MAX_KINDS];
};

/* How the probes of a wait function, or the futex programs, are attached. */
struct attachment {
	/* How many times they were switched off. */
	__u32 generation;
	/* Not 0 if they are off at times, or not all attached yet, so that seeing only the end of a
	 * wait is expected. */
	__u32 by_turns;
	/* For the futex programs: how many times they were switched on or off; odd while on. */
	__u32 switches;
	/* For the futex programs on the kernel's functions, which stay attached: whether even waits
	 * that began earlier are ignored. */
	__u32 rests;
	/* Waits that begin at this time or later are not counted: the turn ends then, which is
	 * before the last probe is off. 0 while probes are being attached. */
	__u64 until_ns;
};

struct latch_key {
	__u64 id;
	__u32 line;
	/* enum identity */
	__u8 identity;
	/* enum mode */
	__u8 mode;
	/* The wait function, or LIBRARY_FUNCTION. */
	__u8 function;
	/* enum primitive */
	__u8 primitive;
};

struct callsite_key {
	struct latch_key latch;
	/* The address of a file's name, if the line is not 0; otherwise the return address. */
	__u64 address;
	__u64 line;
};

/* What a CPU counts alone has the CPU's number in its key. */
struct own_latch_key {
	struct latch_key latch;
	__u64 cpu;
};

struct own_callsite_key {
	struct callsite_key callsite;
	__u64 cpu;
};

/* The number of waits is the sum of the buckets. */
struct waits {
	__u64 sum_ns;
	__u64 max_ns;
	/* Waits during which the futex programs were on all the time, and their total time. */
	__u64 watched;
	__u64 watched_ns;
	/* For those: the time asleep, the number of sleeps, and the number of waits with at least
	 * one sleep. */
	__u64 sleep_ns;
	__u64 sleeps;
	__u64 slept;
	/* The address of a latch of this class, for user space to inspect. */
	__u64 example;
	__u64 buckets[BUCKETS];
};

struct callsite_waits {
	__u64 sum_ns;
	__u64 count;
};

/* What a look shows of a thread is a number. It is the word on which the thread sleeps, or
 * something of another kind. */
enum doing_bit {
	/* The kind is in two bits from here on. */
	DOING_KIND = 60,
	/* The thread's registers follow, and it may wait. */
	DOING_REGISTERS = 62,
	/* The latch follows that the thread waits for, in a wait that the probes see. */
	DOING_WAIT_SEEN = 63,
};

/* Where a thread was seen. */
enum seen_in {
	/* It was interrupted in the server's code. */
	SEEN_IN_CODE,
	/* In a futex system call that sleeps. */
	SEEN_IN_FUTEX,
	/* In the system call by which a thread that spins lets others run. */
	SEEN_IN_YIELD,
	/* In a system call for a file or a disk: it waits for no latch, but may hold one. */
	SEEN_IN_IO,
};

/* Whether a thread runs, as the scheduler sees it. */
enum thread_state {
	THREAD_ON_CPU,
	/* It could run, and waits for a CPU. */
	THREAD_WITHOUT_CPU,
	/* It sleeps, and a signal would wake it. */
	THREAD_ASLEEP,
	/* It sleeps, and no signal wakes it: mostly in I/O. */
	THREAD_BLOCKED,
};

/* What a look shows of each thread in four numbers: what it does; its ID, and in the upper half its
 * state; this; and its pointer to its own variables. */
enum scheduled_bit {
	/* The ID by which the server knows the thread is in the bits from here on; below are the
	 * low bits of how often it got a CPU. */
	SCHEDULED_ID = 32,
	/* Two names follow: that of the file that it reads, writes or flushes, and that of the
	 * folder which contains the file. */
	SCHEDULED_FILE = 62,
	/* Whether it ran on this CPU until the look began. */
	SCHEDULED_HERE = 63,
};

/* What a look shows of a thread that may wait, or hold what others wait for. */
struct seen_thread {
	__u32 tid;
	/* enum seen_in */
	__u16 place;
	/* Whether the thread ran on this CPU until the look began. */
	__u16 ran_here;
	/* The futex word on which it sleeps, and the operation. */
	__u64 word;
	__u64 op;
	/* Its registers as the kernel saves them. */
	__u64 registers[SEEN_REGISTERS];
};

/* The name of a file or a folder, up to a byte that is 0. */
struct seen_name {
	__u8 text[FILE_NAME];
};

/* The key under which handoffs are counted. Domains count from 1; 0 means unknown. */
struct handoff_key {
	struct latch_key latch;
	/* The domain of the thread that woke the waiter. */
	__u8 from;
	/* The domain of the waiter when it had the latch. */
	__u8 to;
	__u8 unused[6];
};

struct own_handoff_key {
	struct handoff_key handoff;
	__u64 cpu;
};

struct handoffs {
	__u64 sum_ns;
	__u64 count;
	/* Handoffs in which the waiter changed its domain while it waited. */
	__u64 migrations;
};

/* Where a page's descriptor stores what identifies the page. All offsets are relative to its
 * latch. */
struct page_layout {
	__s32 space;
	__s32 page_no;
	/* The pointer to the page itself. */
	__s32 frame;
	/* A byte that is 1 in latches of pages and 0 in others; 0: there is none. */
	__u32 flag;
	/* A type of index pages in addition to those of all servers; 0: there is none. */
	__u16 index_type;
	/* 0: this server's pages are not known. */
	__u16 is_known;
};

/* The key under which waits for pages are counted. */
struct page_key {
	__u32 space;
	/* As in the page's header. */
	__u16 type;
	/* For a page of an index: its level and its index; otherwise 0. */
	__u16 level;
	__u64 index;
	/* The wait function; for the entry of all that the map had no room for, none. */
	__u32 function;
	__u32 unused;
};

/* Types of pages that are part of an index, and a value that stands for all others. */
enum page_type {
	PAGE_SDI = 17853,
	PAGE_RTREE = 17854,
	PAGE_INDEX = 17855,
	/* Pages about which nothing is known, or for which the map had no room. */
	PAGE_OTHER = 0xffff,
};

struct own_page_key {
	struct page_key page;
	__u64 cpu;
};

struct page_waits {
	__u64 sum_ns;
	__u64 count;
};

/* A wait for a lock or condition variable of the C library, which lasts as long as the thread
 * sleeps on its word; word 0 means none. */
struct pthread_wait {
	__u64 word;
	__u64 begin_ns;
	/* The domain of the thread when it fell asleep. */
	__u64 begin_domain;
	struct callsite_key key;
};

/* How to get from an instruction of the C library to its function's caller. */
struct library_frame {
	/* The number of bytes from the stack pointer here to its value in the caller. */
	__u32 size;
	/* The offset of the return address from the stack pointer, or RETURN_IN_REGISTER. */
	__u32 return_at;
	/* enum primitive: what the function means to code outside of the library. */
	__u32 primitive;
};

enum return_at {
	/* The return address is in the link register. */
	RETURN_IN_REGISTER = 0xffffffff,
};

/* The pointer from an instrumented object to its performance_schema instance. */
struct psi_pointer {
	/* The distance from the futex word, rounded down to 8 bytes. */
	__u32 offset;
	/* Whether threads sleep on that word with FUTEX_WAIT rather than FUTEX_WAIT_BITSET.
	 * Condition variables of glibc before 2.34 are treated as if they used the latter. */
	__u8 plain_wait;
	/* The first letter of the kind in the names of such classes. */
	__u8 kind;
	/* Whether the object is a rw_pr_lock_t. */
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
	/* When it probably ended; 0 while it continues. */
	__u64 end_ns;
	__u64 sleep_ns;
	/* When the sleep in progress began, 0 while awake, and the word slept on. */
	__u64 sleep_begin_ns;
	__u64 sleep_word;
	__u32 sleeps;
	/* The generation of its wait function's probes when it began, and of the futex programs
	 * when the thread fell asleep. */
	__u32 generation;
	__u32 sleep_generation;
	/* The switches of the futex programs when the wait began. */
	__u32 switches;
	/* The domains of the thread when the wait began and when it probably ended, and of the
	 * thread that last woke it. */
	__u8 begin_domain;
	__u8 end_domain;
	__u8 waker_domain;
	__u8 is_page;
	struct callsite_key key;
	/* The kind of page that it waits for, once `is_page`. */
	struct page_key page;
	struct pthread_wait pthread;
	/* How much of it was open to be sampled. */
	__u64 sampled_ns;
	/* With this, an entry of the map fills whole cache lines. */
	__u64 unused;
};

/* Why something was not counted. */
enum lost {
	/* More threads than MAX_THREADS. */
	LOST_THREADS_FULL,
	/* More latch classes than MAX_LATCHES. */
	LOST_LATCHES_FULL,
	/* More call sites than MAX_CALLSITES; the wait itself is counted. */
	LOST_CALLSITES_FULL,
	/* The latch's memory could not be read in the probe. */
	LOST_UNREADABLE,
	/* A wait whose end was not seen. */
	LOST_UNFINISHED,
	/* An end whose beginning was not seen, as right after attaching. */
	LOST_NO_BEGIN,
	/* A probe hit without a known site. */
	LOST_NO_SITE,
	/* A sleep in the C library for which neither the waiting code nor the lock could be
	 * identified. */
	LOST_LIBRARY_UNKNOWN,
	/* A wait that was open when its probes were switched off for a while. */
	LOST_CUT_OFF,
	/* More handoffs than MAX_HANDOFFS; the wait itself is counted. */
	LOST_HANDOFFS_FULL,
	/* More parts of tables than MAX_PAGES; the wait is counted among those for other pages. */
	LOST_PAGES_FULL,
	/* The place in a map was being changed by what the program interrupted on its CPU. */
	LOST_MAP_BUSY,
	LOST_CAUSES,
};

/* How often a probe was hit, and how long its program ran in the hits that were timed. */
struct hits {
	__u64 count;
	__u64 timed_ns;
};

/* Hits other than those of uprobe sites, counted after the sites. */
enum tracepoint {
	HIT_FUTEX_ENTER = MAX_PROBES,
	HIT_FUTEX_EXIT,
	HIT_THREAD_EXIT,
	HIT_FUTEX_WAKE,
	HIT_GLANCE,
	MAX_HITS,
};

/* Puts these types into the object's BTF, so that user space can read them there. */
struct vocabulary {
	enum role role;
	enum identity identity;
	enum condition_kind condition;
	enum mode mode;
	enum primitive primitive;
	enum lost lost;
	enum tracepoint tracepoint;
	enum limit limit;
	enum location_kind location;
	enum return_at return_at;
	enum page_type page_type;
	enum doing_bit doing_bit;
	enum seen_in seen_in;
	enum thread_state thread_state;
	enum scheduled_bit scheduled_bit;
	struct seen_thread seen_thread;
	struct seen_name seen_name;
};
