/* What a verb answers when it is asked for something that makes no sense: the errno that its man page names. */
#include "common.h"

static struct side side;

/* A verb that returns a pointer: NULL, and errno says why. */
#define REFUSED(call, why) \
    do { \
        errno = 0; \
        CHECK((call) == NULL); \
        CHECK_EQ(errno, why); \
    } while (0)

static void queries(void)
{
    struct ibv_port_attr port;
    CHECK_EQ(ibv_query_port(side.context, 1, &port), 0);
    CHECK_EQ(ibv_query_port(side.context, 0, &port), EINVAL);
    CHECK_EQ(ibv_query_port(side.context, 2, &port), EINVAL);
    union ibv_gid gid;
    union ibv_gid first;
    CHECK_EQ(ibv_query_gid(side.context, 1, 0, &first), 0);
    CHECK_EQ(ibv_query_gid(side.context, 1, port.gid_tbl_len, &gid), -1);
    CHECK_EQ(ibv_query_gid(side.context, 2, 0, &gid), -1);
    CHECK_EQ(ibv_query_gid(side.context, 1, -1, &gid), -1);
    __be16 pkey;
    CHECK_EQ(ibv_query_pkey(side.context, 1, 0, &pkey), 0);
    CHECK_EQ(pkey, 0xffff);
    CHECK_EQ(ibv_query_pkey(side.context, 1, port.pkey_tbl_len, &pkey), -1);
    CHECK_EQ(ibv_query_pkey(side.context, 1, -1, &pkey), -1);
    CHECK_EQ(ibv_get_pkey_index(side.context, 1, 0xffff), 0);
    CHECK_EQ(ibv_get_pkey_index(side.context, 1, 0x1234), -1);
    struct ibv_gid_entry entry;
    CHECK_EQ(ibv_query_gid_ex(side.context, 1, 0, &entry, 0), 0);
    CHECK_EQ(entry.gid_type, IBV_GID_TYPE_ROCE_V2);
    CHECK(memcmp(&entry.gid, &first, sizeof first) == 0);
    CHECK_EQ(ibv_query_gid_ex(side.context, 1, (uint32_t)port.gid_tbl_len, &entry, 0), EINVAL);
    CHECK_EQ(ibv_query_gid_ex(side.context, 1, 0, &entry, 1), EOPNOTSUPP);
}

static void memory(void)
{
    static char bytes[4096];
    REFUSED(ibv_reg_mr(side.pd, bytes, sizeof bytes, IBV_ACCESS_REMOTE_WRITE), EINVAL);
    REFUSED(ibv_reg_mr(side.pd, bytes, sizeof bytes, IBV_ACCESS_REMOTE_ATOMIC), EINVAL);
    REFUSED(ibv_reg_mr(side.pd, bytes, SIZE_MAX - 16, IBV_ACCESS_LOCAL_WRITE), EINVAL);
    REFUSED(ibv_reg_mr(side.pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE | 1 << 18), EINVAL);
    struct ibv_mr *mr = ibv_reg_mr(side.pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE);
    CHECK(mr != NULL);
    CHECK_EQ(mr->length, sizeof bytes);
    CHECK(mr->addr == bytes && mr->pd == side.pd && mr->context == side.context);
    CHECK_EQ(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
    CHECK_EQ(ibv_rereg_mr(mr, 1 << 10, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
    CHECK_EQ(ibv_dereg_mr(mr), 0);
}

static void completion_queues(void)
{
    struct ibv_device_attr device;
    CHECK_EQ(ibv_query_device(side.context, &device), 0);
    REFUSED(ibv_create_cq(side.context, 0, NULL, NULL, 0), EINVAL);
    REFUSED(ibv_create_cq(side.context, -1, NULL, NULL, 0), EINVAL);
    REFUSED(ibv_create_cq(side.context, device.max_cqe + 1, NULL, NULL, 0), EINVAL);
    REFUSED(ibv_create_cq(side.context, 1, NULL, NULL, side.context->num_comp_vectors), EINVAL);
    REFUSED(ibv_create_cq(side.context, 1, NULL, NULL, -1), EINVAL);
    struct ibv_cq *cq = ibv_create_cq(side.context, device.max_cqe, &side, NULL, side.context->num_comp_vectors - 1);
    CHECK(cq != NULL);
    CHECK(cq->cqe >= device.max_cqe);
    CHECK(cq->cq_context == &side && cq->channel == NULL);
    CHECK_EQ(ibv_resize_cq(cq, device.max_cqe + 1), EINVAL);
    CHECK_EQ(ibv_destroy_cq(cq), 0);
}

static struct ibv_qp_init_attr usual_qp(void)
{
    struct ibv_qp_init_attr attributes = {
        .send_cq = side.cq,
        .recv_cq = side.cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
    };
    return attributes;
}

static void making_queue_pairs(void)
{
    struct ibv_device_attr device;
    CHECK_EQ(ibv_query_device(side.context, &device), 0);
    struct ibv_qp_init_attr attributes = usual_qp();
    attributes.cap.max_send_wr = (uint32_t)device.max_qp_wr + 1;
    REFUSED(ibv_create_qp(side.pd, &attributes), EINVAL);
    attributes = usual_qp();
    attributes.cap.max_recv_sge = (uint32_t)device.max_sge + 1;
    REFUSED(ibv_create_qp(side.pd, &attributes), EINVAL);
    attributes = usual_qp();
    attributes.cap.max_inline_data = 1 << 20;
    REFUSED(ibv_create_qp(side.pd, &attributes), EINVAL);
    attributes = usual_qp();
    attributes.send_cq = NULL;
    REFUSED(ibv_create_qp(side.pd, &attributes), EINVAL);
    attributes = usual_qp();
    attributes.qp_type = 77;
    errno = 0;
    CHECK(ibv_create_qp(side.pd, &attributes) == NULL);
    CHECK(errno == EINVAL || errno == EOPNOTSUPP);
    attributes.qp_type = IBV_QPT_RAW_PACKET;
    REFUSED(ibv_create_qp(side.pd, &attributes), EOPNOTSUPP);
    /* What was made is at least what was asked for, and is told. */
    attributes = usual_qp();
    struct ibv_qp *qp = ibv_create_qp(side.pd, &attributes);
    CHECK(qp != NULL);
    CHECK(attributes.cap.max_send_wr >= 4 && attributes.cap.max_recv_wr >= 4);
    CHECK(qp->qp_num != 0 && qp->qp_num < 1 << 24);
    CHECK_EQ(qp->state, IBV_QPS_RESET);
    CHECK_EQ(ibv_destroy_qp(qp), 0);
}

static void transitions(void)
{
    struct ibv_qp_init_attr init = usual_qp();
    struct ibv_qp *qp = ibv_create_qp(side.pd, &init);
    CHECK(qp != NULL);
    int to_init_mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_RTS};
    CHECK_EQ(ibv_modify_qp(qp, &attributes, IBV_QP_STATE), EINVAL);
    attributes.qp_state = IBV_QPS_INIT;
    CHECK_EQ(ibv_modify_qp(qp, &attributes, IBV_QP_STATE), EINVAL);
    attributes.port_num = 2;
    CHECK_EQ(ibv_modify_qp(qp, &attributes, to_init_mask), EINVAL);
    attributes.port_num = 1;
    attributes.pkey_index = 99;
    CHECK_EQ(ibv_modify_qp(qp, &attributes, to_init_mask), EINVAL);
    attributes.pkey_index = 0;
    CHECK_EQ(ibv_modify_qp(qp, &attributes, to_init_mask | IBV_QP_PATH_MTU), EINVAL);
    CHECK_EQ(state_of(qp), IBV_QPS_RESET);
    CHECK_EQ(ibv_modify_qp(qp, &attributes, to_init_mask), 0);
    CHECK_EQ(state_of(qp), IBV_QPS_INIT);
    CHECK_EQ(qp->state, IBV_QPS_INIT);
    attributes.qp_state = 42;
    CHECK_EQ(ibv_modify_qp(qp, &attributes, IBV_QP_STATE), EINVAL);

    /* A send before the connection is refused; a receive is taken from INIT on. */
    struct side unconnected = side;
    unconnected.qp = qp;
    struct ibv_sge sge = sge_of(&side, 0, 8);
    struct ibv_send_wr *bad_send = NULL, send = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};
    CHECK_EQ(ibv_post_send(qp, &send, &bad_send), EINVAL);
    CHECK(bad_send == &send);
    post_receive(&unconnected, 1, 0, 8);
    attributes.qp_state = IBV_QPS_RESET;
    CHECK_EQ(ibv_modify_qp(qp, &attributes, IBV_QP_STATE), 0);
    struct ibv_recv_wr *bad_receive = NULL, receive = {.sg_list = &sge, .num_sge = 1};
    CHECK_EQ(ibv_post_recv(qp, &receive, &bad_receive), EINVAL);
    CHECK(bad_receive == &receive);
    CHECK_EQ(ibv_destroy_qp(qp), 0);
}

/* Lists of requests are taken up to the one that is wrong, and that one is told. */
static void posting(void)
{
    struct pair pair = make_pair(IBV_QPT_RC);
    struct ibv_sge sges[33];
    for (int i = 0; i < 33; i++)
        sges[i] = sge_of(&pair.a, 0, 1);
    struct ibv_send_wr *bad, requests[3];
    for (int i = 0; i < 3; i++) {
        requests[i] = (struct ibv_send_wr){
            .wr_id = (uint64_t)i,
            .next = i < 2 ? &requests[i + 1] : NULL,
            .sg_list = sges,
            .num_sge = 1,
            .opcode = IBV_WR_RDMA_WRITE,
            .send_flags = IBV_SEND_SIGNALED,
            .wr.rdma = {(uintptr_t)pair.b.memory, pair.b.mr->rkey},
        };
    }
    requests[1].num_sge = 33;
    CHECK_EQ(ibv_post_send(pair.a.qp, requests, &bad), EINVAL);
    CHECK(bad == &requests[1]);
    EXPECT(pair.a.cq, 0, IBV_WC_SUCCESS);
    check_silent(pair.a.cq);
    requests[1].num_sge = -1;
    CHECK_EQ(ibv_post_send(pair.a.qp, &requests[1], &bad), EINVAL);
    CHECK(bad == &requests[1]);
    requests[1].num_sge = 1;
    requests[1].opcode = 99;
    CHECK_EQ(ibv_post_send(pair.a.qp, &requests[1], &bad), EINVAL);
    CHECK(bad == &requests[1]);
    requests[1].opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    requests[1].wr.atomic.remote_addr = (uintptr_t)pair.b.memory + 1;
    sges[0].length = 8;
    CHECK_EQ(ibv_post_send(pair.a.qp, &requests[1], &bad), EINVAL);
    CHECK(bad == &requests[1]);
    requests[1].opcode = IBV_WR_SEND;
    requests[1].send_flags = IBV_SEND_INLINE;
    sges[0].length = 4096;
    CHECK_EQ(ibv_post_send(pair.a.qp, &requests[1], &bad), EINVAL);
    CHECK(bad == &requests[1]);
    check_silent(pair.a.cq);

    struct ibv_recv_wr *bad_receive, receives[2] = {
        {.wr_id = 0, .next = &receives[1], .sg_list = sges, .num_sge = 1},
        {.wr_id = 1, .sg_list = sges, .num_sge = 33},
    };
    CHECK_EQ(ibv_post_recv(pair.a.qp, receives, &bad_receive), EINVAL);
    CHECK(bad_receive == &receives[1]);
    receives[1].num_sge = 1;
    int error, posted = 1;
    while ((error = ibv_post_recv(pair.a.qp, &receives[1], &bad_receive)) == 0)
        CHECK(++posted <= 100000);
    CHECK_EQ(error, ENOMEM);
    CHECK(bad_receive == &receives[1]);
    CHECK(posted >= 64);
    drop_pair(&pair);

    /* A send queue is full when its requests have not finished: nobody answers these. */
    struct side lonely = make_side(open_device(), IBV_QPT_RC, NULL);
    struct connection nowhere = usual_connection(&lonely);
    nowhere.qpn = 0xfffffe;
    connect_with(lonely.qp, &nowhere);
    struct ibv_sge sge = sge_of(&lonely, 0, 8);
    struct ibv_send_wr send = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    posted = 0;
    while ((error = ibv_post_send(lonely.qp, &send, &bad)) == 0)
        CHECK(++posted <= 100000);
    CHECK_EQ(error, ENOMEM);
    CHECK(bad == &send);
    CHECK(posted >= 64);
    drop_side(&lonely);
    CHECK_EQ(ibv_close_device(lonely.context), 0);
}

static void shared_receive_queues(void)
{
    struct ibv_device_attr device;
    CHECK_EQ(ibv_query_device(side.context, &device), 0);
    struct ibv_srq_init_attr attributes = {.attr = {.max_wr = (uint32_t)device.max_srq_wr + 1, .max_sge = 1}};
    REFUSED(ibv_create_srq(side.pd, &attributes), EINVAL);
    attributes.attr = (struct ibv_srq_attr){.max_wr = 1, .max_sge = (uint32_t)device.max_srq_sge + 1};
    REFUSED(ibv_create_srq(side.pd, &attributes), EINVAL);
}

static void addresses(void)
{
    struct ibv_ah_attr attributes = {.port_num = 1};
    REFUSED(ibv_create_ah(side.pd, &attributes), EINVAL);
    attributes.is_global = 1;
    CHECK_EQ(ibv_query_gid(side.context, 1, 0, &attributes.grh.dgid), 0);
    attributes.port_num = 2;
    REFUSED(ibv_create_ah(side.pd, &attributes), EINVAL);
    attributes.port_num = 1;
    attributes.grh.sgid_index = 200;
    REFUSED(ibv_create_ah(side.pd, &attributes), EINVAL);
    attributes.grh.sgid_index = 0;
    struct ibv_ah *ah = ibv_create_ah(side.pd, &attributes);
    CHECK(ah != NULL);
    CHECK_EQ(ibv_dealloc_pd(side.pd), EBUSY);
    CHECK_EQ(ibv_destroy_ah(ah), 0);

    union ibv_gid group = {.raw = {[10] = 0xff, 0xff, 239, 1, 2, 3}};
    CHECK_EQ(ibv_attach_mcast(side.qp, &group, 0), EINVAL);
}

/* A port, a device and their objects are found by what they are called. */
static void names(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list != NULL && list[0] != NULL && list[1] == NULL);
    CHECK(strcmp(ibv_get_device_name(list[0]), "uroce0") == 0);
    CHECK_EQ(list[0]->node_type, IBV_NODE_CA);
    CHECK_EQ(list[0]->transport_type, IBV_TRANSPORT_IB);
    CHECK(ibv_get_device_guid(list[0]) != 0);
    CHECK(ibv_get_device_index(list[0]) >= -1);
    ibv_free_device_list(list);
    CHECK(strcmp(ibv_wc_status_str(IBV_WC_RETRY_EXC_ERR), "transport retry counter exceeded") == 0);
    CHECK(strcmp(ibv_port_state_str(IBV_PORT_ACTIVE), "active") == 0);
    CHECK(strlen(ibv_wc_status_str(1000)) > 0 && strlen(ibv_event_type_str(1000)) > 0);
    CHECK_EQ(ibv_rate_to_mbps(IBV_RATE_100_GBPS), 103125);
    CHECK_EQ(mbps_to_ibv_rate(103125), IBV_RATE_100_GBPS);
    CHECK_EQ(ibv_rate_to_mult(IBV_RATE_10_GBPS), 4);
}

int main(void)
{
    side = make_side(open_device(), IBV_QPT_RC, NULL);
    names();
    queries();
    memory();
    completion_queues();
    making_queue_pairs();
    transitions();
    posting();
    shared_receive_queues();
    addresses();
    drop_side(&side);
    CHECK_EQ(ibv_close_device(side.context), 0);
    return 0;
}
