/* Unreliable datagrams: addresses, the 40 bytes before the payload, keys, multicast, the way back. */
#include "common.h"

#include <arpa/inet.h>
#include <netinet/ip.h>

enum { QKEY = 0x11223344, GRH = 40 };

static void to_ready(struct ibv_qp *qp, uint32_t qkey)
{
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = qkey};
    CHECK_EQ(ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), 0);
    attributes.qp_state = IBV_QPS_RTR;
    CHECK_EQ(ibv_modify_qp(qp, &attributes, IBV_QP_STATE), 0);
    attributes.qp_state = IBV_QPS_RTS;
    attributes.sq_psn = 0xfffff0;
    CHECK_EQ(ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
}

static struct ibv_ah *address_of(const struct side *from, const union ibv_gid *gid)
{
    struct ibv_ah_attr attributes = {.is_global = 1, .grh = {.dgid = *gid, .hop_limit = 33, .traffic_class = 0x20}, .port_num = 1};
    struct ibv_ah *ah = ibv_create_ah(from->pd, &attributes);
    CHECK(ah != NULL);
    return ah;
}

static void send_to(const struct side *from, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey, uint64_t wr_id, uint32_t length)
{
    struct ibv_sge sge = sge_of(from, 0, length);
    struct ibv_send_wr *bad, request = {
        .wr_id = wr_id,
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = IBV_WR_SEND_WITH_IMM,
        .send_flags = IBV_SEND_SIGNALED,
        .imm_data = htonl((uint32_t)wr_id),
        .wr.ud = {ah, qpn, qkey},
    };
    CHECK_EQ(ibv_post_send(from->qp, &request, &bad), 0);
    EXPECT(from->cq, wr_id, IBV_WC_SUCCESS);
}

int main(void)
{
    struct side a = make_side(open_device(), IBV_QPT_UD, NULL), b = make_side(open_device(), IBV_QPT_UD, NULL);
    to_ready(a.qp, QKEY);
    to_ready(b.qp, QKEY);
    union ibv_gid gid_a, gid_b;
    CHECK_EQ(ibv_query_gid(a.context, 1, 0, &gid_a), 0);
    CHECK_EQ(ibv_query_gid(b.context, 1, 0, &gid_b), 0);
    struct ibv_ah *to_b = address_of(&a, &gid_b);
    for (size_t i = 0; i < MEMORY; i++)
        a.memory[i] = (unsigned char)(i * 13);

    /* The header, then the payload; the completion tells where it came from. */
    post_receive(&b, 1, 0, GRH + 1000);
    send_to(&a, to_b, b.qp->qp_num, QKEY, 1, 1000);
    struct ibv_wc wc = completion(b.cq);
    CHECK_EQ(wc.status, IBV_WC_SUCCESS);
    CHECK_EQ(wc.byte_len, GRH + 1000);
    CHECK_EQ(wc.src_qp, a.qp->qp_num);
    CHECK_EQ(wc.wc_flags, IBV_WC_GRH | IBV_WC_WITH_IMM);
    /* As mlx5 has it: an IPv4 header. */
    CHECK_EQ(wc.sl, 2);
    CHECK_EQ(ntohl(wc.imm_data), 1);
    CHECK(memcmp(b.memory + GRH, a.memory, 1000) == 0);
    struct iphdr ip;
    memcpy(&ip, b.memory + GRH - sizeof ip, sizeof ip);
    CHECK_EQ(ip.version, 4);
    CHECK(memcmp(&ip.saddr, gid_a.raw + 12, 4) == 0);
    CHECK(memcmp(&ip.daddr, gid_b.raw + 12, 4) == 0);

    /* The way back, by the header alone. */
    struct ibv_ah_attr back;
    CHECK_EQ(ibv_init_ah_from_wc(b.context, 1, &wc, (struct ibv_grh *)b.memory, &back), 0);
    CHECK(memcmp(&back.grh.dgid, &gid_a, sizeof gid_a) == 0);
    struct ibv_ah *to_a = ibv_create_ah_from_wc(b.pd, &wc, (struct ibv_grh *)b.memory, 1);
    CHECK(to_a != NULL);
    post_receive(&a, 2, 0, GRH + 8);
    send_to(&b, to_a, wc.src_qp, QKEY, 2, 8);
    EXPECT(a.cq, 2, IBV_WC_SUCCESS);

    /* What comes with a wrong key is dropped without a word; the receive stays. */
    post_receive(&b, 3, 0, GRH + 100);
    send_to(&a, to_b, b.qp->qp_num, QKEY + 1, 3, 8);
    check_silent(b.cq);
    /* A Q_Key with the highest bit set stands for the queue pair's own. */
    send_to(&a, to_b, b.qp->qp_num, 0x80000000, 4, 8);
    wc = completion(b.cq);
    CHECK_EQ(wc.status, IBV_WC_SUCCESS);
    CHECK_EQ(wc.wr_id, 3);

    /* Without a receive it is lost. */
    send_to(&a, to_b, b.qp->qp_num, QKEY, 5, 8);
    check_silent(b.cq);
    post_receive(&b, 6, 0, GRH + 8);
    check_silent(b.cq);
    send_to(&a, to_b, b.qp->qp_num, QKEY, 6, 8);
    EXPECT(b.cq, 6, IBV_WC_SUCCESS);

    /* One packet at most. */
    struct ibv_port_attr port;
    CHECK_EQ(ibv_query_port(a.context, 1, &port), 0);
    uint32_t mtu = 128U << port.active_mtu;
    post_receive(&b, 7, 0, GRH + mtu);
    send_to(&a, to_b, b.qp->qp_num, QKEY, 7, mtu);
    wc = completion(b.cq);
    CHECK_EQ(wc.byte_len, GRH + mtu);
    CHECK(memcmp(b.memory + GRH, a.memory, mtu) == 0);

    /* A group: who joined hears it, also the sender itself; who left does not. */
    union ibv_gid group = {.raw = {[10] = 0xff, 0xff, 239, 17, 34, 51}};
    struct ibv_ah *to_group = address_of(&a, &group);
    CHECK_EQ(ibv_attach_mcast(a.qp, &group, 0), 0);
    CHECK_EQ(ibv_attach_mcast(b.qp, &group, 0), 0);
    post_receive(&a, 8, 0, GRH + 8);
    post_receive(&b, 8, 0, GRH + 8);
    send_to(&a, to_group, 0xffffff, QKEY, 8, 8);
    EXPECT(a.cq, 8, IBV_WC_SUCCESS);
    wc = completion(b.cq);
    CHECK_EQ(wc.status, IBV_WC_SUCCESS);
    CHECK_EQ(wc.src_qp, a.qp->qp_num);
    CHECK_EQ(ibv_detach_mcast(b.qp, &group, 0), 0);
    CHECK(ibv_detach_mcast(b.qp, &group, 0) != 0);
    CHECK_EQ(ibv_destroy_qp(a.qp), EBUSY);
    post_receive(&a, 9, 0, GRH + 8);
    post_receive(&b, 9, 0, GRH + 8);
    send_to(&a, to_group, 0xffffff, QKEY, 9, 8);
    EXPECT(a.cq, 9, IBV_WC_SUCCESS);
    check_silent(b.cq);
    CHECK_EQ(ibv_detach_mcast(a.qp, &group, 0), 0);

    CHECK_EQ(ibv_destroy_ah(to_group), 0);
    CHECK_EQ(ibv_destroy_ah(to_b), 0);
    CHECK_EQ(ibv_destroy_ah(to_a), 0);
    drop_side(&a);
    drop_side(&b);
    CHECK_EQ(ibv_close_device(a.context), 0);
    CHECK_EQ(ibv_close_device(b.context), 0);
    return 0;
}
