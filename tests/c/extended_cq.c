/* Completions read through ibv_cq_ex: every read_*, batches, errors, and times that run forward. */
#include "common.h"

#include <arpa/inet.h>

enum {
    FLAGS = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
};

static struct ibv_poll_cq_attr polling;

static void wait_for_one(struct ibv_cq_ex *cq)
{
    uint64_t start = now_ms();
    int error;
    while ((error = ibv_start_poll(cq, &polling)) == ENOENT)
        CHECK(now_ms() - start < PATIENCE_MS);
    CHECK_EQ(error, 0);
}

static struct ibv_cq_ex *make_cq(struct ibv_context *context, uint64_t flags, uint32_t create_flags)
{
    struct ibv_cq_init_attr_ex attributes = {
        .cqe = 64,
        .wc_flags = flags,
        .comp_mask = create_flags ? IBV_CQ_INIT_ATTR_MASK_FLAGS : 0,
        .flags = create_flags,
    };
    return ibv_create_cq_ex(context, &attributes);
}

/* A pair whose second end completes into an extended queue. */
struct extended {
    struct pair pair;
    struct ibv_cq_ex *cq;
    struct ibv_qp *plain_qp;
};

static struct extended make_extended(uint64_t flags, uint32_t create_flags)
{
    struct extended all = {
        .pair.a = make_side(open_device(), IBV_QPT_RC, NULL),
        .pair.b = make_side(open_device(), IBV_QPT_RC, NULL),
    };
    CHECK((all.cq = make_cq(all.pair.b.context, flags, create_flags)) != NULL);
    struct ibv_qp_init_attr attributes = {
        .send_cq = ibv_cq_ex_to_cq(all.cq),
        .recv_cq = ibv_cq_ex_to_cq(all.cq),
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 4, .max_recv_sge = 4},
    };
    all.plain_qp = all.pair.b.qp;
    CHECK((all.pair.b.qp = ibv_create_qp(all.pair.b.pd, &attributes)) != NULL);
    connect_sides(&all.pair.a, &all.pair.b);
    return all;
}

static void drop_extended(struct extended *all)
{
    CHECK_EQ(ibv_destroy_qp(all->pair.b.qp), 0);
    CHECK_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(all->cq)), 0);
    all->pair.b.qp = all->plain_qp;
    drop_pair(&all->pair);
}

static void send_with_immediate(const struct side *from, uint64_t wr_id, uint32_t immediate)
{
    struct ibv_sge sge = sge_of(from, 0, 48);
    struct ibv_send_wr *bad, request = {
        .wr_id = wr_id,
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = IBV_WR_SEND_WITH_IMM,
        .send_flags = IBV_SEND_SIGNALED,
        .imm_data = htonl(immediate),
    };
    CHECK_EQ(ibv_post_send(from->qp, &request, &bad), 0);
}

static void every_field(void)
{
    struct extended all = make_extended(FLAGS, 0);
    struct ibv_cq_ex *cq = all.cq;
    struct pair pair = all.pair;
    enum { COUNT = 5 };
    for (uint64_t i = 0; i < COUNT; i++)
        post_receive(&pair.b, 100 + i, 0, 64);
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    uint64_t before = (uint64_t)wall.tv_sec * 1000000000 + (uint64_t)wall.tv_nsec;
    for (uint64_t i = 0; i < COUNT; i++) {
        send_with_immediate(&pair.a, i, 0xabcd0000 + (uint32_t)i);
        EXPECT(pair.a.cq, i, IBV_WC_SUCCESS);
    }
    uint64_t last = 0, last_wall = before;
    wait_for_one(cq);
    for (uint64_t i = 0; i < COUNT; i++) {
        CHECK_EQ(cq->status, IBV_WC_SUCCESS);
        CHECK_EQ(cq->wr_id, 100 + i);
        CHECK_EQ(ibv_wc_read_opcode(cq), IBV_WC_RECV);
        CHECK_EQ(ibv_wc_read_vendor_err(cq), 0);
        CHECK_EQ(ibv_wc_read_byte_len(cq), 48);
        CHECK_EQ(ntohl(ibv_wc_read_imm_data(cq)), 0xabcd0000 + i);
        CHECK_EQ(ibv_wc_read_qp_num(cq), pair.b.qp->qp_num);
        CHECK_EQ(ibv_wc_read_wc_flags(cq) & IBV_WC_WITH_IMM, IBV_WC_WITH_IMM);
        CHECK_EQ(ibv_wc_read_slid(cq), 0);
        CHECK_EQ(ibv_wc_read_sl(cq), 0);
        CHECK_EQ(ibv_wc_read_dlid_path_bits(cq), 0);
        ibv_wc_read_src_qp(cq);
        uint64_t time = ibv_wc_read_completion_ts(cq), wall_time = ibv_wc_read_completion_wallclock_ns(cq);
        CHECK(time >= last && wall_time >= last_wall);
        last = time;
        last_wall = wall_time;
        if (i < COUNT - 1 && ibv_next_poll(cq) == ENOENT) {
            ibv_end_poll(cq);
            wait_for_one(cq);
        }
    }
    CHECK_EQ(ibv_next_poll(cq), ENOENT);
    ibv_end_poll(cq);
    clock_gettime(CLOCK_REALTIME, &wall);
    CHECK(last_wall <= (uint64_t)wall.tv_sec * 1000000000 + (uint64_t)wall.tv_nsec);
    CHECK_EQ(ibv_start_poll(cq, &polling), ENOENT);

    /* The device's clock of the timestamps is one that can be asked. */
    struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
    CHECK_EQ(ibv_query_rt_values_ex(pair.b.context, &values), 0);
    CHECK_EQ(values.comp_mask, IBV_VALUES_MASK_RAW_CLOCK);
    struct ibv_device_attr_ex device;
    CHECK_EQ(ibv_query_device_ex(pair.b.context, NULL, &device), 0);
    CHECK(device.completion_timestamp_mask != 0 && device.hca_core_clock != 0);
    CHECK((uint64_t)values.raw_clock.tv_sec * 1000000000 + (uint64_t)values.raw_clock.tv_nsec >= last);
    drop_extended(&all);
}

static void failures(void)
{
    struct extended all = make_extended(FLAGS, IBV_CREATE_CQ_ATTR_SINGLE_THREADED);
    struct ibv_cq_ex *cq = all.cq;
    struct pair pair = all.pair;
    post_receive(&pair.b, 5, 0, 8);
    post_receive(&pair.b, 6, 0, 8);
    post(&pair.a, &pair.b, 1, IBV_WR_SEND, 0, 64);
    wait_for_one(cq);
    CHECK_EQ(cq->status, IBV_WC_LOC_LEN_ERR);
    CHECK_EQ(cq->wr_id, 5);
    ibv_end_poll(cq);
    wait_for_one(cq);
    CHECK_EQ(cq->status, IBV_WC_WR_FLUSH_ERR);
    CHECK_EQ(cq->wr_id, 6);
    ibv_end_poll(cq);
    drop_extended(&all);
}

/* The plain verbs go on working on an extended queue. */
static void plain_polling(void)
{
    struct extended all = make_extended(0, 0);
    struct ibv_cq_ex *cq = all.cq;
    struct pair pair = all.pair;
    post(&pair.b, &pair.a, 1, IBV_WR_RDMA_READ, 0, 8);
    EXPECT(ibv_cq_ex_to_cq(cq), 1, IBV_WC_SUCCESS);
    CHECK_EQ(ibv_resize_cq(ibv_cq_ex_to_cq(cq), 200), 0);
    drop_extended(&all);
}

/* What no completion of this device has cannot be asked for. */
static void refused(void)
{
    struct ibv_context *context = open_device();
    errno = 0;
    CHECK(make_cq(context, 1ULL << 40, 0) == NULL);
    CHECK(errno == EOPNOTSUPP || errno == EINVAL);
    errno = 0;
    CHECK(make_cq(context, IBV_WC_EX_WITH_TM_INFO, 0) == NULL);
    CHECK(errno == EOPNOTSUPP || errno == EINVAL);
    CHECK_EQ(ibv_close_device(context), 0);
}

int main(void)
{
    every_field();
    failures();
    plain_polling();
    refused();
    return 0;
}
