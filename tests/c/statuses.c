/*
 * Every status that a work completion can have, each provoked by the mistake or the misfortune that it stands for.
 * Those that are not here are nobody's: IBV_WC_LOC_QP_OP_ERR and IBV_WC_LOC_ACCESS_ERR (such mistakes are refused when
 * they are posted, or are the peer's to hear of), those of RD, and IBV_WC_FATAL_ERR, which stands for broken hardware.
 */
#include "common.h"

#include <arpa/inet.h>
#include <sys/socket.h>

/* A request with a buffer that no key fits. */
static void post_with_key(const struct side *from, const struct side *to, uint32_t lkey, uint32_t rkey)
{
    struct ibv_sge sge = sge_of(from, 0, 8);
    sge.lkey = lkey;
    struct ibv_send_wr *bad, request = {
        .wr_id = 1,
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = IBV_WR_RDMA_WRITE,
        .send_flags = IBV_SEND_SIGNALED,
        .wr.rdma = {(uintptr_t)to->memory, rkey},
    };
    CHECK_EQ(ibv_post_send(from->qp, &request, &bad), 0);
}

static void success(void)
{
    struct pair pair = make_pair(IBV_QPT_RC);
    memset(pair.a.memory, 'x', 100);
    post_receive(&pair.b, 7, 0, 100);
    post(&pair.a, &pair.b, 1, IBV_WR_SEND, 0, 100);
    struct ibv_wc sent = completion(pair.a.cq), received = completion(pair.b.cq);
    CHECK_EQ(sent.status, IBV_WC_SUCCESS);
    CHECK_EQ(sent.opcode, IBV_WC_SEND);
    CHECK_EQ(sent.qp_num, pair.a.qp->qp_num);
    CHECK_EQ(received.status, IBV_WC_SUCCESS);
    CHECK_EQ(received.opcode, IBV_WC_RECV);
    CHECK_EQ(received.byte_len, 100);
    CHECK_EQ(received.wr_id, 7);
    CHECK(memcmp(pair.a.memory, pair.b.memory, 100) == 0);
    drop_pair(&pair);
}

/* The receive is too short: its owner gets a length error, the sender has sent an invalid request. */
static void local_length_and_remote_invalid_request(void)
{
    struct pair pair = make_pair(IBV_QPT_RC);
    post_receive(&pair.b, 7, 0, 99);
    post(&pair.a, &pair.b, 1, IBV_WR_SEND, 0, 100);
    EXPECT(pair.b.cq, 7, IBV_WC_LOC_LEN_ERR);
    EXPECT(pair.a.cq, 1, IBV_WC_REM_INV_REQ_ERR);
    CHECK_EQ(state_of(pair.a.qp), IBV_QPS_ERR);
    CHECK_EQ(state_of(pair.b.qp), IBV_QPS_ERR);
    drop_pair(&pair);
}

/* An operation that the peer's queue pair does not allow. */
static void remote_invalid_request(void)
{
    struct side a = make_side(open_device(), IBV_QPT_RC, NULL), b = make_side(open_device(), IBV_QPT_RC, NULL);
    struct connection to_a = usual_connection(&a), to_b = usual_connection(&b);
    to_a.access = IBV_ACCESS_REMOTE_WRITE;
    connect_with(a.qp, &to_b);
    connect_with(b.qp, &to_a);
    post(&a, &b, 1, IBV_WR_RDMA_WRITE, 0, 8);
    EXPECT(a.cq, 1, IBV_WC_SUCCESS);
    post(&a, &b, 2, IBV_WR_RDMA_READ, 0, 8);
    EXPECT(a.cq, 2, IBV_WC_REM_INV_REQ_ERR);
    drop_side(&a);
    drop_side(&b);
    CHECK_EQ(ibv_close_device(a.context), 0);
    CHECK_EQ(ibv_close_device(b.context), 0);
}

static void local_protection(void)
{
    struct pair pair = make_pair(IBV_QPT_RC);
    post_with_key(&pair.a, &pair.b, ~pair.a.mr->lkey, pair.b.mr->rkey);
    EXPECT(pair.a.cq, 1, IBV_WC_LOC_PROT_ERR);
    drop_pair(&pair);
}

/* What a READ brings cannot be put where the program may not write. */
static void local_protection_of_a_read(void)
{
    struct pair pair = make_pair(IBV_QPT_RC);
    struct ibv_mr *read_only = ibv_reg_mr(pair.a.pd, pair.a.memory, 64, 0);
    CHECK(read_only != NULL);
    struct side from = pair.a;
    from.mr = read_only;
    post(&from, &pair.b, 1, IBV_WR_RDMA_WRITE, 0, 8);
    EXPECT(pair.a.cq, 1, IBV_WC_SUCCESS);
    post(&from, &pair.b, 2, IBV_WR_RDMA_READ, 0, 8);
    EXPECT(pair.a.cq, 2, IBV_WC_LOC_PROT_ERR);
    CHECK_EQ(ibv_dereg_mr(read_only), 0);
    drop_pair(&pair);
}

/* Memory that is deregistered while its request, which nobody answers, waits to be sent again. */
static void local_protection_lost(void)
{
    struct side a = make_side(open_device(), IBV_QPT_RC, NULL);
    struct connection nowhere = usual_connection(&a);
    nowhere.qpn = 0xfffffe;
    nowhere.timeout = 14;
    connect_with(a.qp, &nowhere);
    struct ibv_mr *passing = ibv_reg_mr(a.pd, a.memory, 64, IBV_ACCESS_LOCAL_WRITE);
    CHECK(passing != NULL);
    struct side from = a;
    from.mr = passing;
    post(&from, &a, 1, IBV_WR_SEND, 0, 8);
    CHECK_EQ(ibv_dereg_mr(passing), 0);
    EXPECT(a.cq, 1, IBV_WC_LOC_PROT_ERR);
    drop_side(&a);
    CHECK_EQ(ibv_close_device(a.context), 0);
}

static void remote_access(void)
{
    struct pair pair = make_pair(IBV_QPT_RC);
    post_with_key(&pair.a, &pair.b, pair.a.mr->lkey, ~pair.b.mr->rkey);
    EXPECT(pair.a.cq, 1, IBV_WC_REM_ACCESS_ERR);
    CHECK_EQ(async_event(pair.b.context).event_type, IBV_EVENT_QP_ACCESS_ERR);
    drop_pair(&pair);
}

/* The peer's receive points to memory that it may not write: its own mistake, not the sender's. */
static void local_protection_and_remote_operation(void)
{
    struct pair pair = make_pair(IBV_QPT_RC);
    struct ibv_sge sge = sge_of(&pair.b, 0, 100);
    sge.lkey = ~sge.lkey;
    struct ibv_recv_wr *bad, receive = {.wr_id = 7, .sg_list = &sge, .num_sge = 1};
    CHECK_EQ(ibv_post_recv(pair.b.qp, &receive, &bad), 0);
    post(&pair.a, &pair.b, 1, IBV_WR_SEND, 0, 100);
    EXPECT(pair.b.cq, 7, IBV_WC_LOC_PROT_ERR);
    EXPECT(pair.a.cq, 1, IBV_WC_REM_OP_ERR);
    drop_pair(&pair);
}

/* Each operation that reaches memory, with a key that has been good. */
static void remote_access_of_each_operation(void)
{
    const enum ibv_wr_opcode opcodes[] = {
        IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP,
        IBV_WR_ATOMIC_FETCH_AND_ADD,
    };
    for (size_t i = 0; i < sizeof opcodes / sizeof *opcodes; i++) {
        struct pair pair = make_pair(IBV_QPT_RC);
        struct ibv_mr *gone = ibv_reg_mr(pair.b.pd, pair.b.memory, 64, ALL_ACCESS);
        CHECK(gone != NULL);
        uint32_t rkey = gone->rkey;
        CHECK_EQ(ibv_dereg_mr(gone), 0);
        post_receive(&pair.b, 7, 0, 8);
        struct ibv_sge sge = sge_of(&pair.a, 0, 8);
        struct ibv_send_wr *bad, request = {
            .wr_id = 1,
            .sg_list = &sge,
            .num_sge = 1,
            .opcode = opcodes[i],
            .send_flags = IBV_SEND_SIGNALED,
        };
        if (opcodes[i] == IBV_WR_ATOMIC_CMP_AND_SWP || opcodes[i] == IBV_WR_ATOMIC_FETCH_AND_ADD) {
            request.wr.atomic.remote_addr = (uintptr_t)pair.b.memory;
            request.wr.atomic.rkey = rkey;
        } else {
            request.wr.rdma.remote_addr = (uintptr_t)pair.b.memory;
            request.wr.rdma.rkey = rkey;
        }
        CHECK_EQ(ibv_post_send(pair.a.qp, &request, &bad), 0);
        EXPECT(pair.a.cq, 1, IBV_WC_REM_ACCESS_ERR);
        EXPECT(pair.b.cq, 7, IBV_WC_WR_FLUSH_ERR);
        drop_pair(&pair);
    }
}

/* What was posted before the error and what is posted after it is flushed, in order, signalled or not. */
static void flushed(void)
{
    struct pair pair = make_pair(IBV_QPT_RC);
    post_receive(&pair.a, 7, 0, 8);
    post_receive(&pair.a, 8, 0, 8);
    post_with_key(&pair.a, &pair.b, pair.a.mr->lkey, ~pair.b.mr->rkey);
    post(&pair.a, &pair.b, 2, IBV_WR_RDMA_WRITE, 0, 8);
    EXPECT(pair.a.cq, 1, IBV_WC_REM_ACCESS_ERR);
    bool seen[10] = {false};
    for (int left = 3; left > 0; left--) {
        struct ibv_wc wc = completion(pair.a.cq);
        CHECK_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
        CHECK(wc.wr_id < 10 && !seen[wc.wr_id]);
        CHECK(wc.wr_id != 8 || seen[7]);
        seen[wc.wr_id] = true;
    }
    CHECK(seen[2] && seen[7] && seen[8]);
    post(&pair.a, &pair.b, 3, IBV_WR_RDMA_WRITE, 0, 8);
    EXPECT(pair.a.cq, 3, IBV_WC_WR_FLUSH_ERR);
    post_receive(&pair.a, 9, 0, 8);
    EXPECT(pair.a.cq, 9, IBV_WC_WR_FLUSH_ERR);
    drop_pair(&pair);
}

/* Nobody is there. */
static void retries_exceeded(void)
{
    struct side a = make_side(open_device(), IBV_QPT_RC, NULL);
    struct connection nowhere = usual_connection(&a);
    nowhere.qpn = 0xfffffe;
    nowhere.retry_count = 1;
    nowhere.timeout = 8;
    connect_with(a.qp, &nowhere);
    post(&a, &a, 1, IBV_WR_RDMA_WRITE, 0, 8);
    EXPECT(a.cq, 1, IBV_WC_RETRY_EXC_ERR);
    drop_side(&a);
    CHECK_EQ(ibv_close_device(a.context), 0);
}

/* The peer is there, and has posted no receive. */
static void receiver_not_ready(void)
{
    struct side a = make_side(open_device(), IBV_QPT_RC, NULL), b = make_side(open_device(), IBV_QPT_RC, NULL);
    struct connection to_a = usual_connection(&a), to_b = usual_connection(&b);
    to_b.rnr_retry = 1;
    connect_with(a.qp, &to_b);
    connect_with(b.qp, &to_a);
    post(&a, &b, 1, IBV_WR_SEND, 0, 8);
    EXPECT(a.cq, 1, IBV_WC_RNR_RETRY_EXC_ERR);
    CHECK_EQ(state_of(b.qp), IBV_QPS_RTS);
    drop_side(&a);
    drop_side(&b);
    CHECK_EQ(ibv_close_device(a.context), 0);
    CHECK_EQ(ibv_close_device(b.context), 0);
}

/* A window onto a region that was not registered for windows. */
static void window_binding(void)
{
    struct pair pair = make_pair(IBV_QPT_RC);
    struct ibv_mw *window = ibv_alloc_mw(pair.a.pd, IBV_MW_TYPE_2);
    CHECK(window != NULL);
    struct ibv_send_wr *bad, request = {
        .wr_id = 1,
        .opcode = IBV_WR_BIND_MW,
        .send_flags = IBV_SEND_SIGNALED,
        .bind_mw = {window, ibv_inc_rkey(window->rkey), {pair.a.mr, (uintptr_t)pair.a.memory, 8, IBV_ACCESS_REMOTE_READ}},
    };
    CHECK_EQ(ibv_post_send(pair.a.qp, &request, &bad), 0);
    EXPECT(pair.a.cq, 1, IBV_WC_MW_BIND_ERR);
    CHECK_EQ(ibv_dealloc_mw(window), 0);
    drop_pair(&pair);
}

/* A key that cannot be invalidated: it is nobody's. The same of the peer's keys is a matter of access. */
static void invalidation(void)
{
    struct pair pair = make_pair(IBV_QPT_RC);
    struct ibv_send_wr *bad, request = {
        .wr_id = 1,
        .opcode = IBV_WR_LOCAL_INV,
        .send_flags = IBV_SEND_SIGNALED,
        .invalidate_rkey = ~pair.a.mr->rkey,
    };
    CHECK_EQ(ibv_post_send(pair.a.qp, &request, &bad), 0);
    EXPECT(pair.a.cq, 1, IBV_WC_MW_BIND_ERR);
    drop_pair(&pair);

    pair = make_pair(IBV_QPT_RC);
    post_receive(&pair.b, 7, 0, 8);
    request.wr_id = 2;
    request.opcode = IBV_WR_SEND_WITH_INV;
    request.invalidate_rkey = ~pair.b.mr->rkey;
    CHECK_EQ(ibv_post_send(pair.a.qp, &request, &bad), 0);
    EXPECT(pair.a.cq, 2, IBV_WC_REM_ACCESS_ERR);
    EXPECT(pair.b.cq, 7, IBV_WC_WR_FLUSH_ERR);
    drop_pair(&pair);
}

/* Without acknowledgements a sender hears of nothing but its own mistakes. */
static void unreliable_connections(void)
{
    struct pair pair = make_pair(IBV_QPT_UC);
    post_receive(&pair.b, 7, 0, 8);
    post_with_key(&pair.a, &pair.b, pair.a.mr->lkey, ~pair.b.mr->rkey);
    EXPECT(pair.a.cq, 1, IBV_WC_SUCCESS);
    post(&pair.a, &pair.b, 2, IBV_WR_SEND, 0, 9);
    EXPECT(pair.a.cq, 2, IBV_WC_SUCCESS);
    check_silent(pair.b.cq);
    post_with_key(&pair.a, &pair.b, ~pair.a.mr->lkey, pair.b.mr->rkey);
    EXPECT(pair.a.cq, 1, IBV_WC_LOC_PROT_ERR);
    post(&pair.a, &pair.b, 3, IBV_WR_SEND, 0, 8);
    EXPECT(pair.a.cq, 3, IBV_WC_WR_FLUSH_ERR);
    to_error(pair.b.qp);
    EXPECT(pair.b.cq, 7, IBV_WC_WR_FLUSH_ERR);
    drop_pair(&pair);

    pair = make_pair(IBV_QPT_UC);
    struct ibv_sge sge = sge_of(&pair.b, 0, 8);
    sge.lkey = ~sge.lkey;
    struct ibv_recv_wr *bad, receive = {.wr_id = 8, .sg_list = &sge, .num_sge = 1};
    CHECK_EQ(ibv_post_recv(pair.b.qp, &receive, &bad), 0);
    post(&pair.a, &pair.b, 4, IBV_WR_SEND, 0, 8);
    EXPECT(pair.a.cq, 4, IBV_WC_SUCCESS);
    EXPECT(pair.b.cq, 8, IBV_WC_LOC_PROT_ERR);
    drop_pair(&pair);
}

/* The CRC that ends every packet (ICRC): of the packet with what routers change set to ones. */
static uint32_t icrc(const uint8_t *bytes, size_t length, uint32_t crc)
{
    for (size_t i = 0; i < length; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
    return crc;
}

/* A peer that answers with a NAK of a code that means nothing: a socket of ours plays it. */
static void bad_response(void)
{
    struct side a = make_side(open_device(), IBV_QPT_RC, NULL);
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in peer = {.sin_family = AF_INET, .sin_port = htons(4791)}, us;
    CHECK(inet_pton(AF_INET, "127.0.77.7", &peer.sin_addr) == 1);
    CHECK_EQ(bind(fd, (struct sockaddr *)&peer, sizeof peer), 0);
    /* Makes the kernel write 0 as the datagram's identification, which the CRC covers. */
    int never_fragment = IP_PMTUDISC_DO;
    CHECK_EQ(setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &never_fragment, sizeof never_fragment), 0);

    struct connection to_peer = usual_connection(&a);
    memcpy(&to_peer.gid.raw[12], &peer.sin_addr, 4);
    to_peer.qpn = 0x42;
    connect_with(a.qp, &to_peer);
    post(&a, &a, 1, IBV_WR_RDMA_WRITE, 0, 8);

    uint8_t request[2048];
    socklen_t length = sizeof us;
    wait_readable(fd);
    CHECK(recvfrom(fd, request, sizeof request, 0, (struct sockaddr *)&us, &length) > 12);
    us.sin_port = htons(4791);

    /* IPv4 header, UDP header, BTH, AETH; then the CRC. */
    uint8_t packet[48] = {
        [0] = 0x45, 0xff, 0, 48, 0, 0, 0x40, 0, 0xff, 17, 0xff, 0xff,
        [20] = 4791 >> 8, 4791 & 0xff, 4791 >> 8, 4791 & 0xff, 0, 28, 0xff, 0xff,
        [28] = 0x11 /* acknowledge */, 0x40, 0xff, 0xff, 0xff,
        [40] = 0x7f /* a NAK, of the last code there is */,
    };
    memcpy(&packet[12], &peer.sin_addr, 4);
    memcpy(&packet[16], &us.sin_addr, 4);
    uint32_t qpn = htonl(a.qp->qp_num);
    memcpy(&packet[33], (uint8_t *)&qpn + 1, 3);
    memcpy(&packet[37], &request[9], 3); /* the request's PSN */
    const uint8_t link_header[8] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    uint32_t crc = ~icrc(packet, 44, icrc(link_header, 8, 0xffffffff));
    packet[32] = 0;
    memcpy(&packet[44], &crc, 4);
    CHECK_EQ(sendto(fd, &packet[28], 20, 0, (struct sockaddr *)&us, sizeof us), 20);

    EXPECT(a.cq, 1, IBV_WC_BAD_RESP_ERR);
    close(fd);
    drop_side(&a);
    CHECK_EQ(ibv_close_device(a.context), 0);
}

int main(void)
{
    success();
    local_length_and_remote_invalid_request();
    remote_invalid_request();
    local_protection();
    local_protection_of_a_read();
    local_protection_lost();
    remote_access();
    remote_access_of_each_operation();
    local_protection_and_remote_operation();
    flushed();
    retries_exceeded();
    receiver_not_ready();
    window_binding();
    invalidation();
    unreliable_connections();
    bad_response();
    return 0;
}
