/* ibv_modify_qp_rate_limit: what the device says of it, what is refused, and that data still arrives. How fast it does is
 * tested in virtual time. */
#include "common.h"

int main(void)
{
    struct pair pair = make_pair(IBV_QPT_RC);

    struct ibv_device_attr_ex device;
    CHECK_EQ(ibv_query_device_ex(pair.a.context, NULL, &device), 0);
    CHECK(device.packet_pacing_caps.qp_rate_limit_min <= 1000);
    CHECK(device.packet_pacing_caps.qp_rate_limit_max >= 1000 * 1000);
    CHECK(device.packet_pacing_caps.supported_qpts & 1 << IBV_QPT_RC);

    struct ibv_qp_rate_limit_attr limit = {.rate_limit = 1000 * 1000, .max_burst_sz = 8192, .typical_pkt_sz = 1024};
    CHECK_EQ(ibv_modify_qp_rate_limit(pair.a.qp, &limit), 0);
    post(&pair.a, &pair.b, 1, IBV_WR_RDMA_WRITE, 0, 4096);
    EXPECT(pair.a.cq, 1, IBV_WC_SUCCESS);

    struct ibv_qp_rate_limit_attr unknown = {.rate_limit = 1000, .comp_mask = 1};
    CHECK_EQ(ibv_modify_qp_rate_limit(pair.a.qp, &unknown), EINVAL);
    struct ibv_qp_rate_limit_attr burst_alone = {.max_burst_sz = 8192};
    CHECK_EQ(ibv_modify_qp_rate_limit(pair.a.qp, &burst_alone), EINVAL);
    struct side unconnected = make_side(pair.a.context, IBV_QPT_RC, NULL);
    CHECK_EQ(ibv_modify_qp_rate_limit(unconnected.qp, &limit), EINVAL);
    drop_side(&unconnected);

    struct ibv_qp_rate_limit_attr none = {0};
    CHECK_EQ(ibv_modify_qp_rate_limit(pair.a.qp, &none), 0);
    post(&pair.a, &pair.b, 2, IBV_WR_RDMA_WRITE, 0, 4096);
    EXPECT(pair.a.cq, 2, IBV_WC_SUCCESS);
    drop_pair(&pair);
    return 0;
}
