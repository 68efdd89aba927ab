/* Asynchronous events: each, where it belongs, once. (Those of completion queues and of shared receive queues stand
 * with these.) */
#include "common.h"

static void expect_event(const struct side *side, enum ibv_event_type type)
{
    struct ibv_async_event event = async_event(side->context);
    CHECK_EQ(event.event_type, type);
    CHECK(event.element.qp == side->qp);
    struct pollfd poll_fd = {.fd = side->context->async_fd, .events = POLLIN};
    CHECK_EQ(poll(&poll_fd, 1, 20), 0);
}

/* The first message reaches a queue pair that is ready to receive but not to send. */
static void communication_established(void)
{
    struct side a = make_side(open_device(), IBV_QPT_RC, NULL), b = make_side(open_device(), IBV_QPT_RC, NULL);
    struct connection to_a = usual_connection(&a), to_b = usual_connection(&b);
    connect_with(a.qp, &to_b);
    to_init(b.qp, ALL_ACCESS);
    to_rtr(b.qp, &to_a);
    post(&a, &b, 1, IBV_WR_RDMA_WRITE, 0, 8);
    EXPECT(a.cq, 1, IBV_WC_SUCCESS);
    expect_event(&b, IBV_EVENT_COMM_EST);
    to_rts(b.qp, &to_a);
    post(&b, &a, 2, IBV_WR_RDMA_WRITE, 0, 8);
    EXPECT(b.cq, 2, IBV_WC_SUCCESS);
    drop_side(&a);
    drop_side(&b);
    CHECK_EQ(ibv_close_device(a.context), 0);
    CHECK_EQ(ibv_close_device(b.context), 0);
}

/* A send queue that was told to drain says when it has; what is posted meanwhile waits. */
static void send_queue_drained(void)
{
    struct pair pair = make_pair(IBV_QPT_RC);
    post(&pair.a, &pair.b, 1, IBV_WR_RDMA_WRITE, 0, MEMORY);
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
    CHECK_EQ(ibv_modify_qp(pair.a.qp, &attributes, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
    expect_event(&pair.a, IBV_EVENT_SQ_DRAINED);
    EXPECT(pair.a.cq, 1, IBV_WC_SUCCESS);
    CHECK_EQ(state_of(pair.a.qp), IBV_QPS_SQD);
    post(&pair.a, &pair.b, 2, IBV_WR_RDMA_WRITE, 0, 8);
    check_silent(pair.a.cq);
    attributes.qp_state = IBV_QPS_RTS;
    CHECK_EQ(ibv_modify_qp(pair.a.qp, &attributes, IBV_QP_STATE), 0);
    EXPECT(pair.a.cq, 2, IBV_WC_SUCCESS);
    drop_pair(&pair);
}

/* A receive whose buffer is not registered: the sender did nothing wrong. */
static void local_failure(void)
{
    struct pair pair = make_pair(IBV_QPT_RC);
    struct ibv_sge sge = sge_of(&pair.b, 0, 8);
    sge.lkey = ~sge.lkey;
    struct ibv_recv_wr *bad, receive = {.sg_list = &sge, .num_sge = 1};
    CHECK_EQ(ibv_post_recv(pair.b.qp, &receive, &bad), 0);
    post(&pair.a, &pair.b, 1, IBV_WR_SEND, 0, 8);
    EXPECT(pair.a.cq, 1, IBV_WC_REM_OP_ERR);
    expect_event(&pair.b, IBV_EVENT_QP_FATAL);
    drop_pair(&pair);
}

static void access_refused(void)
{
    struct pair pair = make_pair(IBV_QPT_RC);
    struct ibv_mr *read_only = ibv_reg_mr(pair.b.pd, pair.b.memory, 64, IBV_ACCESS_REMOTE_READ);
    CHECK(read_only != NULL);
    struct side target = pair.b;
    target.mr = read_only;
    post(&pair.a, &target, 1, IBV_WR_RDMA_READ, 0, 8);
    EXPECT(pair.a.cq, 1, IBV_WC_SUCCESS);
    post(&pair.a, &target, 2, IBV_WR_RDMA_WRITE, 0, 8);
    EXPECT(pair.a.cq, 2, IBV_WC_REM_ACCESS_ERR);
    expect_event(&pair.b, IBV_EVENT_QP_ACCESS_ERR);
    CHECK_EQ(ibv_dereg_mr(read_only), 0);
    drop_pair(&pair);
}

/* An operation that the connection does not allow. */
static void invalid_request(void)
{
    struct side a = make_side(open_device(), IBV_QPT_RC, NULL), b = make_side(open_device(), IBV_QPT_RC, NULL);
    struct connection to_a = usual_connection(&a), to_b = usual_connection(&b);
    to_a.access = IBV_ACCESS_REMOTE_WRITE;
    connect_with(a.qp, &to_b);
    connect_with(b.qp, &to_a);
    post(&a, &b, 1, IBV_WR_RDMA_READ, 0, 8);
    EXPECT(a.cq, 1, IBV_WC_REM_INV_REQ_ERR);
    expect_event(&b, IBV_EVENT_QP_REQ_ERR);
    drop_side(&a);
    drop_side(&b);
    CHECK_EQ(ibv_close_device(a.context), 0);
    CHECK_EQ(ibv_close_device(b.context), 0);
}

int main(void)
{
    communication_established();
    send_queue_drained();
    local_failure();
    access_refused();
    invalid_request();
    return 0;
}
