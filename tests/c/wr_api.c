/* The extended post API: every ibv_wr_* of a connected queue pair, batches, the ways to give data, and abort. */
#include "common.h"

#include <arpa/inet.h>

enum {
    OPERATIONS = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
                 IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                 IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW |
                 IBV_QP_EX_WITH_SEND_WITH_INV,
};

static struct pair pair;
static struct ibv_qp *plain;
static struct ibv_qp_ex *qp;
static uint64_t ids;

static struct ibv_qp *make_qp(const struct side *side, uint64_t operations, enum ibv_qp_type type)
{
    struct ibv_qp_init_attr_ex attributes = {
        .send_cq = side->cq,
        .recv_cq = side->cq,
        .qp_type = type,
        .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 4, .max_recv_sge = 4, .max_inline_data = 128},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = side->pd,
        .send_ops_flags = operations,
    };
    return ibv_create_qp_ex(side->context, &attributes);
}

/* The next request of a batch. */
static void request(void)
{
    qp->wr_id = ++ids;
    qp->wr_flags = IBV_SEND_SIGNALED;
}

static void begin(void)
{
    ibv_wr_start(qp);
    request();
}

static struct ibv_wc finish(void)
{
    CHECK_EQ(ibv_wr_complete(qp), 0);
    struct ibv_wc wc = completion(pair.a.cq);
    CHECK_EQ(wc.status, IBV_WC_SUCCESS);
    CHECK_EQ(wc.wr_id, ids);
    return wc;
}

static void set_sge(size_t offset, uint32_t length)
{
    ibv_wr_set_sge(qp, pair.a.mr->lkey, (uintptr_t)pair.a.memory + offset, length);
}

static uint64_t remote(size_t offset)
{
    return (uintptr_t)pair.b.memory + offset;
}

static void writes_and_reads(void)
{
    uint32_t rkey = pair.b.mr->rkey;
    memset(pair.a.memory, 'w', 100);
    begin();
    ibv_wr_rdma_write(qp, rkey, remote(0));
    set_sge(0, 100);
    CHECK_EQ(finish().opcode, IBV_WC_RDMA_WRITE);
    CHECK(memcmp(pair.b.memory, pair.a.memory, 100) == 0);

    begin();
    ibv_wr_rdma_read(qp, rkey, remote(0));
    struct ibv_sge pieces[2] = {sge_of(&pair.a, 1000, 60), sge_of(&pair.a, 2000, 40)};
    ibv_wr_set_sge_list(qp, 2, pieces);
    struct ibv_wc wc = finish();
    CHECK_EQ(wc.opcode, IBV_WC_RDMA_READ);
    CHECK_EQ(wc.byte_len, 100);
    CHECK(memcmp(pair.a.memory + 1000, pair.b.memory, 60) == 0);
    CHECK(memcmp(pair.a.memory + 2000, pair.b.memory + 60, 40) == 0);

    post_receive(&pair.b, 77, 0, 0);
    begin();
    ibv_wr_rdma_write_imm(qp, rkey, remote(500), htonl(0x12345678));
    set_sge(0, 8);
    CHECK_EQ(finish().opcode, IBV_WC_RDMA_WRITE);
    wc = completion(pair.b.cq);
    CHECK_EQ(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    CHECK_EQ(ntohl(wc.imm_data), 0x12345678);
    CHECK_EQ(wc.byte_len, 8);
}

static void inline_data(void)
{
    /* Memory that is not registered, and changes as soon as the call returns. */
    char text[] = "inline", more[] = " and more";
    begin();
    ibv_wr_rdma_write(qp, pair.b.mr->rkey, remote(0));
    ibv_wr_set_inline_data(qp, text, 6);
    memset(text, 0, sizeof text);
    finish();
    CHECK(memcmp(pair.b.memory, "inline", 6) == 0);

    memcpy(text, "inline", 6);
    struct ibv_data_buf pieces[2] = {{text, 6}, {more, 9}};
    begin();
    ibv_wr_rdma_write(qp, pair.b.mr->rkey, remote(0));
    ibv_wr_set_inline_data_list(qp, 2, pieces);
    finish();
    CHECK(memcmp(pair.b.memory, "inline and more", 15) == 0);
}

static void sends(void)
{
    memset(pair.a.memory, 's', 32);
    post_receive(&pair.b, 1, 4096, 32);
    begin();
    ibv_wr_send(qp);
    set_sge(0, 32);
    CHECK_EQ(finish().opcode, IBV_WC_SEND);
    struct ibv_wc wc = completion(pair.b.cq);
    CHECK_EQ(wc.byte_len, 32);
    CHECK_EQ(wc.wc_flags & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV), 0);
    CHECK(memcmp(pair.b.memory + 4096, pair.a.memory, 32) == 0);

    post_receive(&pair.b, 2, 4096, 32);
    begin();
    ibv_wr_send_imm(qp, htonl(7));
    set_sge(0, 16);
    finish();
    wc = completion(pair.b.cq);
    CHECK_EQ(wc.wc_flags & IBV_WC_WITH_IMM, IBV_WC_WITH_IMM);
    CHECK_EQ(ntohl(wc.imm_data), 7);
}

static void atomics(void)
{
    uint64_t *theirs = (uint64_t *)pair.b.memory, *ours = (uint64_t *)pair.a.memory;
    *theirs = 100;
    begin();
    ibv_wr_atomic_fetch_add(qp, pair.b.mr->rkey, remote(0), 11);
    set_sge(0, 8);
    CHECK_EQ(finish().opcode, IBV_WC_FETCH_ADD);
    CHECK_EQ(*ours, 100);
    CHECK_EQ(*theirs, 111);

    for (int hit = 1; hit >= 0; hit--) {
        uint64_t before = *theirs;
        begin();
        ibv_wr_atomic_cmp_swp(qp, pair.b.mr->rkey, remote(0), hit ? before : before + 1, 5 + before);
        set_sge(0, 8);
        CHECK_EQ(finish().opcode, IBV_WC_COMP_SWAP);
        CHECK_EQ(*ours, before);
        CHECK_EQ(*theirs, hit ? 5 + before : before);
    }
}

/* A window of type 2 is bound, used, and taken back: by its owner, or by whoever it was lent to. */
static void windows(void)
{
    struct ibv_mr *region = ibv_reg_mr(pair.a.pd, pair.a.memory, MEMORY, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
    CHECK(region != NULL);
    for (int by_peer = 0; by_peer < 2; by_peer++) {
        struct ibv_mw *window = ibv_alloc_mw(pair.a.pd, IBV_MW_TYPE_2);
        CHECK(window != NULL);
        uint32_t rkey = ibv_inc_rkey(window->rkey);
        struct ibv_mw_bind_info bind = {region, (uintptr_t)pair.a.memory + 8192, 64, IBV_ACCESS_REMOTE_WRITE};
        begin();
        ibv_wr_bind_mw(qp, window, rkey, &bind);
        CHECK_EQ(finish().opcode, IBV_WC_BIND_MW);

        struct side lent = pair.a;
        struct ibv_mr lent_region = *pair.a.mr;
        lent_region.rkey = rkey;
        lent.mr = &lent_region;
        memset(pair.b.memory + 8192, 'm', 64);
        post(&pair.b, &lent, 9, IBV_WR_RDMA_WRITE, 8192, 64);
        EXPECT(pair.b.cq, 9, IBV_WC_SUCCESS);
        CHECK(memcmp(pair.a.memory + 8192, pair.b.memory + 8192, 64) == 0);

        if (by_peer) {
            post_receive(&pair.a, 55, 0, 8);
            struct ibv_sge sge = sge_of(&pair.b, 0, 8);
            struct ibv_send_wr *bad, give_back = {
                .wr_id = 10,
                .sg_list = &sge,
                .num_sge = 1,
                .opcode = IBV_WR_SEND_WITH_INV,
                .send_flags = IBV_SEND_SIGNALED,
                .invalidate_rkey = rkey,
            };
            CHECK_EQ(ibv_post_send(pair.b.qp, &give_back, &bad), 0);
            EXPECT(pair.b.cq, 10, IBV_WC_SUCCESS);
            struct ibv_wc wc = completion(pair.a.cq);
            CHECK_EQ(wc.wr_id, 55);
            CHECK_EQ(wc.status, IBV_WC_SUCCESS);
            CHECK_EQ(wc.wc_flags & IBV_WC_WITH_INV, IBV_WC_WITH_INV);
            CHECK_EQ(wc.invalidated_rkey, rkey);
        } else {
            begin();
            ibv_wr_local_inv(qp, rkey);
            CHECK_EQ(finish().opcode, IBV_WC_LOCAL_INV);
        }
        if (by_peer) {
            /* The last of them: it ends the connection. */
            post(&pair.b, &lent, 11, IBV_WR_RDMA_WRITE, 8192, 64);
            EXPECT(pair.b.cq, 11, IBV_WC_REM_ACCESS_ERR);
        }
        CHECK_EQ(ibv_dealloc_mw(window), 0);
    }
    CHECK_EQ(ibv_dereg_mr(region), 0);
}

/* Between start and complete nothing leaves; what was aborted never does; several leave as one. */
static void batches(void)
{
    memset(pair.b.memory, 0, 64);
    memset(pair.a.memory, 'b', 64);
    begin();
    ibv_wr_rdma_write(qp, pair.b.mr->rkey, remote(0));
    set_sge(0, 64);
    ibv_wr_abort(qp);
    check_silent(pair.a.cq);
    CHECK_EQ(pair.b.memory[0], 0);

    uint64_t first = ids + 1;
    ibv_wr_start(qp);
    for (int i = 0; i < 8; i++) {
        request();
        ibv_wr_rdma_write(qp, pair.b.mr->rkey, remote((size_t)i * 8));
        set_sge((size_t)i * 8, 8);
    }
    CHECK_EQ(pair.b.memory[0], 0);
    CHECK_EQ(ibv_wr_complete(qp), 0);
    for (uint64_t i = first; i < first + 8; i++)
        EXPECT(pair.a.cq, i, IBV_WC_SUCCESS);
    CHECK(memcmp(pair.b.memory, pair.a.memory, 64) == 0);

    /* More than the queue holds: the whole batch is refused, none of it leaves. */
    memset(pair.b.memory, 0, 64);
    ibv_wr_start(qp);
    for (int i = 0; i < 1000; i++) {
        request();
        ibv_wr_rdma_write(qp, pair.b.mr->rkey, remote(0));
        set_sge(0, 8);
    }
    CHECK_EQ(ibv_wr_complete(qp), ENOMEM);
    check_silent(pair.a.cq);
    CHECK_EQ(pair.b.memory[0], 0);

    /* So is one with more inline data than was agreed. */
    char much[4096] = {0};
    begin();
    ibv_wr_rdma_write(qp, pair.b.mr->rkey, remote(0));
    ibv_wr_set_inline_data(qp, much, sizeof much);
    CHECK(ibv_wr_complete(qp) != 0);
    check_silent(pair.a.cq);

    /* The queue pair is as good as before. */
    begin();
    ibv_wr_rdma_write(qp, pair.b.mr->rkey, remote(0));
    set_sge(0, 64);
    finish();
}

/* Operations that a service does not have. */
static void refused(void)
{
    errno = 0;
    CHECK(make_qp(&pair.a, IBV_QP_EX_WITH_RDMA_READ, IBV_QPT_UC) == NULL);
    CHECK(errno == EOPNOTSUPP || errno == EINVAL);
    errno = 0;
    CHECK(make_qp(&pair.a, IBV_QP_EX_WITH_RDMA_WRITE, IBV_QPT_UD) == NULL);
    CHECK(errno == EOPNOTSUPP || errno == EINVAL);
    errno = 0;
    CHECK(make_qp(&pair.a, IBV_QP_EX_WITH_TSO, IBV_QPT_RC) == NULL);
    CHECK(errno == EOPNOTSUPP || errno == EINVAL);
    errno = 0;
    CHECK(make_qp(&pair.a, 1ULL << 50, IBV_QPT_RC) == NULL);
    CHECK(errno == EOPNOTSUPP || errno == EINVAL);
    CHECK(ibv_qp_to_qp_ex(plain) == NULL);
}

int main(void)
{
    pair.a = make_side(open_device(), IBV_QPT_RC, NULL);
    pair.b = make_side(open_device(), IBV_QPT_RC, NULL);
    plain = pair.a.qp;
    CHECK((pair.a.qp = make_qp(&pair.a, OPERATIONS, IBV_QPT_RC)) != NULL);
    CHECK((qp = ibv_qp_to_qp_ex(pair.a.qp)) != NULL);
    connect_sides(&pair.a, &pair.b);
    refused();
    writes_and_reads();
    inline_data();
    sends();
    atomics();
    batches();
    windows();
    CHECK_EQ(ibv_destroy_qp(plain), 0);
    drop_pair(&pair);
    return 0;
}
