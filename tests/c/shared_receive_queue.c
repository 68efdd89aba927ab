/* Two connections and one receive queue: who takes what, and the event that says it runs low. */
#include "common.h"

enum { DEPTH = 32 };

static void post_shared(struct ibv_srq *srq, const struct side *memory, uint64_t wr_id)
{
    struct ibv_sge sge = sge_of(memory, wr_id * 64, 64);
    struct ibv_recv_wr *bad, request = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1};
    CHECK_EQ(ibv_post_srq_recv(srq, &request, &bad), 0);
}

static void check_no_async_event(const struct ibv_context *context)
{
    struct pollfd poll_fd = {.fd = context->async_fd, .events = POLLIN};
    CHECK_EQ(poll(&poll_fd, 1, 50), 0);
}

int main(void)
{
    struct ibv_context *context = open_device(), *other = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_srq_init_attr init = {.attr = {.max_wr = DEPTH, .max_sge = 2}};
    struct ibv_srq *srq = ibv_create_srq(pd, &init);
    CHECK(srq != NULL);
    struct ibv_srq_attr attributes;
    CHECK_EQ(ibv_query_srq(srq, &attributes), 0);
    CHECK(attributes.max_wr >= DEPTH && attributes.max_sge >= 2);
    CHECK_EQ(attributes.srq_limit, 0);

    struct side near[2], far[2];
    for (int i = 0; i < 2; i++) {
        near[i] = make_side(context, IBV_QPT_RC, srq);
        far[i] = make_side(other, IBV_QPT_RC, NULL);
        connect_sides(&near[i], &far[i]);
    }
    for (uint64_t i = 0; i < 10; i++)
        post_shared(srq, &near[0], i);

    /* Armed, it says once that fewer than the limit are left; then it is to be armed again. */
    attributes.srq_limit = 6;
    CHECK_EQ(ibv_modify_srq(srq, &attributes, IBV_SRQ_LIMIT), 0);
    CHECK_EQ(ibv_query_srq(srq, &attributes), 0);
    CHECK_EQ(attributes.srq_limit, 6);
    for (uint64_t i = 0; i < 4; i++) {
        far[i % 2].memory[0] = (unsigned char)(10 + i);
        post(&far[i % 2], &far[i % 2], i, IBV_WR_SEND, 0, 64);
        EXPECT(far[i % 2].cq, i, IBV_WC_SUCCESS);
        EXPECT(near[i % 2].cq, i, IBV_WC_SUCCESS);
        CHECK_EQ(near[0].memory[i * 64], 10 + i);
    }
    check_no_async_event(context);
    post(&far[0], &far[0], 4, IBV_WR_SEND, 0, 64);
    EXPECT(far[0].cq, 4, IBV_WC_SUCCESS);
    struct ibv_async_event event = async_event(context);
    CHECK_EQ(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
    CHECK(event.element.srq == srq);
    EXPECT(near[0].cq, 4, IBV_WC_SUCCESS);
    CHECK_EQ(ibv_query_srq(srq, &attributes), 0);
    CHECK_EQ(attributes.srq_limit, 0);
    post(&far[1], &far[1], 5, IBV_WR_SEND, 0, 64);
    EXPECT(far[1].cq, 5, IBV_WC_SUCCESS);
    EXPECT(near[1].cq, 5, IBV_WC_SUCCESS);
    check_no_async_event(context);

    /* A queue pair in error leaves the shared receives alone, and says when it will take no more of them. */
    to_error(near[0].qp);
    event = async_event(context);
    CHECK_EQ(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
    CHECK(event.element.qp == near[0].qp);
    check_silent(near[0].cq);
    post(&far[1], &far[1], 6, IBV_WR_SEND, 0, 64);
    EXPECT(near[1].cq, 6, IBV_WC_SUCCESS);

    /* No more than it was made for; and nothing through the queue pair. */
    CHECK_EQ(ibv_query_srq(srq, &attributes), 0);
    struct ibv_sge sge = sge_of(&near[1], 0, 64);
    struct ibv_recv_wr *bad = NULL, request = {.sg_list = &sge, .num_sge = 1};
    int posted = 3, error;
    while ((error = ibv_post_srq_recv(srq, &request, &bad)) == 0)
        CHECK(++posted <= (int)attributes.max_wr);
    CHECK_EQ(error, ENOMEM);
    CHECK(bad == &request);
    CHECK_EQ(posted, attributes.max_wr);
    CHECK(ibv_post_recv(near[1].qp, &request, &bad) != 0);
    attributes.srq_limit = attributes.max_wr + 1;
    CHECK_EQ(ibv_modify_srq(srq, &attributes, IBV_SRQ_LIMIT), EINVAL);

    for (int i = 0; i < 2; i++) {
        drop_side(&near[i]);
        drop_side(&far[i]);
    }
    CHECK_EQ(ibv_destroy_srq(srq), 0);
    CHECK_EQ(ibv_dealloc_pd(pd), 0);
    CHECK_EQ(ibv_close_device(context), 0);
    CHECK_EQ(ibv_close_device(other), 0);
    return 0;
}
