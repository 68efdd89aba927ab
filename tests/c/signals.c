/* Signals are the program's: they end its waits, and no thread of the device takes them. */
#include "common.h"

#include <signal.h>
#include <sys/time.h>

static void handle(int signal)
{
    (void)signal;
}

/* Again and again: on a slow machine the first time may pass before the wait begins. */
static void ring_every(int microseconds)
{
    struct itimerval interval = {.it_value.tv_usec = microseconds, .it_interval.tv_usec = microseconds};
    CHECK_EQ(setitimer(ITIMER_REAL, &interval, NULL), 0);
}

/* A program that waits for an event looks at its flags when a signal comes. */
static void ends_waits(const struct side *side)
{
    struct sigaction action = {.sa_handler = handle};
    CHECK_EQ(sigaction(SIGALRM, &action, NULL), 0);
    struct ibv_cq *cq;
    void *cq_context;
    ring_every(20000);
    CHECK_EQ(ibv_get_cq_event(side->channel, &cq, &cq_context), -1);
    CHECK_EQ(errno, EINTR);
    struct ibv_async_event event;
    CHECK_EQ(ibv_get_async_event(side->context, &event), -1);
    CHECK_EQ(errno, EINTR);
    ring_every(0);
}

/* A program with one thread that blocks a signal can fetch it, and does not die of it. */
static void stays_with_the_program(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    CHECK_EQ(sigprocmask(SIG_BLOCK, &set, NULL), 0);
    CHECK_EQ(kill(getpid(), SIGUSR1), 0);
    struct timespec patience = {.tv_sec = PATIENCE_MS / 1000};
    CHECK_EQ(sigtimedwait(&set, NULL, &patience), SIGUSR1);
}

int main(void)
{
    struct side side = make_side(open_device(), IBV_QPT_RC, NULL);
    ends_waits(&side);
    stays_with_the_program();
    drop_side(&side);
    CHECK_EQ(ibv_close_device(side.context), 0);
    return 0;
}
