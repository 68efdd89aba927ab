/* What has a name and no deed yet refuses, in the form that its callers expect. */
#include "common.h"

#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>

/* Forgets what the last call said. */
#define FRESH(call) (errno = 0, (call))

int main(void)
{
    CHECK(FRESH(rdma_create_event_channel()) == NULL);
    CHECK_EQ(errno, EOPNOTSUPP);
    struct rdma_cm_id *id;
    CHECK_EQ(FRESH(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP)), -1);
    CHECK_EQ(errno, EOPNOTSUPP);
    struct rdma_addrinfo *info;
    CHECK_EQ(FRESH(rdma_getaddrinfo("localhost", "1", NULL, &info)), -1);
    CHECK_EQ(errno, EOPNOTSUPP);
    CHECK_EQ(FRESH(rsocket(AF_INET, SOCK_STREAM, 0)), -1);
    CHECK_EQ(errno, EOPNOTSUPP);

    int count = 7;
    CHECK(FRESH(rdma_get_devices(&count)) == NULL);
    CHECK_EQ(errno, EOPNOTSUPP);
    CHECK_EQ(count, 0);
    CHECK(FRESH(rdma_get_devices(NULL)) == NULL);

    CHECK(FRESH(ibv_import_device(0)) == NULL);
    CHECK_EQ(errno, EOPNOTSUPP);
    struct ibv_context *context = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    CHECK(pd != NULL);
    CHECK(FRESH(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, 0, IBV_ACCESS_LOCAL_WRITE)) == NULL);
    CHECK_EQ(errno, EOPNOTSUPP);
    CHECK_EQ(ibv_dealloc_pd(pd), 0);
    CHECK_EQ(ibv_close_device(context), 0);

    /* Nor is there a list of devices where none can be opened. */
    CHECK_EQ(setenv("UROCE_ADDR", "192.0.2.1", 1), 0);
    count = 7;
    CHECK(FRESH(ibv_get_device_list(&count)) == NULL);
    CHECK_EQ(errno, EADDRNOTAVAIL);
    CHECK_EQ(count, 0);
    CHECK(FRESH(ibv_get_device_list(NULL)) == NULL);
    return 0;
}
