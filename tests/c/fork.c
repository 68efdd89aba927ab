/*
 * After fork, the child has the parent's objects and none of its threads. What it opens itself works; what it
 * inherited gives errors, and never hangs; the parent notices nothing.
 */
#include "common.h"

#include <signal.h>
#include <sys/wait.h>

static void exchange(struct pair *pair, uint64_t wr_id)
{
    post_receive(&pair->b, wr_id, 0, 4096);
    post(&pair->a, &pair->b, wr_id, IBV_WR_SEND, 4096, 4096);
    EXPECT(pair->a.cq, wr_id, IBV_WC_SUCCESS);
    EXPECT(pair->b.cq, wr_id, IBV_WC_SUCCESS);
}

static void wait_for(pid_t child)
{
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 0);
}

static void opens_anew(void)
{
    alarm(PATIENCE_MS / 1000);
    struct pair pair = make_pair(IBV_QPT_RC);
    exchange(&pair, 1);
    drop_pair(&pair);
}

/* Errors, whatever their number, and each call returns. */
static void uses_what_it_inherited(struct pair *pair)
{
    alarm(PATIENCE_MS / 1000);
    struct ibv_sge sge = sge_of(&pair->a, 0, 8);
    struct ibv_send_wr *bad_send, send = {
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = IBV_WR_RDMA_WRITE,
        .send_flags = IBV_SEND_SIGNALED,
        .wr.rdma = {(uintptr_t)pair->b.memory, pair->b.mr->rkey},
    };
    struct ibv_recv_wr *bad_receive, receive = {.sg_list = &sge, .num_sge = 1};
    struct ibv_wc wc;
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_ERR};
    CHECK(ibv_post_send(pair->a.qp, &send, &bad_send) != 0);
    CHECK(ibv_post_recv(pair->a.qp, &receive, &bad_receive) != 0);
    CHECK(ibv_poll_cq(pair->a.cq, 1, &wc) < 0);
    CHECK(ibv_req_notify_cq(pair->a.cq, 0) != 0);
    CHECK(ibv_modify_qp(pair->a.qp, &attributes, IBV_QP_STATE) != 0);
    CHECK(ibv_alloc_pd(pair->a.context) == NULL);
    CHECK(ibv_reg_mr(pair->a.pd, pair->a.memory, 8, 0) == NULL);
    CHECK(ibv_create_cq(pair->a.context, 1, NULL, NULL, 0) == NULL);
    ibv_destroy_qp(pair->a.qp);
    ibv_destroy_cq(pair->a.cq);
    ibv_dereg_mr(pair->a.mr);
    ibv_dealloc_pd(pair->a.pd);
    ibv_close_device(pair->a.context);
}

static union ibv_gid gid_of(struct ibv_context *context)
{
    union ibv_gid gid;
    CHECK_EQ(ibv_query_gid(context, 1, 0, &gid), 0);
    return gid;
}

/* A child opens what its parent had listed, and gets a device of its own. While it lives, the parent can close its
 * device and open it again at the same address. */
static void list_and_then_fork(void)
{
    int go[2], count;
    CHECK_EQ(pipe(go), 0);
    /* An address that nobody else takes in between. */
    char address[32];
    snprintf(address, sizeof address, "127.91.%d.%d", getpid() >> 8 & 0xff, getpid() & 0xff);
    CHECK_EQ(setenv("UROCE_ADDR", address, 1), 0);
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list != NULL);
    struct ibv_context *context = ibv_open_device(list[0]);
    CHECK(context != NULL);
    union ibv_gid before = gid_of(context);
    pid_t child = fork();
    if (child == 0) {
        alarm(PATIENCE_MS / 1000);
        CHECK_EQ(unsetenv("UROCE_ADDR"), 0);
        struct ibv_context *own = ibv_open_device(list[0]);
        CHECK(own != NULL && own->device == list[0]);
        union ibv_gid other = gid_of(own);
        CHECK(memcmp(&other, &before, sizeof before) != 0);
        CHECK_EQ(ibv_close_device(own), 0);
        ibv_free_device_list(list);
        CHECK_EQ(write(go[1], "", 1), 1);
        pause();
        _exit(0);
    }
    char byte;
    CHECK_EQ(read(go[0], &byte, 1), 1);
    CHECK_EQ(ibv_close_device(context), 0);
    ibv_free_device_list(list);
    context = open_device();
    union ibv_gid after = gid_of(context);
    CHECK(memcmp(&after, &before, sizeof before) == 0);
    CHECK_EQ(ibv_close_device(context), 0);
    CHECK_EQ(unsetenv("UROCE_ADDR"), 0);
    int status;
    CHECK_EQ(kill(child, SIGKILL), 0);
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    close(go[0]);
    close(go[1]);
}

int main(void)
{
    CHECK_EQ(ibv_fork_init(), 0);
    list_and_then_fork();
    pid_t child = fork();
    if (child == 0) {
        opens_anew();
        _exit(0);
    }
    wait_for(child);

    struct pair pair = make_pair(IBV_QPT_RC);
    exchange(&pair, 1);
    for (int kind = 0; kind < 2; kind++) {
        /* The parent works on while the child does. */
        child = fork();
        if (child == 0) {
            if (kind == 0)
                opens_anew();
            else
                uses_what_it_inherited(&pair);
            _exit(0);
        }
        for (uint64_t i = 0; i < 100; i++)
            exchange(&pair, i);
        wait_for(child);
        exchange(&pair, 7);
    }

    /* A child that runs another program, as system() does. */
    CHECK_EQ(system("exit 3"), 3 << 8);
    exchange(&pair, 8);

    /* A child that ends the usual way runs the exit handlers of libraries that it inherited. */
    child = fork();
    if (child == 0)
        exit(0);
    wait_for(child);
    exchange(&pair, 9);
    drop_pair(&pair);
    return 0;
}
