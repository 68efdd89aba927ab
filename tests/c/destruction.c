/* Objects that are destroyed while work is outstanding, and in the wrong order. */
#include "common.h"

#include <pthread.h>

/* The queue pair goes, its completions go with it, and the peer hears no more. */
static void with_work_outstanding(void)
{
    for (int round = 0; round < 20; round++) {
        struct pair pair = make_pair(IBV_QPT_RC);
        for (uint64_t i = 0; i < 16; i++)
            post_receive(&pair.b, 100 + i, 0, MEMORY);
        for (uint64_t i = 0; i < 16; i++)
            post(&pair.a, &pair.b, i, i % 2 ? IBV_WR_SEND : IBV_WR_RDMA_READ, 0, MEMORY);
        /* More or fewer packets are under way each time. */
        for (int i = 0; i < round; i++) {
            struct ibv_wc wc;
            CHECK(ibv_poll_cq(pair.a.cq, 1, &wc) >= 0);
        }
        CHECK_EQ(ibv_destroy_qp(round % 2 ? pair.a.qp : pair.b.qp), 0);
        /* The man page of ibv_destroy_qp leaves open what becomes of completions that were not polled. None may
         * come of work that had not finished. */
        struct side *left = round % 2 ? &pair.b : &pair.a, *gone = round % 2 ? &pair.a : &pair.b;
        struct ibv_wc wc;
        while (ibv_poll_cq(gone->cq, 1, &wc) > 0)
            CHECK(wc.status == IBV_WC_SUCCESS || wc.status == IBV_WC_WR_FLUSH_ERR);
        CHECK_EQ(ibv_destroy_cq(gone->cq), 0);
        CHECK_EQ(ibv_destroy_comp_channel(gone->channel), 0);
        CHECK_EQ(ibv_dereg_mr(gone->mr), 0);
        CHECK_EQ(ibv_dealloc_pd(gone->pd), 0);
        free(gone->memory);
        drop_side(left);
        CHECK_EQ(ibv_close_device(pair.a.context), 0);
        CHECK_EQ(ibv_close_device(pair.b.context), 0);
    }
}

/* Whatever others are made of is busy until those are gone. */
static void in_the_wrong_order(void)
{
    struct side side = make_side(open_device(), IBV_QPT_RC, NULL);
    CHECK_EQ(ibv_destroy_cq(side.cq), EBUSY);
    CHECK_EQ(ibv_destroy_comp_channel(side.channel), EBUSY);
    CHECK_EQ(ibv_dealloc_pd(side.pd), EBUSY);
    struct ibv_srq_init_attr attributes = {.attr = {.max_wr = 16, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(side.pd, &attributes);
    CHECK(srq != NULL);
    struct side sharing = make_side(side.context, IBV_QPT_RC, srq);
    CHECK_EQ(ibv_destroy_srq(srq), EBUSY);
    drop_side(&sharing);
    CHECK_EQ(ibv_destroy_srq(srq), 0);
    drop_side(&side);
    CHECK_EQ(ibv_close_device(side.context), 0);
}

/* A program may close a device and let what it made there go with it, as at the end of a process. */
static void never(void)
{
    /* It stays in reach, so that valgrind does not call it lost. */
    static struct pair pair;
    pair = make_pair(IBV_QPT_RC);
    post_receive(&pair.b, 1, 0, 8);
    post(&pair.a, &pair.b, 1, IBV_WR_SEND, 0, 8);
    EXPECT(pair.a.cq, 1, IBV_WC_SUCCESS);
}

static void *acknowledge_later(void *argument)
{
    usleep(50000);
    ibv_ack_cq_events(argument, 1);
    return NULL;
}

static void *acknowledge_async_later(void *argument)
{
    usleep(50000);
    ibv_ack_async_event(argument);
    return NULL;
}

/* Destroying waits until every event was acknowledged: the man pages of ibv_get_cq_event and ibv_get_async_event. */
static void waits_for_acknowledgements(void)
{
    struct pair pair = make_pair(IBV_QPT_RC);
    CHECK_EQ(ibv_req_notify_cq(pair.a.cq, 0), 0);
    post(&pair.a, &pair.b, 1, IBV_WR_RDMA_WRITE, 0, 8);
    wait_readable(pair.a.channel->fd);
    struct ibv_cq *cq;
    void *cq_context;
    CHECK_EQ(ibv_get_cq_event(pair.a.channel, &cq, &cq_context), 0);
    CHECK(cq == pair.a.cq);
    EXPECT(cq, 1, IBV_WC_SUCCESS);

    struct ibv_sge sge = sge_of(&pair.a, 0, 8);
    struct ibv_send_wr *bad, request = {
        .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = {0, ~pair.b.mr->rkey}};
    CHECK_EQ(ibv_post_send(pair.a.qp, &request, &bad), 0);
    struct ibv_async_event event;
    wait_readable(pair.b.context->async_fd);
    CHECK_EQ(ibv_get_async_event(pair.b.context, &event), 0);
    CHECK_EQ(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
    CHECK(event.element.qp == pair.b.qp);

    pthread_t threads[2];
    uint64_t start = now_ms();
    CHECK_EQ(pthread_create(&threads[0], NULL, acknowledge_later, cq), 0);
    CHECK_EQ(pthread_create(&threads[1], NULL, acknowledge_async_later, &event), 0);
    drop_side(&pair.a);
    drop_side(&pair.b);
    CHECK(now_ms() - start >= 50);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    CHECK_EQ(ibv_close_device(pair.a.context), 0);
    CHECK_EQ(ibv_close_device(pair.b.context), 0);
}

int main(void)
{
    with_work_outstanding();
    in_the_wrong_order();
    waits_for_acknowledgements();
    never();
    return 0;
}
