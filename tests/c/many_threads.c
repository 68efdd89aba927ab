/*
 * Threads post to one queue pair while others poll its completion queue: nothing is lost, nothing comes twice, every
 * byte lands where it was sent.
 */
#include "common.h"

#include <pthread.h>
#include <stdatomic.h>

enum { POSTERS = 4, POLLERS = 2, EACH = 500, SLOT = 64 };

static struct pair pair;
static atomic_int outstanding, finished;
static atomic_uchar seen[POSTERS * EACH];

/* Each poster owns a part of the memory; each of its requests writes one slot of it. */
static void *run_poster(void *argument)
{
    size_t poster = (size_t)argument;
    for (size_t i = 0; i < EACH; i++) {
        /* No more than the send queue holds. */
        while (atomic_fetch_add(&outstanding, 1) >= 64) {
            atomic_fetch_sub(&outstanding, 1);
            usleep(10);
        }
        size_t slot = poster * (MEMORY / POSTERS / SLOT) + i % (MEMORY / POSTERS / SLOT);
        post(&pair.a, &pair.b, poster * EACH + i, IBV_WR_RDMA_WRITE, slot * SLOT, SLOT);
    }
    return NULL;
}

static void *run_poller(void *argument)
{
    uint64_t start = now_ms();
    while (atomic_load(&finished) < POSTERS * EACH) {
        CHECK(now_ms() - start < PATIENCE_MS);
        struct ibv_wc wcs[8];
        int found = ibv_poll_cq(pair.a.cq, 8, wcs);
        CHECK(found >= 0);
        for (int i = 0; i < found; i++) {
            CHECK_EQ(wcs[i].status, IBV_WC_SUCCESS);
            CHECK(wcs[i].wr_id < POSTERS * EACH);
            CHECK_EQ(atomic_fetch_add(&seen[wcs[i].wr_id], 1), 0);
            atomic_fetch_sub(&outstanding, 1);
            atomic_fetch_add(&finished, 1);
        }
    }
    return argument;
}

/* Threads that make and destroy objects of the same contexts do not disturb the others. */
static void *run_maker(void *argument)
{
    while (atomic_load(&finished) < POSTERS * EACH) {
        struct side side = make_side(pair.a.context, IBV_QPT_RC, NULL);
        to_init(side.qp, ALL_ACCESS);
        drop_side(&side);
    }
    return argument;
}

int main(void)
{
    pair = make_pair(IBV_QPT_RC);
    for (size_t i = 0; i < MEMORY; i++)
        pair.a.memory[i] = (unsigned char)(i * 7 + i / 251);
    pthread_t threads[POSTERS + POLLERS + 1];
    size_t count = 0;
    for (size_t i = 0; i < POSTERS; i++)
        CHECK_EQ(pthread_create(&threads[count++], NULL, run_poster, (void *)i), 0);
    for (size_t i = 0; i < POLLERS; i++)
        CHECK_EQ(pthread_create(&threads[count++], NULL, run_poller, NULL), 0);
    CHECK_EQ(pthread_create(&threads[count++], NULL, run_maker, NULL), 0);
    while (count > 0)
        CHECK_EQ(pthread_join(threads[--count], NULL), 0);
    for (size_t i = 0; i < POSTERS * EACH; i++)
        CHECK_EQ(seen[i], 1);
    CHECK(memcmp(pair.a.memory, pair.b.memory, MEMORY) == 0);
    check_silent(pair.a.cq);
    drop_pair(&pair);
    return 0;
}
