/*
 * A C library, reduced to what tells for which primitive a thread waits in it: exported functions, the
 * code that they share, and system calls.
 */
typedef unsigned int u32;

#define HIDDEN __attribute__((noinline, visibility("hidden")))

static inline __attribute__((always_inline)) long wait_on(u32 *word)
{
#if defined(__x86_64__)
	long result = 202;

	__asm__ volatile("syscall" : "+a"(result) : "D"(word), "S"(128), "d"(2) : "rcx", "r11", "memory");
	return result;
#else
	register long number __asm__("x8") = 98;
	register long result __asm__("x0") = (long)word;
	register long operation __asm__("x1") = 128;

	__asm__ volatile("svc #0" : "+r"(result) : "r"(number), "r"(operation) : "memory");
	return result;
#endif
}

volatile int calls;

HIDDEN void pause_a_little(u32 *word);
HIDDEN void mutex_slow(u32 *word);
HIDDEN void shared_slow(u32 *word);

void pause_a_little(u32 *word)
{
	calls += wait_on(word);
}

/* Reached only from the mutex. */
void mutex_slow(u32 *word)
{
	calls++;
	wait_on(word);
	calls++;
	pause_a_little(word);
	calls++;
}

/* Reached from two primitives. */
void shared_slow(u32 *word)
{
	calls += 2;
	wait_on(word);
	calls += 2;
}

__attribute__((noinline)) void pthread_mutex_lock(u32 *word)
{
	pause_a_little(word);
	mutex_slow(word);
}

void pthread_rwlock_rdlock(u32 *word)
{
	pause_a_little(word);
	shared_slow(word);
}

void pthread_rwlock_wrlock(u32 *word)
{
	wait_on(word);
	pause_a_little(word);
	shared_slow(word);
}

void pthread_cond_wait(u32 *word)
{
	/* The library's own call of an exported function. */
	pthread_mutex_lock(word);
	wait_on(word);
	calls++;
}

/* No primitive. */
void puts(u32 *word)
{
	calls += 3;
	wait_on(word);
}

void start(u32 *word)
{
	pthread_cond_wait(word);
	pthread_rwlock_rdlock(word);
	pthread_rwlock_wrlock(word);
}
