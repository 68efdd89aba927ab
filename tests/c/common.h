/*
 * What the programs in this folder stand on: a check that says where it failed, and pairs of queue pairs of one
 * process, connected to each other through the device's own address.
 */
#ifndef UROCE_TESTS_COMMON_H
#define UROCE_TESTS_COMMON_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* How long a program waits before it calls something lost: a slow machine, perhaps under valgrind. */
#define PATIENCE_MS 60000

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s, errno %d (%s)\n", __FILE__, __LINE__, #condition, errno, strerror(errno)); \
            exit(1); \
        } \
    } while (0)

/* As CHECK(a == b) for numbers, but shows both. */
#define CHECK_EQ(found, expected) \
    do { \
        long long found_ = (long long)(found), expected_ = (long long)(expected); \
        if (found_ != expected_) { \
            fprintf(stderr, "%s:%d: %s is %lld and not %s, which is %lld\n", __FILE__, __LINE__, #found, found_, \
                    #expected, expected_); \
            exit(1); \
        } \
    } while (0)

#define UNUSED __attribute__((unused))

#define ALL_ACCESS \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* The first device there is. */
UNUSED static struct ibv_context *open_device(void)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list != NULL);
    CHECK_EQ(count, 1);
    struct ibv_context *context = ibv_open_device(list[0]);
    CHECK(context != NULL);
    ibv_free_device_list(list);
    return context;
}

#define MEMORY (1 << 16)

/* One end of a connection, with memory that the other may use. */
struct side {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    unsigned char *memory;
};

UNUSED static struct side make_side(struct ibv_context *context, enum ibv_qp_type type, struct ibv_srq *srq)
{
    struct side side = {.context = context};
    CHECK((side.pd = srq ? srq->pd : ibv_alloc_pd(context)) != NULL);
    CHECK((side.channel = ibv_create_comp_channel(context)) != NULL);
    CHECK((side.cq = ibv_create_cq(context, 256, NULL, side.channel, 0)) != NULL);
    struct ibv_qp_init_attr attributes = {
        .send_cq = side.cq,
        .recv_cq = side.cq,
        .srq = srq,
        .qp_type = type,
        .cap = {.max_send_wr = 64, .max_recv_wr = srq ? 0 : 64, .max_send_sge = 4, .max_recv_sge = 4, .max_inline_data = 64},
    };
    CHECK((side.qp = ibv_create_qp(side.pd, &attributes)) != NULL);
    CHECK((side.memory = calloc(1, MEMORY)) != NULL);
    CHECK((side.mr = ibv_reg_mr(side.pd, side.memory, MEMORY, ALL_ACCESS)) != NULL);
    return side;
}

/* Destroys all of it but the context, and the protection domain of a shared receive queue. */
UNUSED static void drop_side(struct side *side)
{
    struct ibv_pd *pd = side->qp->srq ? NULL : side->pd;
    CHECK_EQ(ibv_destroy_qp(side->qp), 0);
    CHECK_EQ(ibv_destroy_cq(side->cq), 0);
    CHECK_EQ(ibv_destroy_comp_channel(side->channel), 0);
    CHECK_EQ(ibv_dereg_mr(side->mr), 0);
    if (pd)
        CHECK_EQ(ibv_dealloc_pd(pd), 0);
    free(side->memory);
}

/* What a connection is made with; the rest follows from the two ends. */
struct connection {
    union ibv_gid gid;
    uint32_t qpn;
    enum ibv_mtu mtu;
    unsigned access, retry_count, rnr_retry, timeout;
};

UNUSED static struct connection usual_connection(const struct side *to)
{
    struct connection connection = {
        .qpn = to->qp->qp_num,
        .mtu = IBV_MTU_1024,
        .access = ALL_ACCESS,
        .retry_count = 7,
        .rnr_retry = 7,
        /* Half a second: a busy machine leaves a thread waiting for longer than the usual 67 ms. */
        .timeout = 17,
    };
    CHECK_EQ(ibv_query_gid(to->context, 1, 0, &connection.gid), 0);
    return connection;
}

UNUSED static void to_init(struct ibv_qp *qp, unsigned access)
{
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access};
    CHECK_EQ(ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
}

UNUSED static void to_rtr(struct ibv_qp *qp, const struct connection *connection)
{
    struct ibv_qp_attr attributes = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = connection->mtu,
        .dest_qp_num = connection->qpn,
        .rq_psn = 0xfffff0,
        .max_dest_rd_atomic = 4,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1, .grh = {.dgid = connection->gid, .hop_limit = 64}, .port_num = 1},
    };
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (qp->qp_type != IBV_QPT_UC)
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    CHECK_EQ(ibv_modify_qp(qp, &attributes, mask), 0);
}

UNUSED static void to_rts(struct ibv_qp *qp, const struct connection *connection)
{
    struct ibv_qp_attr attributes = {
        .qp_state = IBV_QPS_RTS,
        .timeout = connection->timeout,
        .retry_cnt = connection->retry_count,
        .rnr_retry = connection->rnr_retry,
        .sq_psn = 0xfffff0,
        .max_rd_atomic = 4,
    };
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (qp->qp_type != IBV_QPT_UC)
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    CHECK_EQ(ibv_modify_qp(qp, &attributes, mask), 0);
}

UNUSED static void connect_with(struct ibv_qp *qp, const struct connection *connection)
{
    to_init(qp, connection->access);
    to_rtr(qp, connection);
    to_rts(qp, connection);
}

UNUSED static void connect_sides(const struct side *a, const struct side *b)
{
    struct connection to_b = usual_connection(b), to_a = usual_connection(a);
    connect_with(a->qp, &to_b);
    connect_with(b->qp, &to_a);
}

/* Two connected ends in contexts of their own. */
struct pair {
    struct side a, b;
};

UNUSED static struct pair make_pair(enum ibv_qp_type type)
{
    struct pair pair = {.a = make_side(open_device(), type, NULL), .b = make_side(open_device(), type, NULL)};
    connect_sides(&pair.a, &pair.b);
    return pair;
}

UNUSED static void drop_pair(struct pair *pair)
{
    drop_side(&pair->a);
    drop_side(&pair->b);
    CHECK_EQ(ibv_close_device(pair->a.context), 0);
    CHECK_EQ(ibv_close_device(pair->b.context), 0);
}

UNUSED static struct ibv_sge sge_of(const struct side *side, size_t offset, uint32_t length)
{
    struct ibv_sge sge = {(uintptr_t)side->memory + offset, length, side->mr->lkey};
    return sge;
}

/* Posts one signalled request to a peer's memory; `offset` counts on both sides. */
UNUSED static void post(const struct side *from, const struct side *to, uint64_t wr_id, enum ibv_wr_opcode opcode,
                        size_t offset, uint32_t length)
{
    struct ibv_sge sge = sge_of(from, offset, length);
    struct ibv_send_wr *bad, request = {
        .wr_id = wr_id,
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = opcode,
        .send_flags = IBV_SEND_SIGNALED,
    };
    if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        request.wr.atomic.remote_addr = (uintptr_t)to->memory + offset;
        request.wr.atomic.rkey = to->mr->rkey;
    } else {
        request.wr.rdma.remote_addr = (uintptr_t)to->memory + offset;
        request.wr.rdma.rkey = to->mr->rkey;
    }
    CHECK_EQ(ibv_post_send(from->qp, &request, &bad), 0);
}

UNUSED static void post_receive(const struct side *side, uint64_t wr_id, size_t offset, uint32_t length)
{
    struct ibv_sge sge = sge_of(side, offset, length);
    struct ibv_recv_wr *bad, request = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1};
    CHECK_EQ(ibv_post_recv(side->qp, &request, &bad), 0);
}

/* The next completion, by polling. */
UNUSED static struct ibv_wc completion(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    uint64_t start = now_ms();
    int found;
    while ((found = ibv_poll_cq(cq, 1, &wc)) == 0)
        CHECK(now_ms() - start < PATIENCE_MS);
    CHECK_EQ(found, 1);
    return wc;
}

/* The next completion, which must be of this request and end like this. */
#define EXPECT(cq, id, how) \
    do { \
        struct ibv_wc wc_ = completion(cq); \
        CHECK_EQ(wc_.wr_id, id); \
        CHECK_EQ(wc_.status, how); \
    } while (0)

/* No completion is there, and none comes while the device is given the time to make one. */
UNUSED static void check_silent(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    for (int turn = 0; turn < 20; turn++) {
        CHECK_EQ(ibv_poll_cq(cq, 1, &wc), 0);
        usleep(1000);
    }
}

UNUSED static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
    struct ibv_qp_attr attributes;
    struct ibv_qp_init_attr init;
    CHECK_EQ(ibv_query_qp(qp, &attributes, IBV_QP_STATE, &init), 0);
    return attributes.qp_state;
}

UNUSED static void to_error(struct ibv_qp *qp)
{
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_ERR};
    CHECK_EQ(ibv_modify_qp(qp, &attributes, IBV_QP_STATE), 0);
}

/* Waits until a descriptor can be read. */
UNUSED static void wait_readable(int fd)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    CHECK_EQ(poll(&poll_fd, 1, PATIENCE_MS), 1);
    CHECK(poll_fd.revents & POLLIN);
}

/* The next asynchronous event of a context, acknowledged. */
UNUSED static struct ibv_async_event async_event(struct ibv_context *context)
{
    struct ibv_async_event event;
    wait_readable(context->async_fd);
    CHECK_EQ(ibv_get_async_event(context, &event), 0);
    ibv_ack_async_event(&event);
    return event;
}

#endif
