use super::*;

fn status() -> DeviceStatus {
    DeviceStatus {
        pid: 0,
        program: "ib_write_bw".into(),
        device: "uroce0".into(),
        address: Some([192, 0, 2, 1].into()),
        congestion: "dcqcn rp_ai_rate=40".into(),
        line_rate: Rate::from_gbps(25),
        counters: vec![("sent_pkts".into(), 17), ("rp_cnp_handled".into(), 0)],
        queue_pair_count: 5000,
        queue_pairs: vec![
            QueuePairStatus {
                peer: Some(([192, 0, 2, 2].into(), 18)),
                ..QueuePairStatus::new(Qpn::new(17), QpType::Rc, QpState::Rts, None, Rate::from_mbps(100))
            },
            QueuePairStatus::new(Qpn::new(19), QpType::XrcSend, QpState::Init, None, Rate::from_gbps(25)),
        ],
    }
}

#[test]
fn what_is_written_is_read() {
    assert_eq!(text::parse(&text::write(&status())), Some(status()));
    let odd = DeviceStatus { program: "a\nqp b\r".into(), ..DeviceStatus::default() };
    assert_eq!(text::parse(&text::write(&odd)).unwrap().program, "a qp b ");
}

#[test]
fn what_a_later_version_adds_is_ignored() {
    let text = text::write(&status()) + "temperature 40\n";
    assert_eq!(text::parse(&text), Some(status()));
}

#[test]
fn what_is_no_status_is_none() {
    for text in
        ["", "\n", "uroce status 2\n", "uroce status 1\nqp", "uroce status 1\nqp 17 RC", "uroce status 1\nqps x"]
    {
        assert_eq!(text::parse(text), None, "{text:?}");
    }
}
