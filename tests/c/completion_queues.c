/* What a completion queue does at its limits: overrun, resize, events. */
#include "common.h"

#include <fcntl.h>

/* More completions than it has room for: the queue is lost, and says so; the device and its other queues are not. */
static void overrun(void)
{
    struct pair pair = make_pair(IBV_QPT_RC);
    struct ibv_cq *small = ibv_create_cq(pair.a.context, 2, NULL, NULL, 0);
    CHECK(small != NULL);
    CHECK(small->cqe >= 2);
    struct ibv_qp_init_attr attributes = {
        .send_cq = small,
        .recv_cq = small,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = (uint32_t)small->cqe + 8, .max_send_sge = 1},
    };
    struct ibv_qp *qp = ibv_create_qp(pair.a.pd, &attributes);
    CHECK(qp != NULL);
    struct side crowded = pair.a;
    crowded.qp = qp;
    crowded.cq = small;
    struct side target = make_side(pair.b.context, IBV_QPT_RC, NULL);
    connect_sides(&crowded, &target);
    for (int i = 0; i < small->cqe + 4; i++)
        post(&crowded, &target, (uint64_t)i, IBV_WR_RDMA_WRITE, 0, 8);
    struct ibv_async_event event = async_event(pair.a.context);
    CHECK_EQ(event.event_type, IBV_EVENT_CQ_ERR);
    CHECK(event.element.cq == small);
    /* Whatever is still to be had of it comes first. */
    struct ibv_wc wc;
    int found, got = 0;
    while ((found = ibv_poll_cq(small, 1, &wc)) > 0)
        CHECK(++got <= small->cqe);
    CHECK(found < 0);

    post(&pair.a, &pair.b, 1, IBV_WR_RDMA_WRITE, 0, 8);
    EXPECT(pair.a.cq, 1, IBV_WC_SUCCESS);
    /* What the overrun did to its queue pair may be told, too. */
    CHECK_EQ(ibv_destroy_qp(qp), 0);
    CHECK_EQ(ibv_destroy_cq(small), 0);
    drop_side(&target);
    drop_pair(&pair);
}

/* Completions that are there survive; a size that they do not fit is refused. */
static void resize(void)
{
    struct pair pair = make_pair(IBV_QPT_RC);
    for (uint64_t i = 0; i < 10; i++)
        post(&pair.a, &pair.b, i, IBV_WR_RDMA_WRITE, 0, 8);
    /* The last one's effect is there, so they all are: a second connection is not needed to know. */
    uint64_t start = now_ms();
    struct ibv_wc first;
    while (ibv_poll_cq(pair.a.cq, 1, &first) == 0)
        CHECK(now_ms() - start < PATIENCE_MS);
    CHECK_EQ(first.wr_id, 0);
    usleep(100000);
    CHECK_EQ(ibv_resize_cq(pair.a.cq, 1000), 0);
    CHECK(pair.a.cq->cqe >= 1000);
    for (uint64_t i = 1; i < 10; i++)
        EXPECT(pair.a.cq, i, IBV_WC_SUCCESS);
    CHECK_EQ(ibv_resize_cq(pair.a.cq, 16), 0);
    CHECK(pair.a.cq->cqe >= 16);
    CHECK(ibv_resize_cq(pair.a.cq, 0) != 0);
    drop_pair(&pair);
}

static void check_no_event(const struct ibv_comp_channel *channel)
{
    struct pollfd poll_fd = {.fd = channel->fd, .events = POLLIN};
    CHECK_EQ(poll(&poll_fd, 1, 50), 0);
}

static void take_event(const struct side *side)
{
    struct ibv_cq *cq;
    void *cq_context;
    wait_readable(side->channel->fd);
    CHECK_EQ(ibv_get_cq_event(side->channel, &cq, &cq_context), 0);
    CHECK(cq == side->cq && cq_context == cq->cq_context);
    ibv_ack_cq_events(cq, 1);
}

/* One event an arming; when armed for solicited ones only, others do not count, but errors do. */
static void events(void)
{
    struct pair pair = make_pair(IBV_QPT_RC);
    post(&pair.a, &pair.b, 1, IBV_WR_RDMA_WRITE, 0, 8);
    EXPECT(pair.a.cq, 1, IBV_WC_SUCCESS);
    check_no_event(pair.a.channel);

    CHECK_EQ(ibv_req_notify_cq(pair.a.cq, 0), 0);
    post(&pair.a, &pair.b, 2, IBV_WR_RDMA_WRITE, 0, 8);
    take_event(&pair.a);
    post(&pair.a, &pair.b, 3, IBV_WR_RDMA_WRITE, 0, 8);
    EXPECT(pair.a.cq, 2, IBV_WC_SUCCESS);
    EXPECT(pair.a.cq, 3, IBV_WC_SUCCESS);
    check_no_event(pair.a.channel);

    CHECK_EQ(ibv_req_notify_cq(pair.b.cq, 1), 0);
    post_receive(&pair.b, 4, 0, 8);
    post_receive(&pair.b, 5, 0, 8);
    post(&pair.a, &pair.b, 4, IBV_WR_SEND, 0, 8);
    EXPECT(pair.a.cq, 4, IBV_WC_SUCCESS);
    check_no_event(pair.b.channel);
    struct ibv_sge sge = sge_of(&pair.a, 0, 8);
    struct ibv_send_wr *bad, request = {
        .wr_id = 5,
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = IBV_WR_SEND,
        .send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED,
    };
    CHECK_EQ(ibv_post_send(pair.a.qp, &request, &bad), 0);
    take_event(&pair.b);
    EXPECT(pair.b.cq, 4, IBV_WC_SUCCESS);
    EXPECT(pair.b.cq, 5, IBV_WC_SUCCESS);

    post_receive(&pair.b, 6, 0, 8);
    CHECK_EQ(ibv_req_notify_cq(pair.b.cq, 1), 0);
    to_error(pair.b.qp);
    take_event(&pair.b);
    EXPECT(pair.b.cq, 6, IBV_WC_WR_FLUSH_ERR);
    EXPECT(pair.a.cq, 5, IBV_WC_SUCCESS);
    drop_pair(&pair);
}

/* The descriptors can be made non-blocking; then the verbs say so when nothing is there. */
static void non_blocking(void)
{
    struct side side = make_side(open_device(), IBV_QPT_RC, NULL);
    struct ibv_cq *cq;
    void *cq_context;
    CHECK_EQ(fcntl(side.channel->fd, F_SETFL, fcntl(side.channel->fd, F_GETFL) | O_NONBLOCK), 0);
    CHECK_EQ(ibv_get_cq_event(side.channel, &cq, &cq_context), -1);
    CHECK_EQ(errno, EAGAIN);
    struct ibv_async_event event;
    CHECK_EQ(fcntl(side.context->async_fd, F_SETFL, fcntl(side.context->async_fd, F_GETFL) | O_NONBLOCK), 0);
    CHECK_EQ(ibv_get_async_event(side.context, &event), -1);
    CHECK_EQ(errno, EAGAIN);
    drop_side(&side);
    CHECK_EQ(ibv_close_device(side.context), 0);
}

int main(void)
{
    overrun();
    resize();
    events();
    non_blocking();
    return 0;
}
