/* XRC: one queue pair sends to several shared receive queues of the other side, each with its completion queue. */
#include "common.h"

#include <fcntl.h>

int main(void)
{
    struct ibv_context *near = open_device(), *far = open_device();
    struct ibv_pd *near_pd = ibv_alloc_pd(near), *far_pd = ibv_alloc_pd(far);
    CHECK(near_pd != NULL && far_pd != NULL);

    /* The receiving side: a domain, two receive queues, and one target that takes in for both. */
    char name[] = "/tmp/uroce-xrc-XXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0);
    struct ibv_xrcd_init_attr domain_attributes = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
        .fd = fd,
        .oflags = O_CREAT,
    };
    struct ibv_xrcd *domain = ibv_open_xrcd(far, &domain_attributes);
    CHECK(domain != NULL);
    struct ibv_cq *cqs[2];
    struct ibv_srq *srqs[2];
    uint32_t numbers[2];
    for (int i = 0; i < 2; i++) {
        CHECK((cqs[i] = ibv_create_cq(far, 16, NULL, NULL, 0)) != NULL);
        struct ibv_srq_init_attr_ex attributes = {
            .attr = {.max_wr = 16, .max_sge = 1},
            .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_PD,
            .srq_type = IBV_SRQT_XRC,
            .xrcd = domain,
            .cq = cqs[i],
            .pd = far_pd,
        };
        CHECK((srqs[i] = ibv_create_srq_ex(far, &attributes)) != NULL);
        CHECK_EQ(ibv_get_srq_num(srqs[i], &numbers[i]), 0);
    }
    CHECK(numbers[0] != numbers[1]);
    struct ibv_qp_init_attr_ex target_attributes = {
        .qp_type = IBV_QPT_XRC_RECV,
        .comp_mask = IBV_QP_INIT_ATTR_XRCD,
        .xrcd = domain,
    };
    struct ibv_qp *target = ibv_create_qp_ex(far, &target_attributes);
    CHECK(target != NULL);
    static unsigned char inbox[2][64], outbox[64], words[64];
    struct ibv_mr *inbox_mr = ibv_reg_mr(far_pd, inbox, sizeof inbox, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_mr *words_mr = ibv_reg_mr(far_pd, words, sizeof words, ALL_ACCESS);

    /* The sending side. */
    struct ibv_cq *cq = ibv_create_cq(near, 16, NULL, NULL, 0);
    struct ibv_qp_init_attr_ex initiator_attributes = {
        .send_cq = cq,
        .qp_type = IBV_QPT_XRC_SEND,
        .cap = {.max_send_wr = 16, .max_send_sge = 1},
        .comp_mask = IBV_QP_INIT_ATTR_PD,
        .pd = near_pd,
    };
    struct ibv_qp *initiator = ibv_create_qp_ex(near, &initiator_attributes);
    CHECK(initiator != NULL);
    struct ibv_mr *outbox_mr = ibv_reg_mr(near_pd, outbox, sizeof outbox, IBV_ACCESS_LOCAL_WRITE);
    CHECK(inbox_mr != NULL && words_mr != NULL && outbox_mr != NULL);

    struct connection connection = {
        .qpn = target->qp_num,
        .mtu = IBV_MTU_1024,
        .access = ALL_ACCESS,
        .retry_count = 7,
        .rnr_retry = 7,
        .timeout = 17,
    };
    CHECK_EQ(ibv_query_gid(far, 1, 0, &connection.gid), 0);
    connect_with(initiator, &connection);
    connection.qpn = initiator->qp_num;
    CHECK_EQ(ibv_query_gid(near, 1, 0, &connection.gid), 0);
    connect_with(target, &connection);

    for (int i = 0; i < 2; i++) {
        struct ibv_sge sge = {(uintptr_t)inbox[i], 64, inbox_mr->lkey};
        struct ibv_recv_wr *bad, receive = {.wr_id = 100 + (uint64_t)i, .sg_list = &sge, .num_sge = 1};
        CHECK_EQ(ibv_post_srq_recv(srqs[i], &receive, &bad), 0);
    }
    /* The second first: the sender chooses. */
    for (int i = 1; i >= 0; i--) {
        memset(outbox, 'a' + i, sizeof outbox);
        struct ibv_sge sge = {(uintptr_t)outbox, 64, outbox_mr->lkey};
        struct ibv_send_wr *bad, send = {
            .wr_id = (uint64_t)i,
            .sg_list = &sge,
            .num_sge = 1,
            .opcode = IBV_WR_SEND,
            .send_flags = IBV_SEND_SIGNALED,
            .qp_type.xrc.remote_srqn = numbers[i],
        };
        CHECK_EQ(ibv_post_send(initiator, &send, &bad), 0);
        EXPECT(cq, i, IBV_WC_SUCCESS);
        struct ibv_wc wc = completion(cqs[i]);
        CHECK_EQ(wc.status, IBV_WC_SUCCESS);
        CHECK_EQ(wc.wr_id, 100 + i);
        CHECK_EQ(wc.byte_len, 64);
        CHECK(memcmp(inbox[i], outbox, 64) == 0);
    }

    /* WRITE, READ and atomics take no receive, but name a queue: its domain is that of the memory they reach. */
    memset(outbox, 'w', 8);
    struct ibv_sge sge = {(uintptr_t)outbox, 8, outbox_mr->lkey};
    enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD};
    for (uint64_t i = 0; i < 3; i++) {
        struct ibv_send_wr *bad, request = {
            .wr_id = i,
            .sg_list = &sge,
            .num_sge = 1,
            .opcode = opcodes[i],
            .send_flags = IBV_SEND_SIGNALED,
            .qp_type.xrc.remote_srqn = numbers[0],
        };
        if (opcodes[i] == IBV_WR_ATOMIC_FETCH_AND_ADD) {
            request.wr.atomic.remote_addr = (uintptr_t)words;
            request.wr.atomic.rkey = words_mr->rkey;
            request.wr.atomic.compare_add = 1;
        } else {
            request.wr.rdma.remote_addr = (uintptr_t)words;
            request.wr.rdma.rkey = words_mr->rkey;
        }
        CHECK_EQ(ibv_post_send(initiator, &request, &bad), 0);
        EXPECT(cq, i, IBV_WC_SUCCESS);
    }
    CHECK_EQ(words[0], 'w' + 1);
    CHECK_EQ(words[1], 'w');

    /* Who opens the target, too, hears of its events by the queue pair that he was given. */
    struct ibv_qp_open_attr open_attributes = {
        .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE | IBV_QP_OPEN_ATTR_CONTEXT,
        .qp_num = target->qp_num,
        .xrcd = domain,
        .qp_context = name,
        .qp_type = IBV_QPT_XRC_RECV,
    };
    struct ibv_qp *opened = ibv_open_qp(far, &open_attributes);
    CHECK(opened != NULL && opened != target);
    CHECK(opened->qp_num == target->qp_num && opened->qp_context == name);
    struct ibv_send_wr *bad, to_nobody = {
        .wr_id = 9,
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = IBV_WR_SEND,
        .send_flags = IBV_SEND_SIGNALED,
    };
    CHECK_EQ(ibv_post_send(initiator, &to_nobody, &bad), 0);
    EXPECT(cq, 9, IBV_WC_REM_INV_REQ_ERR);
    bool told[2] = {false, false};
    for (int i = 0; i < 2; i++) {
        struct ibv_async_event event = async_event(far);
        CHECK_EQ(event.event_type, IBV_EVENT_QP_REQ_ERR);
        CHECK(event.element.qp == target || event.element.qp == opened);
        told[event.element.qp == opened] = true;
    }
    CHECK(told[0] && told[1]);
    CHECK_EQ(ibv_destroy_qp(opened), 0);

    /* A domain is busy as long as somebody is in it. A second one of the same file is the same. */
    CHECK_EQ(ibv_close_xrcd(domain), EBUSY);
    domain_attributes.oflags = 0;
    struct ibv_xrcd *same = ibv_open_xrcd(far, &domain_attributes);
    CHECK(same != NULL);
    CHECK_EQ(ibv_close_xrcd(same), 0);

    CHECK_EQ(ibv_destroy_qp(initiator), 0);
    CHECK_EQ(ibv_destroy_qp(target), 0);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(ibv_destroy_srq(srqs[i]), 0);
        CHECK_EQ(ibv_destroy_cq(cqs[i]), 0);
    }
    CHECK_EQ(ibv_close_xrcd(domain), 0);
    CHECK_EQ(ibv_destroy_cq(cq), 0);
    CHECK_EQ(ibv_dereg_mr(inbox_mr), 0);
    CHECK_EQ(ibv_dereg_mr(words_mr), 0);
    CHECK_EQ(ibv_dereg_mr(outbox_mr), 0);
    CHECK_EQ(ibv_dealloc_pd(near_pd), 0);
    CHECK_EQ(ibv_dealloc_pd(far_pd), 0);
    CHECK_EQ(ibv_close_device(near), 0);
    CHECK_EQ(ibv_close_device(far), 0);
    close(fd);
    unlink(name);
    return 0;
}
