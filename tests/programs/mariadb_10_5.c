/*
 * How InnoDB waits for its events in MariaDB up to 10.5: with the mutex and the condition variable
 * inside of the event, EVENT_AT bytes from its beginning. TOO_LONG makes the function do more.
 */
#include <pthread.h>
#include <stddef.h>
#include <time.h>

#define MANGLED(name) __asm__(name) __attribute__((noinline, visibility("hidden")))

const char server_version[] __attribute__((visibility("default"))) = "10.5.29-MariaDB";

struct event {
	char before[EVENT_AT];
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	int is_set;
};

struct queue {
	pthread_cond_t cond;
	pthread_mutex_t mutex;
};

struct event *volatile last;
volatile int sum[4096];

int mariadb_fix_view(void *thread, void *table, char check, char repair)
    __asm__("_Z16mariadb_fix_viewP3THDP10TABLE_LISTbb") __attribute__((visibility("default")));
void event_wait(struct event *event) MANGLED("_ZN8os_event8wait_lowEl");
void event_wait_for(struct event *event, const struct timespec *until) MANGLED("_ZN8os_event13wait_time_lowEml");
void queue_wait(struct queue *queue) MANGLED("_Z10queue_waitP5queue");

int mariadb_fix_view(void *thread, void *table, char check, char repair)
{
	return thread && table && check && repair;
}

void event_wait(struct event *event)
{
#ifdef TOO_LONG
#pragma GCC unroll 64
	for (int i = 0; i < 64; i++)
		sum[i * 64] += i;
#endif
	pthread_mutex_lock(&event->mutex);
	while (!event->is_set)
		pthread_cond_wait(&event->cond, &event->mutex);
	pthread_mutex_unlock(&event->mutex);
}

void event_wait_for(struct event *event, const struct timespec *until)
{
	pthread_mutex_lock(&event->mutex);
	if (!event->is_set)
		pthread_cond_timedwait(&event->cond, &event->mutex, until);
	pthread_mutex_unlock(&event->mutex);
}

/* Waits for something else. */
void queue_wait(struct queue *queue)
{
	pthread_cond_wait(&queue->cond, &queue->mutex);
	queue->cond = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
}

void start(struct event *event, struct queue *queue)
{
	event_wait(event);
	event_wait_for(event, 0);
	queue_wait(queue);
	last = event;
}
