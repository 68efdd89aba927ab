/* The other end of the interop tests: verbs on the rxe of the guest, by one-line commands on standard input.
 *
 * Each line gets one line in answer, "ok …" or "error …"; lines may be sent ahead. Objects are named by small numbers
 * that the host chooses. tests/interop_rxe/guest.rs is the one who asks. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <infiniband/verbs.h>

#define OBJECTS 64
#define HW_COUNTERS "/sys/class/infiniband/rxe0/ports/1/hw_counters/"

struct memory { struct ibv_mr *mr; unsigned char *bytes; size_t length; };
struct pair { struct ibv_qp *qp; struct ibv_cq *cq; struct ibv_ah *ah; struct ibv_mw *mw; };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct memory memories[OBJECTS];
static struct pair pairs[OBJECTS];
static struct ibv_srq *srqs[OBJECTS];
static char *rest; /* of the command line */
static int answered;

static void answer(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    putchar('\n');
    fflush(stdout);
    answered = 1;
}

static void failed(const char *what, int error) { answer("error %s: %s", what, strerror(error ? error : errno)); }

static char *word(void) {
    char *found = strtok_r(NULL, " \n", &rest);
    return found ? found : "";
}
static uint64_t number(void) { return strtoull(word(), NULL, 0); }
static int object(void) { return (int)(number() % OBJECTS); }

/* The test's bytes: a sequence of 64-bit words that follows from its seed (Vigna's splitmix64). */
static uint64_t pattern(uint64_t seed, uint64_t index) {
    uint64_t z = seed * 0x2545f4914f6cdd1dull + (index + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static void do_mr(void) {
    struct memory *memory = &memories[object()];
    memory->length = number();
    int access = (int)number();
    if (posix_memalign((void **)&memory->bytes, 4096, memory->length + 8)) return failed("memory", ENOMEM);
    memset(memory->bytes, 0, memory->length + 8);
    memory->mr = ibv_reg_mr(pd, memory->bytes, memory->length, access);
    if (!memory->mr) return failed("ibv_reg_mr", 0);
    answer("ok %llu %u", (unsigned long long)(uintptr_t)memory->bytes, memory->mr->rkey);
}

static void do_fill(void) {
    struct memory *memory = &memories[object()];
    uint64_t offset = number(), length = number(), seed = number();
    for (uint64_t i = 0; i < length; i += 8) {
        uint64_t value = pattern(seed, i / 8);
        memcpy(memory->bytes + offset + i, &value, length - i < 8 ? length - i : 8);
    }
    answer("ok");
}

static void do_check(void) {
    struct memory *memory = &memories[object()];
    uint64_t offset = number(), length = number(), seed = number();
    for (uint64_t i = 0; i < length; i += 8) {
        uint64_t value = pattern(seed, i / 8);
        size_t count = length - i < 8 ? length - i : 8;
        if (memcmp(memory->bytes + offset + i, &value, count)) return answer("ok differs %llu", (unsigned long long)i);
    }
    answer("ok same");
}

static void do_peek(void) {
    struct memory *memory = &memories[object()];
    uint64_t value;
    memcpy(&value, memory->bytes + number(), 8);
    answer("ok %llu", (unsigned long long)value);
}

static void do_poke(void) {
    struct memory *memory = &memories[object()];
    uint64_t offset = number(), value = number();
    memcpy(memory->bytes + offset, &value, 8);
    answer("ok");
}

static void do_srq(void) {
    struct ibv_srq_init_attr attributes = { .attr = { .max_wr = 256, .max_sge = 1 } };
    int id = object();
    srqs[id] = ibv_create_srq(pd, &attributes);
    if (!srqs[id]) return failed("ibv_create_srq", 0);
    answer("ok");
}

static void do_qp(void) {
    struct pair *pair = &pairs[object()];
    const char *type = word();
    int srq = (int)strtol(word(), NULL, 0);
    memset(pair, 0, sizeof *pair);
    pair->cq = ibv_create_cq(context, 1024, NULL, NULL, 0);
    if (!pair->cq) return failed("ibv_create_cq", 0);
    struct ibv_qp_init_attr attributes = {
        .send_cq = pair->cq, .recv_cq = pair->cq, .srq = srq < 0 ? NULL : srqs[srq],
        .qp_type = !strcmp(type, "uc") ? IBV_QPT_UC : !strcmp(type, "ud") ? IBV_QPT_UD : IBV_QPT_RC,
        .cap = { .max_send_wr = 256, .max_recv_wr = srq < 0 ? 256 : 0, .max_send_sge = 1, .max_recv_sge = 1 },
    };
    pair->qp = ibv_create_qp(pd, &attributes);
    if (!pair->qp) return failed("ibv_create_qp", 0);
    answer("ok %u", pair->qp->qp_num);
}

static void modify(struct pair *pair, struct ibv_qp_attr *attributes, int mask) {
    int error = ibv_modify_qp(pair->qp, attributes, mask);
    if (error) return failed("ibv_modify_qp", error);
    answer("ok");
}

static void do_init(void) {
    struct pair *pair = &pairs[object()];
    struct ibv_qp_attr attributes = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
    attributes.qp_access_flags = (unsigned)number();
    attributes.qkey = (uint32_t)number();
    int own = pair->qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    modify(pair, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | own);
}

static struct ibv_ah_attr way(uint8_t gid_index, const char *gid) {
    struct ibv_ah_attr way = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = gid_index, .hop_limit = 64 } };
    inet_pton(AF_INET6, gid, way.grh.dgid.raw);
    return way;
}

static void do_rtr(void) {
    struct pair *pair = &pairs[object()];
    struct ibv_qp_attr attributes = { .qp_state = IBV_QPS_RTR };
    if (pair->qp->qp_type == IBV_QPT_UD) return modify(pair, &attributes, IBV_QP_STATE);
    uint8_t gid_index = (uint8_t)number();
    attributes.ah_attr = way(gid_index, word());
    attributes.dest_qp_num = (uint32_t)number();
    attributes.rq_psn = (uint32_t)number();
    attributes.path_mtu = (enum ibv_mtu)number();
    attributes.min_rnr_timer = (uint8_t)number();
    attributes.max_dest_rd_atomic = (uint8_t)number();
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (pair->qp->qp_type == IBV_QPT_RC) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    modify(pair, &attributes, mask);
}

static void do_rts(void) {
    struct pair *pair = &pairs[object()];
    struct ibv_qp_attr attributes = { .qp_state = IBV_QPS_RTS };
    attributes.sq_psn = (uint32_t)number();
    attributes.timeout = (uint8_t)number();
    attributes.retry_cnt = (uint8_t)number();
    attributes.rnr_retry = (uint8_t)number();
    attributes.max_rd_atomic = (uint8_t)number();
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (pair->qp->qp_type == IBV_QPT_RC)
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    modify(pair, &attributes, mask);
}

static void do_error(void) {
    struct ibv_qp_attr attributes = { .qp_state = IBV_QPS_ERR };
    modify(&pairs[object()], &attributes, IBV_QP_STATE);
}

static void do_state(void) {
    struct ibv_qp_attr attributes;
    struct ibv_qp_init_attr init;
    int error = ibv_query_qp(pairs[object()].qp, &attributes, IBV_QP_STATE, &init);
    if (error) return failed("ibv_query_qp", error);
    answer("ok %d", attributes.qp_state);
}

static void do_recv(int shared) {
    int id = object();
    struct ibv_recv_wr request = { .wr_id = number(), .num_sge = 1 }, *bad;
    struct memory *memory = &memories[object()];
    uint64_t offset = number();
    struct ibv_sge sge = { .addr = (uintptr_t)memory->bytes + offset, .lkey = memory->mr->lkey };
    sge.length = (uint32_t)number();
    request.sg_list = &sge;
    int error = shared ? ibv_post_srq_recv(srqs[id], &request, &bad) : ibv_post_recv(pairs[id].qp, &request, &bad);
    if (error) return failed("ibv_post_recv", error);
    answer("ok");
}

/* send QP WR_ID OPERATION MEMORY OFFSET LENGTH REMOTE_ADDRESS RKEY A B FENCE: A is what is immediate, added or
 * compared, or the key to invalidate, B what is swapped. */
static void do_send(void) {
    struct pair *pair = &pairs[object()];
    struct ibv_send_wr request = { .wr_id = number(), .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad;
    const char *name = word();
    struct memory *memory = &memories[object()];
    uint64_t offset = number();
    struct ibv_sge sge = { .addr = (uintptr_t)memory->bytes + offset, .lkey = memory->mr->lkey };
    sge.length = (uint32_t)number();
    uint64_t remote = number();
    uint32_t rkey = (uint32_t)number();
    uint64_t a = number(), b = number();
    if (number()) request.send_flags |= IBV_SEND_FENCE;
    request.sg_list = &sge;
    if (!strcmp(name, "cmp_swap") || !strcmp(name, "fetch_add")) {
        request.opcode = *name == 'c' ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD;
        request.wr.atomic.remote_addr = remote;
        request.wr.atomic.rkey = rkey;
        request.wr.atomic.compare_add = a;
        request.wr.atomic.swap = b;
    } else {
        static const struct { const char *name; enum ibv_wr_opcode opcode; } known[] = {
            { "send", IBV_WR_SEND }, { "send_imm", IBV_WR_SEND_WITH_IMM }, { "send_inv", IBV_WR_SEND_WITH_INV },
            { "write", IBV_WR_RDMA_WRITE }, { "write_imm", IBV_WR_RDMA_WRITE_WITH_IMM }, { "read", IBV_WR_RDMA_READ },
        };
        unsigned i = 0;
        while (i < sizeof known / sizeof *known && strcmp(known[i].name, name)) i++;
        if (i == sizeof known / sizeof *known) return failed(name, EINVAL);
        request.opcode = known[i].opcode;
        request.wr.rdma.remote_addr = remote;
        request.wr.rdma.rkey = rkey;
        if (request.opcode == IBV_WR_SEND_WITH_INV) request.invalidate_rkey = (uint32_t)a;
        else request.imm_data = htonl((uint32_t)a);
    }
    int error = ibv_post_send(pair->qp, &request, &bad);
    if (error) return failed("ibv_post_send", error);
    answer("ok");
}

/* datagram QP WR_ID MEMORY OFFSET LENGTH IMMEDIATE GID_INDEX GID QPN QKEY */
static void do_datagram(void) {
    struct pair *pair = &pairs[object()];
    struct ibv_send_wr request = { .wr_id = number(), .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad;
    struct memory *memory = &memories[object()];
    uint64_t offset = number();
    struct ibv_sge sge = { .addr = (uintptr_t)memory->bytes + offset, .lkey = memory->mr->lkey };
    sge.length = (uint32_t)number();
    request.sg_list = &sge;
    request.opcode = IBV_WR_SEND_WITH_IMM;
    request.imm_data = htonl((uint32_t)number());
    uint8_t gid_index = (uint8_t)number();
    struct ibv_ah_attr attributes = way(gid_index, word());
    if (pair->ah) ibv_destroy_ah(pair->ah);
    pair->ah = ibv_create_ah(pd, &attributes);
    if (!pair->ah) return failed("ibv_create_ah", 0);
    request.wr.ud.ah = pair->ah;
    request.wr.ud.remote_qpn = (uint32_t)number();
    request.wr.ud.remote_qkey = (uint32_t)number();
    int error = ibv_post_send(pair->qp, &request, &bad);
    if (error) return failed("ibv_post_send", error);
    answer("ok");
}

/* Completions, waited for until there are so many or so many milliseconds have passed:
 * WR_ID:STATUS:OPCODE:LENGTH:IMMEDIATE:FLAGS:SOURCE */
static void do_poll(void) {
    struct pair *pair = &pairs[object()];
    int wanted = (int)number();
    long patience = (long)number();
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    printf("ok");
    for (int got = 0; got < wanted;) {
        struct ibv_wc wc;
        int count = ibv_poll_cq(pair->cq, 1, &wc);
        if (count > 0) {
            int flags = (int)wc.wc_flags;
            printf(" %llu:%d:%d:%u:%u:%d:%u", (unsigned long long)wc.wr_id, wc.status, wc.opcode, wc.byte_len,
                   flags & IBV_WC_WITH_INV ? wc.invalidated_rkey : ntohl(wc.imm_data), flags, wc.src_qp);
            got++;
            continue;
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
        if ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 >= patience) break;
        usleep(100);
    }
    answer("");
}

/* window QP MEMORY: binds a window of type 2 to all of a region and says its key. */
static void do_window(void) {
    struct pair *pair = &pairs[object()];
    struct memory *memory = &memories[object()];
    pair->mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    if (!pair->mw) return failed("ibv_alloc_mw", 0);
    struct ibv_send_wr request = { .wr_id = 1, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED }, *bad;
    request.bind_mw.mw = pair->mw;
    request.bind_mw.rkey = ibv_inc_rkey(pair->mw->rkey);
    request.bind_mw.bind_info.mr = memory->mr;
    request.bind_mw.bind_info.addr = (uintptr_t)memory->bytes;
    request.bind_mw.bind_info.length = memory->length;
    request.bind_mw.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    int error = ibv_post_send(pair->qp, &request, &bad);
    if (error) return failed("ibv_post_send", error);
    struct ibv_wc wc = { 0 };
    while (ibv_poll_cq(pair->cq, 1, &wc) == 0) usleep(100);
    if (wc.status) return answer("error bind: %s", ibv_wc_status_str(wc.status));
    answer("ok %u", request.bind_mw.rkey);
}

/* rxe takes in no more of a group than the system's IP does, which has to be made a member too. */
static void set_membership(const union ibv_gid *gid, int joined) {
    static int socket4 = -1, socket6 = -1;
    if (socket4 < 0) socket4 = socket(AF_INET, SOCK_DGRAM, 0);
    if (socket6 < 0) socket6 = socket(AF_INET6, SOCK_DGRAM, 0);
    unsigned interface = if_nametoindex("eth0");
    if (IN6_IS_ADDR_V4MAPPED((struct in6_addr *)gid->raw)) {
        struct ip_mreqn group = { .imr_ifindex = (int)interface };
        memcpy(&group.imr_multiaddr, gid->raw + 12, 4);
        setsockopt(socket4, IPPROTO_IP, joined ? IP_ADD_MEMBERSHIP : IP_DROP_MEMBERSHIP, &group, sizeof group);
    } else {
        struct ipv6_mreq group = { .ipv6mr_interface = interface };
        memcpy(&group.ipv6mr_multiaddr, gid->raw, 16);
        setsockopt(socket6, IPPROTO_IPV6, joined ? IPV6_JOIN_GROUP : IPV6_LEAVE_GROUP, &group, sizeof group);
    }
}

static void do_group(int attach) {
    struct pair *pair = &pairs[object()];
    union ibv_gid gid;
    inet_pton(AF_INET6, word(), gid.raw);
    set_membership(&gid, attach);
    int error = attach ? ibv_attach_mcast(pair->qp, &gid, 0) : ibv_detach_mcast(pair->qp, &gid, 0);
    if (error) return failed("multicast", error);
    answer("ok");
}

static void destroy_pair(struct pair *pair) {
    if (pair->mw) ibv_dealloc_mw(pair->mw);
    if (pair->qp) ibv_destroy_qp(pair->qp);
    if (pair->ah) ibv_destroy_ah(pair->ah);
    if (pair->cq) ibv_destroy_cq(pair->cq);
    memset(pair, 0, sizeof *pair);
}

/* Destroys everything. */
static void do_clear(void) {
    for (int i = 0; i < OBJECTS; i++) destroy_pair(&pairs[i]);
    for (int i = 0; i < OBJECTS; i++) {
        if (srqs[i]) ibv_destroy_srq(srqs[i]);
        srqs[i] = NULL;
        if (memories[i].mr) ibv_dereg_mr(memories[i].mr);
        free(memories[i].bytes);
        memset(&memories[i], 0, sizeof memories[i]);
    }
    struct pollfd events = { .fd = context->async_fd, .events = POLLIN };
    struct ibv_async_event event;
    while (poll(&events, 1, 0) == 1 && !ibv_get_async_event(context, &event)) ibv_ack_async_event(&event);
    answer("ok");
}

/* gid GID: which entry of the table it is. */
static void do_gid(void) {
    union ibv_gid wanted, found;
    inet_pton(AF_INET6, word(), wanted.raw);
    for (int i = 0; i < 16; i++)
        if (!ibv_query_gid(context, 1, i, &found) && !memcmp(&wanted, &found, sizeof found)) return answer("ok %d", i);
    answer("error no such GID");
}

static void do_counters(void) {
    static const char *names[] = {
        "sent_pkts", "rcvd_pkts", "duplicate_request", "out_of_seq_request", "rcvd_rnr_err", "send_rnr_err",
        "rcvd_seq_err", "ack_deferred", "retry_exceeded_err", "retry_rnr_exceeded_err", "completer_retry_err",
        "send_err", "rdma_sends", "rdma_recvs",
    };
    printf("ok");
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        char path[256], value[32] = "0";
        snprintf(path, sizeof path, HW_COUNTERS "%s", names[i]);
        int file = open(path, O_RDONLY);
        ssize_t length = file < 0 ? 0 : read(file, value, sizeof value - 1);
        value[length > 0 ? length : 1] = 0;
        if (file >= 0) close(file);
        printf(" %s=%llu", names[i], strtoull(value, NULL, 10));
    }
    answer("");
}

int main(void) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    if (!list || !list[0] || !(context = ibv_open_device(list[0])) || !(pd = ibv_alloc_pd(context))) {
        answer("error no device");
        return 1;
    }
    answer("ok");
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, stdin) > 0) {
        rest = line;
        answered = 0;
        char *verb = strtok_r(line, " \n", &rest);
        if (!verb) continue;
        if (!strcmp(verb, "mr")) do_mr();
        else if (!strcmp(verb, "fill")) do_fill();
        else if (!strcmp(verb, "check")) do_check();
        else if (!strcmp(verb, "peek")) do_peek();
        else if (!strcmp(verb, "poke")) do_poke();
        else if (!strcmp(verb, "srq")) do_srq();
        else if (!strcmp(verb, "qp")) do_qp();
        else if (!strcmp(verb, "init")) do_init();
        else if (!strcmp(verb, "rtr")) do_rtr();
        else if (!strcmp(verb, "rts")) do_rts();
        else if (!strcmp(verb, "error")) do_error();
        else if (!strcmp(verb, "state")) do_state();
        else if (!strcmp(verb, "recv")) do_recv(0);
        else if (!strcmp(verb, "srq_recv")) do_recv(1);
        else if (!strcmp(verb, "send")) do_send();
        else if (!strcmp(verb, "datagram")) do_datagram();
        else if (!strcmp(verb, "poll")) do_poll();
        else if (!strcmp(verb, "window")) do_window();
        else if (!strcmp(verb, "attach")) do_group(1);
        else if (!strcmp(verb, "detach")) do_group(0);
        else if (!strcmp(verb, "destroy")) { destroy_pair(&pairs[object()]); answer("ok"); }
        else if (!strcmp(verb, "die")) kill(getpid(), SIGKILL);
        else if (!strcmp(verb, "clear")) do_clear();
        else if (!strcmp(verb, "gid")) do_gid();
        else if (!strcmp(verb, "counters")) do_counters();
        if (!answered) answer("error no such command: %s", verb);
    }
    return 0;
}
